//! The host's programs and files, used from a container that has others: the probe in the host's mount namespace, and pods
//! on a node that has only iptables-legacy. Each test's "host" is a mount namespace.
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
