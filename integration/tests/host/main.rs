//! A node's own programs and files, reached from a container that has others: the probe in the host's
//! mount namespace, and pods on a node that has iptables-legacy and nothing else. The "hosts" are mount
//! namespaces of each test's own.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that meets what it did not expect has nothing better to do; JSON that lacks a member is null"
)]

mod kernel;
mod legacy;
mod probing;
mod watching;
mod world;
