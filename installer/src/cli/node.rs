//! The commands that run in a node's pods until SIGTERM: `gybe node`, the agent; and `gybe istio-cni-taint`, also as
//! the program `istio-cni-taint`, which sets and removes the taint `NodeReadiness` of one node.

use crate::agent::ambient::AmbientNode;
use crate::agent::pods::{PodLookup, WatchedPods};
use crate::agent::{self, Agent, LiveSettings, ManifestPods, NodeError, ReconcileConfig};
use crate::cli::Context;
use crate::cli::cluster::ClusterArgs;
use crate::cli::output::{CommandError, CommandOutput, Exit};
use crate::cli::style::examples;
use crate::cluster::ClusterNode;
use crate::host::image::Image;
use crate::host::observe::runtimes::ReportWait;
use crate::host::settings::GRACE_PERIOD;
use crate::istio_cni_taint::{ConfigMapRef, CriticalDaemonSets};
use crate::lead::process::stop_signal;
use crate::lead::socket::ServeError;
use clap::Args;
use gybe_netfilter::model::Hint;
use gybe_plugin::conf::SOCKET;
use gybe_plugin::probe_cache::ProbeCache;
use serde_json::json;
use std::borrow::Cow;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How long the agent waits for `gybe probe --watch` to report the runtimes; a probe takes seconds.
const REPORT_WAIT: Duration = Duration::from_secs(60);

/// Run the node agent: keep gybe-cni installed on this node and answer its queries about this node's pods
///
/// Watches the pods in the cluster in which it runs as a pod, or in the cluster of --kubeconfig, or reads the
/// manifests in --pods-from. With one of these two flags it only answers queries, unless --install is given. Runs
/// until SIGTERM and then leaves everything in place. gybe-cni sends its log lines to log.sock in the directory of
/// the facts socket; the agent prints them on stderr. Settings: docs/CONFIGURE.md.
#[derive(Debug, Args)]
#[command(after_help = examples(&[
    "gybe node --pods-from /etc/gybe/pods",
    "gybe node --kubeconfig ~/.kube/config --node-name worker-1",
]))]
pub(super) struct NodeArgs {
    /// Read the pods from the manifests in this directory, again when they change; needs no cluster
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "node_name"])]
    pods_from: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The socket on which gybe-cni queries pods (its facts.socket), of an agent that installs nothing [default:
    /// /run/gybe/facts.sock; with --install, facts.sock in CNI_AGENT_RUN_DIR]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Keep gybe-cni installed in this node's chain [default: true as a pod of the cluster; false with
    /// --pods-from or --kubeconfig]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    install: Option<bool>,
}

impl NodeArgs {
    pub(super) fn run(&self, context: &Context) -> Result<CommandOutput, CommandError> {
        let cluster_node = self.cluster_node(context)?;
        let as_a_pod = self.pods_from.is_none() && self.cluster.kubeconfig.is_none();
        let reconcile =
            self.install.unwrap_or(as_a_pod).then(|| reconcile_config(context, as_a_pod)).transpose()?;
        let facts = self.facts_socket(reconcile.as_ref())?;
        let ambient = reconcile.as_ref().and_then(|config| {
            let environment = config.settings.environment();
            Some(AmbientNode::new(environment.ambient.clone()?, environment.probe.clone()))
        });
        if ambient.is_some() && self.pods_from.is_some() {
            let why = "the node agent cannot start: AMBIENT_ENABLED is set, and with --pods-from the labels of \
                       namespaces are not known, so that every pod without a sidecar would be refused";
            let hint = "unset AMBIENT_ENABLED, or let the agent watch its cluster";
            return Err(CommandError::new(why).with_hint(hint.to_owned()));
        }
        let pods = self.pod_lookup(cluster_node.as_ref(), ambient.as_ref())?;
        let (pods, ambient) = (pods.as_ref(), ambient.as_ref());
        match agent::serve(Agent { pods, facts: &facts, reconcile, home: cluster_node, ambient }) {
            Ok(()) => Ok(CommandOutput::done("", json!({ "stopped": true }))),
            Err(why) => Err(CommandError::hinted("the node agent cannot run", why)),
        }
    }

    /// Returns the path of the facts socket. An agent that writes the entry serves the socket that the entry names.
    fn facts_socket(&self, reconcile: Option<&ReconcileConfig>) -> Result<PathBuf, CommandError> {
        match (reconcile, &self.socket) {
            (None, socket) => Ok(socket.clone().unwrap_or_else(|| SOCKET.into())),
            (Some(reconcile), None) => Ok(reconcile.settings.environment().facts_socket()),
            (Some(_), Some(_)) => Err(CommandError::new("--socket is for an agent that only serves pods")
                .with_hint("set CNI_AGENT_RUN_DIR: the entry names the socket there".to_owned())),
        }
    }

    fn pod_lookup(
        &self,
        cluster_node: Option<&ClusterNode>,
        ambient: Option<&AmbientNode>,
    ) -> Result<Box<dyn PodLookup>, CommandError> {
        match (&self.pods_from, cluster_node) {
            (Some(directory), _) => Ok(Box::new(ManifestPods::new(directory))),
            (None, Some(ClusterNode { cluster, node })) => {
                let ambient = ambient.map(|node| Arc::clone(&node.pods));
                match WatchedPods::start(cluster, node, ambient) {
                    Ok(watched) => Ok(Box::new(watched)),
                    Err(why) => Err(CommandError::because("the node agent cannot watch its cluster", why)),
                }
            }
            (None, None) => Err(CommandError::new("no source of pods")),
        }
    }

    /// Returns `None` if the pods come from manifests.
    fn cluster_node(&self, context: &Context) -> Result<Option<ClusterNode>, CommandError> {
        if self.pods_from.is_some() {
            return Ok(None);
        }
        self.cluster.cluster_node(context).map(Some)
    }
}

impl Hint for NodeError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Serve(ServeError { source, .. }) | Self::Lead { source, .. } => source.hint(),
            Self::Wait { .. } => None,
        }
    }
}

/// Returns the configuration of the reconcile loop. An error in the environment ends the agent before it changes the
/// node.
fn reconcile_config(context: &Context, as_a_pod: bool) -> Result<ReconcileConfig, CommandError> {
    let failure = "the node agent cannot start";
    let environment = context.environment.clone().into_iter().collect();
    let settings = LiveSettings::start(environment).map_err(|why| CommandError::because(failure, why))?;
    let hint = "set GYBE_PROGRAMS_DIR to the image's directory of gybe and gybe-cni";
    let image = Image::read(&settings.environment().image)
        .map_err(|why| CommandError::because(failure, why).with_hint(hint))?;
    let probe = ProbeCache::at(&settings.environment().probe);
    Ok(ReconcileConfig {
        settings,
        image,
        probe,
        report_wait: REPORT_WAIT,
        // Only the DaemonSet's pod has a container `repair`; by hand, perhaps nothing reports.
        waits_for_report: if as_a_pod { ReportWait::Entry } else { ReportWait::Move },
        grace_period: GRACE_PERIOD,
    })
}

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
