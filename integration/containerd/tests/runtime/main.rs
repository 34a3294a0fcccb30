//! The plugin in real sandboxes of three generations of containerd, and in network namespaces by ocicni, CRI-O's
//! library. Needs root, the packages of `setup.sh` and the programs of `go-programs.sh`: make -C integration containerd

#![allow(clippy::print_stdout, reason = "the tests print what they counted")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up must stop"
)]

mod agent;
mod calls;
mod crio;
mod crio_choice;
mod faults;
mod fixture;
mod ocicni;
mod pod;
mod redirection;
mod status;
mod verify;
