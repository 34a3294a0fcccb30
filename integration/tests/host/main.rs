//! A node's own programs and files, reached from a container that has others: the probe in the host's
//! mount namespace, and pods on a node that has iptables-legacy and nothing else. The "hosts" are mount
//! namespaces of each test's own.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking; indexing a missing JSON member yields null"
)]

mod kernel;
mod legacy;
mod probing;
mod watching;
mod world;
