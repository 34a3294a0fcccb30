//! The plugin in real sandboxes of three generations of containerd. Needs root and the packages of `setup.sh`:
//! make test-containerd

#![allow(clippy::print_stdout, reason = "the tests print what they counted")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up must stop"
)]

mod agent;
mod calls;
mod faults;
mod fixture;
mod pod;
mod redirection;
mod status;
mod verify;
