//! The built program `gybe-cni`, called as runtimes call it; and the page about its configuration.
#![cfg(test)]

mod absent_agent;
mod agent;
mod bad_input;
mod configuration;
mod kubeconfig;
mod program;
mod recorded;
