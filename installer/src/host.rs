//! A node's CNI configuration and programs: observing a node, planning and applying changes, the settings, the
//! commands `install` and `uninstall`, the diagnosis, and the node's pods.
//!
//! ```text
//!   settings ─► desired ──┐
//!                         ├─► plan ─► change ─► apply        pass: one round of it
//!   observe ──► libcni ───┘    judge: is a pod redirected, and if not, which problem
//! ```

pub mod apply;
pub mod change;
pub mod conflist;
pub mod desired;
pub mod directory;
pub mod doctor;
pub mod entries;
pub mod fight;
pub(crate) mod identity;
pub mod image;
pub mod install;
pub mod json;
pub mod judge;
pub mod libcni;
pub mod observe;
pub mod pace;
pub mod pass;
pub mod plan;
pub mod platform;
pub mod pods_on_node;
pub mod problem;
pub mod rate_limit;
pub mod runtimes;
pub mod setback;
pub mod settings;
pub mod uninstall;
pub mod watch;
