//! What three generations of containerd do with the plugin, seen on real sandboxes. Needs root and
//! the packages of `setup.sh`:  make test-containerd

#![allow(clippy::print_stdout, reason = "how many there were of what was counted")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up must stop"
)]

mod agent;
mod cached;
mod calls;
mod faults;
mod ground;
mod pod;
mod redirected;
mod status;
mod struck;
mod verified;
