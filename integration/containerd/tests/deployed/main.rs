//! The DaemonSet's pod as the manifests describe it, started by real containerd from the image's archive as a kubelet
//! requests it: with exactly its capabilities, mounts, variables and probes. Needs root and the packages of `setup.sh`:
//! make -C integration node
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up must stop"
)]
#![allow(clippy::print_stdout, reason = "the tests print what they measured")]

mod cluster;
mod daemonset_pod;
mod deployment;
mod kubelet;
#[path = "../runtime/pod.rs"]
#[allow(dead_code, reason = "shared with the tests of other targets")]
mod pod;
mod repair;
