//! `gybe node`: the node agent, in the foreground.

use super::answer::{Answer, Failure};
use super::init::Surroundings;
use crate::agent::cluster::{Cluster, ServiceAccount, WatchedPods};
use crate::agent::{
    self, Agent, ClusterNode, LiveSettings, ManifestPods, NodeError, PodLookup, ReconcileConfig,
};
use crate::host::image::Image;
use crate::host::settings::{GRACE_PERIOD, SERVICE_ACCOUNT};
use clap::Args;
use gybe_netfilter::hint::Hint;
use gybe_plugin::conf::SOCKET;
use gybe_plugin::probe_cache::ProbeCache;
use serde_json::json;
use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

/// How long the agent waits for what the probe beside it says about the runtimes. The probe needs some seconds.
const REPORT_WAIT: Duration = Duration::from_secs(60);

/// Run the node agent: keep gybe-cni in this node's chain, tell it about this node's pods, and print
/// its log lines on stderr.
///
/// Knows pods by a watch of the cluster it runs in as a pod, or of another by --kubeconfig, or by
/// manifests in files; with one of these two it only tells about pods, unless --install. Serves until
/// SIGTERM, and leaves everything in place then. Beside the socket for facts stands log.sock, to which
/// gybe-cni sends its log. Settings: docs/CONFIGURE.md.
#[derive(Debug, Args)]
pub(super) struct NodeArgs {
    /// Know pods by the manifests in this directory, read again when they change; needs no cluster
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "node_name"])]
    pods_from: Option<PathBuf>,
    /// The cluster to watch, by this file's current context; by default the one this runs in as a pod
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Whose pods [default: KUBERNETES_NODE_NAME, or NODE_NAME, or this host's name]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Where gybe-cni asks, as its facts.socket says [default: /run/gybe/facts.sock, or in
    /// CNI_AGENT_RUN_DIR]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Whether to keep gybe-cni in this node's chain [default: true, as a pod of the cluster; false with
    /// --pods-from or --kubeconfig]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    install: Option<bool>,
}

impl NodeArgs {
    pub(super) fn run(&self, surroundings: &Surroundings) -> Result<Answer, Failure> {
        let home = self.home(surroundings)?;
        let as_a_pod = self.pods_from.is_none() && self.kubeconfig.is_none();
        let reconcile =
            self.install.unwrap_or(as_a_pod).then(|| reconcile(surroundings, as_a_pod)).transpose()?;
        let facts = self.facts(reconcile.as_ref())?;
        let pods = self.pods(home.as_ref())?;
        match agent::serve(Agent { pods: pods.as_ref(), facts: &facts, reconcile, home }) {
            Ok(()) => Ok(Answer::yes("", json!({ "stopped": true }))),
            Err(why) => Err(Failure::hinted("the node agent cannot run", why)),
        }
    }

    /// What the agent writes into the entry, and where it serves, must be one.
    fn facts(&self, reconcile: Option<&ReconcileConfig>) -> Result<PathBuf, Failure> {
        match (reconcile, &self.socket) {
            (None, socket) => Ok(socket.clone().unwrap_or_else(|| SOCKET.into())),
            (Some(config), None) => Ok(config.settings.ground().facts_socket()),
            (Some(_), Some(_)) => Err(Failure::new("--socket is for an agent that only tells about pods")
                .with_hint("set CNI_AGENT_RUN_DIR: the entry names the socket there")),
        }
    }

    fn pods(&self, home: Option<&ClusterNode>) -> Result<Box<dyn PodLookup>, Failure> {
        match (&self.pods_from, home) {
            (Some(directory), _) => Ok(Box::new(ManifestPods::new(directory))),
            (None, Some(ClusterNode { cluster, node })) => match WatchedPods::start(cluster, node) {
                Ok(watched) => Ok(Box::new(watched)),
                Err(why) => Err(Failure::because("the node agent cannot ask its cluster", why)),
            },
            (None, None) => Err(Failure::new("nobody to ask about pods")),
        }
    }

    /// None where manifests take a cluster's place.
    fn home(&self, surroundings: &Surroundings) -> Result<Option<ClusterNode>, Failure> {
        if self.pods_from.is_some() {
            return Ok(None);
        }
        Ok(Some(ClusterNode { cluster: self.cluster(surroundings)?, node: self.node(surroundings)? }))
    }

    fn cluster(&self, surroundings: &Surroundings) -> Result<Cluster, Failure> {
        if let Some(kubeconfig) = &self.kubeconfig {
            return Ok(Cluster::Kubeconfig(kubeconfig.clone()));
        }
        let names = ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"];
        match names.map(|name| surroundings.environment.get(name).cloned()) {
            [Some(host), Some(port)] => {
                let directory = surroundings.environment.get("GYBE_SERVICE_ACCOUNT_DIR");
                let directory = directory.map_or(SERVICE_ACCOUNT, String::as_str).into();
                Ok(Cluster::Own(ServiceAccount { host, port, directory }))
            }
            _ => Err(Failure::new("nobody to ask about pods: this runs in no pod of a cluster")
                .with_hint("name a cluster by --kubeconfig, or manifests by --pods-from")),
        }
    }

    fn node(&self, surroundings: &Surroundings) -> Result<String, Failure> {
        let told = |name: &str| surroundings.environment.get(name).filter(|name| !name.is_empty()).cloned();
        let given = self.node_name.clone();
        let given = given.or_else(|| told("KUBERNETES_NODE_NAME")).or_else(|| told("NODE_NAME"));
        // The kubelet takes its host's name in small letters.
        let host = || Some(nix::unistd::gethostname().ok()?.into_string().ok()?.to_lowercase());
        given.or_else(host).ok_or_else(|| {
            Failure::new("this host has no name that could be a node's")
                .with_hint("name the node by --node-name, or KUBERNETES_NODE_NAME")
        })
    }
}

impl Hint for NodeError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Serve { source, .. } => source.hint(),
            Self::Wait { .. } => None,
        }
    }
}

/// What it takes to keep the node. Whatever is wrong with the environment is told at once, and nothing is
/// done to the node by half of it.
fn reconcile(surroundings: &Surroundings, as_a_pod: bool) -> Result<ReconcileConfig, Failure> {
    let cannot = "the node agent cannot start";
    let environment = surroundings.environment.clone().into_iter().collect();
    let settings = LiveSettings::start(environment).map_err(|why| Failure::because(cannot, why))?;
    let hint = "let GYBE_PROGRAMS_DIR be the directory of the image that has gybe and gybe-cni";
    let image =
        Image::look(&settings.ground().image).map_err(|why| Failure::because(cannot, why).with_hint(hint))?;
    let probe = ProbeCache::at(&settings.ground().probe);
    // Elsewhere no probe runs beside it.
    let report_wait = if as_a_pod { REPORT_WAIT } else { Duration::ZERO };
    Ok(ReconcileConfig { settings, image, probe, report_wait, grace_period: GRACE_PERIOD })
}
