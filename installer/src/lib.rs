//! What `gybe`, the node operator's command line, is made of.

pub mod demo;
pub mod families;
pub mod manifest;
pub mod policy_file;
