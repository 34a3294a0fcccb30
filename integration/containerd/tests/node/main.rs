//! Installing, upgrading and uninstalling Gybe on a node with real containerd, while pods start and stop and the
//! primary plugin rewrites its conflist. Needs root, the packages of `setup.sh` and some minutes:  make -C integration node

#![allow(clippy::print_stdout, reason = "the tests print what they counted")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up must stop"
)]

mod conflist_rewrites;
mod conflist_state;
mod containerd_restarts;
mod fixture;
mod load;
mod primary;
mod reload_time;
mod uninstall;
mod upgrades;
