//! What tests of several crates need: temporary directories, volumes that the kubelet updates, waiting for a condition,
//! a running node agent.
//!
//! Functions panic when the test cannot go on, and waits after [`PATIENCE`]; [`write_volume`] returns its errors.
//! Network namespaces are `gybe_demo`'s; the recorded network and its connections are `gybe_integration`'s.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up must stop"
)]

mod agent;
mod directory;
pub mod facts;
pub mod http;
mod rooms;
mod volume;
mod wait;

pub use agent::{Agent, SERVING, agent_environment};
pub use directory::TestDir;
pub use rooms::names_after;
pub use volume::write_volume;
pub use wait::{PATIENCE, fastest, wait_for, wait_for_at_most, wait_until};
