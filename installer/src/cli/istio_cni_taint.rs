//! `gybe istio-cni-taint`, and the program name `istio-cni-taint`: the taint `NodeReadiness` of one node.

use super::cluster::ClusterArgs;
use super::invocation::Context;
use super::output::{CommandError, CommandOutput, Exit};
use super::style::examples;
use crate::istio_cni_taint::{ConfigMapRef, CriticalDaemonSets};
use crate::lead::process::stop_signal;
use clap::Args;
use serde_json::json;
use std::os::fd::AsFd;

/// Remove the taint NodeReadiness of this node when critical DaemonSets have ready pods there
///
/// A ConfigMap lists the DaemonSets: each of its values is a YAML list of objects with name, namespace and selector, a
/// label selector of the DaemonSet's pods. The taint is NodeReadiness:NoSchedule. As a daemon it checks every 5 s, and
/// every 60 s once the node is ready, and sets the taint when a DaemonSet has had no ready pod there for 30 s. Without
/// --run-as-daemon=false it runs until SIGTERM. Exit code 0: the node has no such taint. 1: a DaemonSet has no ready
/// pod there. 2: the command failed.
#[derive(Debug, Args)]
#[command(after_help = examples(&[
    "istio-cni-taint --configmap-namespace gybe-system --configmap-name gybe-critical-daemonsets",
    "gybe istio-cni-taint --run-as-daemon=false --kubeconfig ~/.kube/config --node-name worker-1",
]))]
pub(super) struct IstioCniTaintArgs {
    /// The namespace of the ConfigMap
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    configmap_namespace: String,
    /// The ConfigMap that lists the critical DaemonSets
    #[arg(long, value_name = "NAME", default_value = "single")]
    configmap_name: String,
    /// Keep running; otherwise check once
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "true", default_missing_value = "true")]
    run_as_daemon: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl IstioCniTaintArgs {
    pub(super) fn run(&self, context: &Context) -> Result<CommandOutput, CommandError> {
        let (namespace, name) = (&self.configmap_namespace, &self.configmap_name);
        let config_map = ConfigMapRef::parse(namespace, name).ok_or_else(|| {
            CommandError::new(format!(
                "{namespace:?} and {name:?} are not the names of a namespace and a ConfigMap"
            ))
        })?;
        let critical = CriticalDaemonSets { home: self.cluster.cluster_node(context)?, config_map };
        if self.run_as_daemon {
            let stop = stop_signal().map_err(|why| CommandError::because("cannot wait for signals", why))?;
            critical.keep(stop.as_fd()).map_err(|why| CommandError::hinted("cannot keep the taint", why))?;
            return Ok(CommandOutput::done("", json!({ "stopped": true })));
        }
        let node = &critical.home.node;
        let unready = critical.check().map_err(|why| {
            CommandError::hinted(format!("cannot check the critical DaemonSets of {node}"), why)
        })?;
        let json = json!({ "node": node, "holds": unready.is_empty(), "unready": unready });
        if unready.is_empty() {
            let text =
                format!("{node} has ready pods of the critical DaemonSets, and no taint NodeReadiness\n");
            return Ok(CommandOutput::done(text, json));
        }
        let text =
            format!("{node} has no ready pod of {}; its taints stay as they are\n", unready.join(", "));
        Ok(CommandOutput { text, json, exit: Exit::No, notes: Vec::new() })
    }
}
