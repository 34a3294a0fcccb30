//! `gybe repair` and `gybe migrate` on a node whose pods started without Gybe: real namespaces and connections, with
//! the node's files and processes in a directory.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[cfg(test)]
mod ambient;
#[cfg(test)]
mod ambient_node;
#[cfg(test)]
#[allow(dead_code, reason = "the tests of the real ztunnel use the rest")]
mod clients;
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod connections;
#[cfg(test)]
#[path = "../host/container.rs"]
#[allow(dead_code, reason = "the tests of the probe use the rest")]
mod container;
#[cfg(test)]
mod deletion;
#[cfg(test)]
mod exemption;
#[cfg(test)]
mod migration;
#[cfg(test)]
mod node;
#[cfg(test)]
mod pods;
#[cfg(test)]
mod probe_sets;
#[cfg(test)]
mod race;
#[cfg(test)]
mod storm;
#[cfg(test)]
mod take_over;
