//! The library of `gybe`: the node agent and the operator's command line.

pub mod agent;
mod chart_values;
pub mod cli;
pub mod demo;
mod error;
pub mod host;
mod log;
pub mod pod;
pub mod probe;
pub mod repair;
pub mod retry;
pub mod testnet;
