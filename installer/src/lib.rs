//! What `gybe`, the node operator's command line, is made of.

pub mod cli;
pub mod demo;
pub mod families;
pub mod init_args;
pub mod install;
pub mod manifest;
pub mod own_namespace;
pub mod policy_file;
pub mod resolv_conf;
pub mod validation;
