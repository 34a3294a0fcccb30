//! What `gybe status` and `gybe leave` request from a workstation: which agents a cluster has, and what each reports.

pub(crate) mod agents;
pub(crate) mod leave;
