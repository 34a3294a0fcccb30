//! The outcomes of a pod's connections with rules of other owners in its namespace: predicted from the rules that are
//! read back, judged by `gybe verify`, and shown by real connections.
#![cfg(test)]

mod bpf;
mod delivery;
mod ebpf;
mod effects;
mod hidden_rules;
mod other_owners;
mod predicted;
mod random_namespaces;
mod redirected_pod;
mod statements;
