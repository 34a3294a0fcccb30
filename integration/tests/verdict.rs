//! The outcomes of a pod's connections with rules of other owners in its namespace: predicted from the rules that are
//! read back, judged by `gybe verify`, and shown by real connections.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

#[path = "verdict/bpf.rs"]
mod bpf;
#[path = "verdict/ebpf.rs"]
mod ebpf;
#[path = "verdict/foreign.rs"]
mod foreign;
#[path = "verdict/random.rs"]
mod random;
#[path = "verdict/recorded.rs"]
mod recorded;
#[path = "verdict/world.rs"]
mod world;
