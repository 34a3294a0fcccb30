//! A node's CNI configuration and programs: observing a node, planning and applying changes, the settings, and the
//! commands `install` and `uninstall`.
//!
//! ```text
//!   settings ─► desired ──┐
//!                         ├─► plan ─► change ─► apply        pass: one round of it
//!   observe ──► libcni ───┘    judge: is a pod redirected, and if not, which problem
//! ```

pub mod apply;
pub mod auto_shape;
pub mod change;
pub mod conflict;
pub mod conflist;
pub mod desired;
pub mod entries;
pub mod image;
pub mod install;
pub(crate) mod istio_cni;
pub mod json;
pub mod judge;
pub(crate) mod kubelet;
pub mod libcni;
pub mod observe;
pub mod pass;
pub mod plan;
pub mod platform;
pub mod problem;
pub mod runtimes;
pub mod settings;
pub mod uninstall;
pub mod watch;
