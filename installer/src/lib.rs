//! What `gybe`, the node agent and the operator's command line, is made of.

pub mod by_hand;
pub mod cli;
pub mod demo;
pub mod doctor;
mod errno;
mod facts_socket;
pub mod families;
pub mod host;
mod identity;
pub mod image;
pub mod init_args;
mod inside;
pub mod install;
pub mod kube;
mod layers;
pub mod manifest;
pub mod node;
pub mod node_backend;
pub mod node_probe;
pub mod own_namespace;
pub mod platform;
pub mod policy_file;
pub mod resolv_conf;
pub mod settings;
pub mod validation;
pub mod verdict;
