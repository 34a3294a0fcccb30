//! What the tests with real packets share: the recorded flows, the network they were recorded in, connections
//! made in it, policies and connections drawn at random, and the built programs. The tests are in `tests/`.

pub mod differential;
pub mod documented;
pub mod failure;
pub mod faults;
pub mod flow_check;
pub mod invocation;
// nix has `ptrace::syscall_info` for glibc alone.
#[cfg(target_env = "gnu")]
pub mod kill;
pub mod namespace;
pub mod plugin_call;
pub mod predict;
pub mod programs;
pub mod random_flow;
pub mod random_policy;
pub mod topology;
pub mod vectors;
pub mod ztunnel;
