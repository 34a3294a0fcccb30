//! Network namespaces with links, listeners and callers, for `gybe demo`, the validation and the tests of real packets.

pub mod caller;
pub mod fate;
pub mod identity;
pub mod link;
pub mod listener;
pub mod namespace;
mod rtnetlink;
pub(crate) mod socket;
