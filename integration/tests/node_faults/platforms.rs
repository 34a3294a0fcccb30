//! A healthy node of each platform of the chart.

use gybe_integration::programs::{Run, ours};
use gybe_plugin::version::BUILD_MARK;
use gybe_test_support::TestDir;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

/// The chart's platforms: the directories of each are in `manifests/chart/files/platforms.yaml`.
const PLATFORMS: &str = include_str!("../../../manifests/chart/files/platforms.yaml");

/// What identifies a node of the platform, beside its directories: an existing path, or the id in os-release(5).
fn signs(platform: &str) -> (&'static [&'static str], &'static str) {
    match platform {
        "openshift" => (&[], "rhcos"),
        "k3d" => (&["bin/host-local"], ""),
        "bottlerocket" => (&[], "bottlerocket"),
        "talos" => (&[], "talos"),
        _ => (&[], "debian"),
    }
}

#[test]
fn on_a_healthy_node_of_each_platform_the_doctor_finds_nothing() {
    let platforms: BTreeMap<&str, Value> = serde_saphyr::from_str(PLATFORMS).unwrap();
    assert_eq!(platforms.len(), 13);
    for (platform, values) in &platforms {
        let directory = |key: &str| {
            let set = values[key].as_str().or_else(|| platforms["default"][key].as_str());
            set.unwrap().trim_start_matches('/').to_owned()
        };
        let (conf, programs) = (directory("cniConfDir"), directory("cniBinDir"));
        let root =
            TestDir::new(&format!("platform-{platform}")).with_subdirectories(&["var/lib/cni/results"]);
        let (paths, id) = signs(platform);
        root.write("etc/os-release", format!("ID={id}\n"));
        let write_program = |path: String| {
            let answer = r#"{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}"#;
            let path = root.write(path, format!("#!/bin/sh\n# {BUILD_MARK}\necho '{answer}'\n"));
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        };
        paths.iter().for_each(|path| write_program((*path).to_owned()));
        let multus = values["settings"]["shape"] == "standalone";
        for program in ["bridge", "loopback", "multus"] {
            write_program(format!("{programs}/{program}"));
        }
        write_program("image/gybe".to_owned());
        write_program("image/gybe-cni".to_owned());
        root.create_dir(&conf);
        if !multus {
            let primary = r#"{ "cniVersion": "1.0.0", "name": "pods", "plugins": [{ "type": "bridge" }] }"#;
            root.write(format!("{conf}/10-pods.conflist"), primary);
        }
        let path = root.path().to_str().unwrap();
        let gybe = |arguments: &[&str]| -> Run {
            ours("gybe", &[arguments, &["--root", path]].concat(), "").unwrap()
        };
        let (image, run) = (format!("{path}/image"), format!("{path}/run/gybe"));
        let shape: &[&str] =
            if multus { &["--shape", "standalone", "--conf-name", "istio-cni.conf"] } else { &[] };
        let installed =
            gybe(&[&["install", "--from", &image, "--pods-from", "/etc/gybe/pods"], shape].concat());
        assert_eq!(installed.code, Some(0), "{platform}: {installed:?}");
        let ran = gybe(&["doctor", "--run-dir", &run, "--json"]);
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        assert!(ran.code == Some(0) && report["well"] == true, "{platform}: {report:#}");
        let placed = root.join(&programs).join("gybe-cni").exists();
        assert!(placed, "{platform}: the plugin is in the platform's directory {programs}");
        let verified = gybe(&["verify", "--all", "--json"]);
        assert_eq!(verified.code, Some(0), "{platform}: {verified:?}");
    }
}
