//! A node's CNI configuration and programs: the settings, installing and uninstalling, the diagnosis, and the node's pods.

pub(crate) mod agent_status;
pub mod by_hand;
pub mod doctor;
pub(crate) mod identity;
pub mod image;
pub mod install;
pub(crate) mod istio_cni;
pub mod platform;
pub mod pods_on_node;
pub mod runtime_config;
pub mod runtime_report;
pub mod settings;
