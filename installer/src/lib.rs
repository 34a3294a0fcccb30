//! The library of `gybe`: the node agent and the operator's command line.

pub mod agent;
mod chart_values;
pub mod cli;
mod error;
pub mod host;
mod log;
mod mounts;
pub mod pod;
pub mod probe;
pub mod repair;
pub mod retry;
