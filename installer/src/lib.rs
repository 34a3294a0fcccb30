//! The node operator's tool: what `gybe` does, one module per concern.

pub mod demo;
