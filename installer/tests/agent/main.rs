//! The built `gybe node` and the agent's parts, each on directories and an API server of one test: the reconcile loop
//! on a node's directories, the pod cache and its watch, the sockets, the pages for probes and metrics.
#![cfg(test)]

mod api_requests;
mod broken_pods;
mod cluster;
mod cluster_queries;
mod conflicts;
mod doctor;
mod health_and_metrics;
mod host_faults;
mod leader;
mod leave;
mod node;
mod queries;
mod repair;
mod settings;
mod shutdown;
mod start_and_end;
mod status_command;
mod taints;
mod take_over;
mod watch;
mod watch_failures;
mod with_api_server;
