//! `gybe node`: the node agent, in the foreground.

use super::answer::{Answer, Failure};
use super::init::Surroundings;
use crate::kube::{Cluster, SERVICE_ACCOUNT, ServiceAccount, WatchedPods};
use crate::node::{self, Pods, PodsFrom};
use clap::Args;
use gybe_plugin::conf::SOCKET;
use serde_json::json;
use std::path::PathBuf;

/// Run the node agent: tell gybe-cni about this node's pods, and print its log lines on stderr.
///
/// Knows pods by a watch of the cluster it runs in as a pod, or of another by --kubeconfig, or by
/// manifests in files. Serves until SIGTERM. Beside the socket for facts stands log.sock, to which
/// gybe-cni sends its log.
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
    /// Where gybe-cni asks, as its facts.socket says
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
}

impl NodeArgs {
    pub(super) fn run(&self, surroundings: &Surroundings) -> Result<Answer, Failure> {
        let pods = self.pods(surroundings)?;
        match node::serve(pods.as_ref(), &self.socket) {
            Ok(()) => Ok(Answer::yes("", json!({ "stopped": true }))),
            Err(why) => Err(Failure::because("the node agent cannot run", why)),
        }
    }

    fn pods(&self, surroundings: &Surroundings) -> Result<Box<dyn Pods>, Failure> {
        if let Some(directory) = &self.pods_from {
            return Ok(Box::new(PodsFrom::new(directory)));
        }
        let (cluster, node) = (self.cluster(surroundings)?, self.node(surroundings)?);
        let watched = WatchedPods::start(&cluster, &node);
        Ok(Box::new(watched.map_err(|why| Failure::because("the node agent cannot ask its cluster", why))?))
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
                .hinting(Some("name a cluster by --kubeconfig, or manifests by --pods-from".to_owned()))),
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
                .hinting(Some("name the node by --node-name, or KUBERNETES_NODE_NAME".to_owned()))
        })
    }
}
