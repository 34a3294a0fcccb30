//! The DaemonSet's pod as the manifests describe it, made by real containerd as a kubelet would have it
//! made: with these capabilities, mounts, variables and probes, and no others. Needs root and the
//! packages of `setup.sh`:  make test-node
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up must stop"
)]

mod daemon;
mod kubelet;
#[path = "../runtime/pod.rs"]
#[allow(dead_code, reason = "shared with the tests of other targets")]
mod pod;
mod site;
mod works;
