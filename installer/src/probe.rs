//! Which backends work on this node: the probe with the host's programs, its schedule, and the backend in use.

pub mod host;
pub mod node_backend;
pub mod node_probe;
