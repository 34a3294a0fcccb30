//! What an installer does to a node at work: real containerd, sandboxes coming and going, a primary
//! that writes its conf again. Needs root, the packages of `setup.sh` and some minutes:  make test-node

#![allow(clippy::print_stdout, reason = "how many there were of what was counted")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up must stop"
)]

mod ground;
mod left;
mod load;
mod noticed;
mod primary;
mod restarted;
mod rewritten;
mod state;
mod upgraded;
mod views;
