//! Desired states for the tests: scripts that answer as the real programs do, and an entry like the real one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use gybe_installer::host::conflist::entry::Entry;
use gybe_installer::host::desired::{
    Confirmed, DesiredState, Install, Placement, PlacementOrder, Program, PutBack, Shape, TakeOver, Trial,
    Uninstall,
};
use gybe_installer::host::observe::{FileName, Hash, NodeDirectories};
use serde_json::json;

pub(crate) fn name(name: &str) -> FileName {
    FileName::new(name).unwrap()
}

pub(crate) fn places(root: &Path) -> NodeDirectories {
    NodeDirectories { conf: root.join("net.d"), programs: root.join("bin"), results: root.join("results") }
}

pub(crate) fn entry(level: &str) -> Entry {
    Entry::from_value(&json!({
        "type": "gybe-cni", "log_level": level, "exclude_namespaces": ["kube-system"],
        "capabilities": { "io.kubernetes.cri.pod-annotations": true },
    }))
    .unwrap()
}

/// Writes a program into the image that answers VERSION and `--version` and contains its build's number.
pub(crate) fn program(root: &Path, file: &str, build: &str) -> Program {
    let source = root.join("image").join(format!("{file}-{build}"));
    let text = format!(
        "#!/bin/sh\n# {build}\necho '{{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"1.0.0\"]}}'\n"
    );
    if !source.exists() {
        fs::write(&source, &text).unwrap();
        fs::set_permissions(&source, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let trial = if file == "gybe" { Trial::Version } else { Trial::CniVersion };
    let place = if file == "istio-cni" { Placement::IfAbsent } else { Placement::Always };
    let need = if file == "gybe-cni" { PlacementOrder::BeforeEntry } else { PlacementOrder::AfterEntry };
    Program { name: name(file), source, hash: Hash::of(text.as_bytes()), trial, place, need }
}

pub(crate) fn install(root: &Path, shape: Shape, build: &str) -> Install {
    Install {
        shape,
        pinned_by: "conf_name",
        entry: entry(if build == "1" { "info" } else { "debug" }),
        programs: vec![program(root, "gybe-cni", build), program(root, "gybe", build)],
        retired: Vec::new(),
        take_over: TakeOver::Now,
        mode: 0o600,
        confirmed: Confirmed::No,
    }
}

pub(crate) fn installed(root: &Path, shape: Shape) -> DesiredState {
    DesiredState::Installed(install(root, shape, "1"))
}

pub(crate) fn chained(root: &Path) -> DesiredState {
    installed(root, Shape::Chained { pinned: None })
}

pub(crate) fn left(root: &Path, put_back: PutBack) -> DesiredState {
    DesiredState::Uninstalled(Uninstall {
        plugin: "gybe-cni".into(),
        pinned: None,
        programs: vec![name("gybe-cni"), name("gybe"), name("istio-cni")],
        retired: Vec::new(),
        last: None,
        in_grace_period: false,
        tombstones: vec![program(root, "gybe-cni", "tombstone"), program(root, "istio-cni", "tombstone")],
        put_back,
    })
}
