//! Redirects a network namespace's traffic to the proxy inside it.

pub mod compile;
pub mod policy;
pub mod ruleset;
pub mod trace;
