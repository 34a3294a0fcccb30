//! A world made of network namespaces, in which a redirect can be seen at work.

pub mod caller;
pub mod fate;
pub mod identity;
pub mod link;
pub mod listener;
pub mod namespace;
mod rtnetlink;
mod socket;
