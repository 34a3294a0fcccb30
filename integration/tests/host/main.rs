//! A node's host as the agent's containers see it: the probe in the host's mount namespace, pods on a node that has
//! only iptables-legacy, and the placement of the real plugin while it runs, damaged, on a full disk or in a renamed
//! directory. Each test's "host" is a mount namespace or a directory.
#![cfg(test)]

mod container;
mod legacy;
mod probe;
mod programs;
