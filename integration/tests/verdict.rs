//! What becomes of a pod's connections beside other owners' rules: predicted from the rules that are
//! read back, judged by `gybe verify`, and made for real.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that meets what it did not expect must stop")]

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
