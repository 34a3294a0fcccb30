//! Conf directories before and after istio-cni's installer ran: Gybe's result is the same except for its entry.
//!
//! The files come from other projects and are not in this repository: GYBE_SHARED names their directory.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

#[path = "../install/ground.rs"]
#[allow(dead_code, reason = "shared with the tests of another target")]
mod ground;
mod lives;
mod parts;
#[path = "../install/wants.rs"]
#[allow(dead_code, reason = "shared with the tests of another target")]
mod wants;

use std::path::{Path, PathBuf};

use gybe_installer::host::conflist::entry::Layout;
use serde_json::Value;

/// Reads a file of the reference material.
pub(crate) fn shared(path: &str) -> Vec<u8> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    let root = std::env::var_os("GYBE_SHARED").map_or(beside, PathBuf::from);
    let file = root.join("vectors/install").join(path);
    std::fs::read(&file).unwrap_or_else(|why| {
        panic!("{}: {why}; set GYBE_SHARED to the directory of the reference material", file.display())
    })
}

pub(crate) fn text(path: &str) -> String {
    String::from_utf8(shared(path)).unwrap()
}

pub(crate) fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

/// Returns istio-cni's result with Gybe's entry in place of istio-cni's.
pub(crate) fn with_ours(golden: &[u8]) -> Value {
    let mut value = json(golden);
    let ours = json(&wants::entry("info").print(&Layout::OneLine));
    for plugin in value["plugins"].as_array_mut().unwrap() {
        if plugin["type"] == "istio-cni" {
            *plugin = ours.clone();
        }
    }
    value
}

/// Removes the name and version, which istio-cni invents for a converted `.conf` and Gybe keeps.
pub(crate) fn less(mut value: Value) -> Value {
    let members = value.as_object_mut().unwrap();
    members.remove("name");
    members.remove("cniVersion");
    for plugin in members["plugins"].as_array_mut().unwrap() {
        plugin.as_object_mut().unwrap().remove("cniVersion");
    }
    value
}
