//! A real containerd in namespaces of its own, and the kubelet's calls to it; not what the tests
//! ask of them.
//!
//! Inside the test's [`Stage`] (namespaces that vanish with it) runs a [`Containerd`] of one
//! [`Generation`], its CNI configuration a [`Chain`] of the reference plugins and the plugins
//! under test. [`Cri`] speaks the kubelet's half. Nothing of it touches the machine's own network,
//! mounts or process table.

pub mod agent;
pub mod calls;
pub mod chain;
pub mod config;
pub mod containerd;
pub mod cri;
pub mod generation;
pub mod hold;
pub mod image;
pub mod loaded;
pub mod manifest;
pub mod node;
pub mod pause_image;
pub mod sandbox;
mod service;
pub mod stage;
pub mod trouble;

pub use agent::Agent;
pub use calls::Call;
pub use chain::Chain;
pub use containerd::Containerd;
pub use cri::Cri;
pub use generation::Generation;
pub use hold::Hold;
pub use image::Image;
pub use loaded::Loaded;
pub use node::{LostNode, Node, Programs};
pub use sandbox::Sandbox;
pub use stage::Stage;
pub use trouble::Trouble;
