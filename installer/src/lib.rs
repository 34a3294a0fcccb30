//! What `gybe`, the node operator's command line, is made of.

pub mod families;
pub mod policy_file;
