//! What `gybe`, the node operator's command line, is made of.

pub mod install;
