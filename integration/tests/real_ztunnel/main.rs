//! Ambient pods of a node with the real ztunnel, whose program is not in the repository: `make -C integration ambient
//! ZTUNNEL=PROGRAM`. It runs without a cluster and istiod: the mesh is a file, and its test certificates are built in.
#![cfg(test)]
#![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "ztunnel runs in the background of the test")]

#[path = "../repair/ambient_node.rs"]
#[allow(dead_code, reason = "the tests of repair use the rest")]
mod ambient_node;
#[path = "../repair/clients.rs"]
#[allow(dead_code, reason = "the tests of repair use the rest")]
mod clients;
#[path = "../repair/cluster.rs"]
#[allow(dead_code, reason = "the tests of repair use the rest")]
mod cluster;
mod connections;
mod labels;
#[path = "../repair/node.rs"]
#[allow(dead_code, reason = "the tests of repair use the rest")]
mod node;
mod resolver;
mod restarts;
mod world;
mod ztunnel;

const BACKENDS: [&str; 3] = ["nft", "iptables-nft", "iptables-legacy"];
