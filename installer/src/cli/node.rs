//! `gybe node`: the node agent, in the foreground.

use super::cluster::ClusterArgs;
use super::invocation::Context;
use super::output::{CommandError, CommandOutput};
use super::style::examples;
use crate::agent::pods::PodLookup;
use crate::agent::pods::WatchedPods;
use crate::agent::{self, Agent, LiveSettings, ManifestPods, NodeError, ReconcileConfig};
use crate::cluster::ClusterNode;
use crate::host::image::Image;
use crate::host::settings::GRACE_PERIOD;
use crate::lead::socket::ServeError;
use clap::Args;
use gybe_netfilter::model::Hint;
use gybe_plugin::conf::SOCKET;
use gybe_plugin::probe_cache::ProbeCache;
use serde_json::json;
use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

/// How long the agent waits for the runtime report of the container `repair`. The probe needs some seconds.
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
    /// The socket on which gybe-cni queries pods (its facts.socket) [default: /run/gybe/facts.sock, or in
    /// CNI_AGENT_RUN_DIR]
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
        let reconcile = self.install.unwrap_or(as_a_pod).then(|| reconcile(context, as_a_pod)).transpose()?;
        let facts = self.facts(reconcile.as_ref())?;
        let pods = self.pods(cluster_node.as_ref())?;
        match agent::serve(Agent { pods: pods.as_ref(), facts: &facts, reconcile, home: cluster_node }) {
            Ok(()) => Ok(CommandOutput::done("", json!({ "stopped": true }))),
            Err(why) => Err(CommandError::hinted("the node agent cannot run", why)),
        }
    }

    /// The socket that the agent serves must be the one that it writes into the entry.
    fn facts(&self, reconcile: Option<&ReconcileConfig>) -> Result<PathBuf, CommandError> {
        match (reconcile, &self.socket) {
            (None, socket) => Ok(socket.clone().unwrap_or_else(|| SOCKET.into())),
            (Some(reconcile), None) => Ok(reconcile.settings.environment().facts_socket()),
            (Some(_), Some(_)) => Err(CommandError::new("--socket is for an agent that only serves pods")
                .with_hint("set CNI_AGENT_RUN_DIR: the entry names the socket there".to_owned())),
        }
    }

    fn pods(&self, cluster_node: Option<&ClusterNode>) -> Result<Box<dyn PodLookup>, CommandError> {
        match (&self.pods_from, cluster_node) {
            (Some(directory), _) => Ok(Box::new(ManifestPods::new(directory))),
            (None, Some(ClusterNode { cluster, node })) => match WatchedPods::start(cluster, node) {
                Ok(watched) => Ok(Box::new(watched)),
                Err(why) => Err(CommandError::because("the node agent cannot watch its cluster", why)),
            },
            (None, None) => Err(CommandError::new("no source of pods")),
        }
    }

    /// Returns `None` if manifests replace the cluster.
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

/// Reads everything that reconciling the node needs. An error in the environment ends the agent before it changes
/// the node.
fn reconcile(context: &Context, as_a_pod: bool) -> Result<ReconcileConfig, CommandError> {
    let cannot = "the node agent cannot start";
    let environment = context.environment.clone().into_iter().collect();
    let settings = LiveSettings::start(environment).map_err(|why| CommandError::because(cannot, why))?;
    let hint = "set GYBE_PROGRAMS_DIR to the image's directory of gybe and gybe-cni";
    let image = Image::read(&settings.environment().image)
        .map_err(|why| CommandError::because(cannot, why).with_hint(hint))?;
    let probe = ProbeCache::at(&settings.environment().probe);
    // Outside the DaemonSet no such container runs.
    let report_wait = if as_a_pod { REPORT_WAIT } else { Duration::ZERO };
    Ok(ReconcileConfig { settings, image, probe, report_wait, grace_period: GRACE_PERIOD })
}
