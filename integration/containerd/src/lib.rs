//! A test node: a real containerd in its own namespaces, and the kubelet's calls to it.
//!
//! A [`Node`] is a [`SimulatedHost`] (network, mount and PID namespaces that end with the test) with a
//! [`Containerd`] of one [`Generation`], whose CNI configuration is a [`Conflist`] of the reference plugins and the
//! plugins under test. [`Cri`] makes the kubelet's calls. The machine's own network, mounts and processes stay
//! unchanged.

pub mod agent;
pub mod conflist;
pub mod containerd;
pub mod cri;
pub mod error;
pub mod host;
pub mod image;
pub mod manifest;
pub mod node;
mod process;
pub mod recorder;
pub mod sandbox;

pub use agent::{Agent, AgentOptions};
pub use conflist::Conflist;
pub use containerd::{Containerd, Generation};
pub use cri::Cri;
pub use error::HarnessError;
pub use host::SimulatedHost;
pub use image::{Image, WORKLOAD};
pub use node::{Node, NodeWithoutContainerd, Programs};
pub use process::{HostProcess, Suspended, program_under_test};
pub use recorder::{PausePoint, RecordedCall};
pub use sandbox::Sandbox;
