//! Network namespaces with links, listeners and clients: for `gybe demo`, for the validation of a pod, and for
//! tests with real packets.

pub mod client;
pub mod listener;
pub mod namespace;
pub mod outcome;
