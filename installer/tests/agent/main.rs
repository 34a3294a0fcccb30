//! The built `gybe node` and the agent's parts, each on directories and an API server of one test: the reconcile loop
//! on a node's directories, the pod cache and its watch, the sockets, the pages for probes and metrics.
#![cfg(test)]

mod api_requests;
mod broken_pods;
mod cluster;
mod cluster_queries;
mod conflicts;
mod critical_daemonsets;
mod doctor;
mod events;
mod facts_protocol;
mod health_and_metrics;
mod host_faults;
mod kubeconfig;
mod leader;
mod leave;
mod node;
mod node_taint;
mod pod_facts_command;
mod pod_repairs;
mod pods_directory;
mod program_directory;
mod queries;
mod repair;
mod settings;
mod shutdown;
mod sockets;
mod start_and_end;
mod status_command;
mod take_over;
mod uninstall;
mod unknown_pods;
mod watch;
mod watch_failures;
mod with_api_server;
