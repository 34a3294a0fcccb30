//! The node agent's threads and how they stop.
//!
//! One thread answers the plugin's queries (`facts_socket`) until a signal stops it, one receives the plugin's log
//! lines (`sockets`) until the last query is answered, and one writes to stderr (`log`), so that no pod waits for a
//! reader of stderr. The pods come from a [`PodLookup`]. `background` starts the threads that reconcile the node and
//! publish the status: the reconcile loop, HTTP, and the queries about our own node and DaemonSet. If several agents
//! run on a node, only one of them changes the node (`lead`).

pub mod ambient;
mod annotation;
mod background;
mod broken_pods;
mod daemonset;
mod deletion_budget;
mod events;
mod exempted_pods;
mod facts_socket;
mod health;
mod histogram;
mod http;
mod istio;
pub mod kubeconfig;
mod manifest_pods;
mod metrics;
mod node_condition;
mod node_taint;
mod plugin_calls;
pub mod pods;
mod reconcile;
mod repair_socket;
mod sockets;
mod status;
pub mod ztunnel;

pub use istio::IstioComponent;
pub use manifest_pods::ManifestPods;
pub use reconcile::{LiveSettings, ReconcileConfig, SettingsLoadError};
pub use sockets::NodeError;

use crate::agent::ambient::{AmbientLookup, AmbientNode};
use crate::cluster::ClusterNode;
use crate::lead::process::{Role, Shared, stop_signal};
use crate::lead::socket::{SocketContext, SocketHealth};
use crate::log::Log;
use background::NodeAgent;
use events::EventQueue;
use plugin_calls::PluginCalls;
use pods::{CountedPods, PodLookup};
use serde_json::json;
use sockets::Sockets;
use std::os::fd::AsFd;
use std::path::Path;

/// The configuration of one agent.
pub struct Agent<'a> {
    pub pods: &'a dyn PodLookup,
    /// The path of the facts socket; log.sock is in the same directory.
    pub facts: &'a Path,
    /// None for an agent that only answers queries about pods.
    pub reconcile: Option<ReconcileConfig>,
    /// None without a cluster.
    pub home: Option<ClusterNode>,
    /// None where ambient mode is off.
    pub ambient: Option<&'a AmbientNode>,
}

/// Serves until SIGTERM or SIGINT. Leaves the node as it is then, unless the settings request an uninstall and the
/// DaemonSet is gone.
///
/// # Errors
/// When a socket cannot be created, or waiting fails.
pub fn serve(agent: Agent<'_>) -> Result<(), NodeError> {
    // Blocked before the first thread is created, so that every thread inherits it (signal(7)).
    let stop = stop_signal().map_err(|source| NodeError::Wait { what: "signals", source })?;
    let (health, role, log) = (SocketHealth::default(), Shared::default(), Log::default());
    if let Some(ambient) = agent.ambient {
        ambient.allow_many_files(&log);
    }
    let decided = agent.ambient.map(|node| AmbientLookup { pods: agent.pods, node });
    let pods = decided.as_ref().map_or(agent.pods, |decided| decided);
    let (pods, calls, events) = (CountedPods::new(pods), PluginCalls::default(), EventQueue::default());
    let context = SocketContext { log: &log, health: &health, role: &role };
    let served = match agent.reconcile {
        Some(config) => {
            let (pods, calls, facts, home) = (&pods, &calls, agent.facts, agent.home);
            let ambient = agent.ambient;
            NodeAgent { pods, calls, context, events: &events, home, facts, stop: &stop, ambient }.run(config)
        }
        None => {
            role.set(Role::leads());
            let status = || health::status_without_node(pods.state(), health.problems(), calls.refused());
            Sockets::open(agent.facts, None, &log)?.serve(
                &pods,
                &calls,
                &status,
                stop.as_fd(),
                &events,
                context,
            )
        }
    };
    log.info("gybe node: stopped", json!({}));
    served
}
