//! The diagnosis: the rules of a namespace, of every owner, as one model; the walk of a connection through it, for
//! desired rules and for live ones; the verdict; text. No other room imports this one.

pub mod datagrams;
pub mod ebpf;
pub mod live;
pub mod probe_sets;
pub mod show;
pub mod verdict;
pub(crate) mod walk;
