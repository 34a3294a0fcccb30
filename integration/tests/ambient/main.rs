//! Ambient pods on a node: a real agent with an API server, real ADDs by the entry that the agent writes, and the
//! stand-in for ztunnel. The rules alone are in `flows`, ztunnel's server alone in `ztunnel`.
#![cfg(test)]

mod adds;
mod annotation;
mod faults;
mod fixture;
mod selection;
