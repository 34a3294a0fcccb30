//! Faults planted on a node, alone and in pairs: `gybe doctor` and `gybe verify --all` name each cause and its remedy,
//! and find nothing on a healthy node of any platform.
#![cfg(test)]
#![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod fixture;
#[path = "../repair/node.rs"]
#[allow(dead_code, reason = "the tests of repairs use the rest")]
mod node;
mod pairs;
mod ready;
mod table;
