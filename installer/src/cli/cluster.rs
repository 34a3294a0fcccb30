//! The cluster and the node of a command that queries the API server.

use super::invocation::Context;
use super::output::CommandError;
use crate::agent::ClusterNode;
use crate::agent::cluster::{Cluster, ServiceAccount};
use crate::host::settings::SERVICE_ACCOUNT;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(super) struct ClusterArgs {
    /// Use the cluster of this file's current context [default: the cluster in which it runs as a pod]
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// The name of the node [default: KUBERNETES_NODE_NAME, or NODE_NAME, or this host's name]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
}

impl ClusterArgs {
    pub(super) fn cluster_node(&self, context: &Context) -> Result<ClusterNode, CommandError> {
        Ok(ClusterNode { cluster: self.cluster(context)?, node: self.node(context)? })
    }

    fn cluster(&self, context: &Context) -> Result<Cluster, CommandError> {
        if let Some(kubeconfig) = &self.kubeconfig {
            return Ok(Cluster::Kubeconfig { path: kubeconfig.clone(), context: None });
        }
        own(context).ok_or_else(|| {
            CommandError::new("no cluster is named, and gybe does not run in a pod of a cluster")
                .with_hint("name a cluster with --kubeconfig")
        })
    }

    fn node(&self, context: &Context) -> Result<String, CommandError> {
        let variable = |name: &str| context.environment.get(name).filter(|name| !name.is_empty()).cloned();
        let given = self.node_name.clone();
        let given = given.or_else(|| variable("KUBERNETES_NODE_NAME")).or_else(|| variable("NODE_NAME"));
        // The kubelet uses its host's name in lower case.
        let host = || Some(nix::unistd::gethostname().ok()?.into_string().ok()?.to_lowercase());
        given.or_else(host).ok_or_else(|| {
            CommandError::new("this host has no name that could be a node name")
                .with_hint("name the node with --node-name, or KUBERNETES_NODE_NAME")
        })
    }
}

/// Returns the cluster in which the command runs as a pod.
pub(super) fn own(context: &Context) -> Option<Cluster> {
    let variable = |name| context.environment.get(name).cloned();
    let directory = variable("GYBE_SERVICE_ACCOUNT_DIR").unwrap_or_else(|| SERVICE_ACCOUNT.to_owned());
    Some(Cluster::Own(ServiceAccount {
        host: variable("KUBERNETES_SERVICE_HOST")?,
        port: variable("KUBERNETES_SERVICE_PORT")?,
        directory: directory.into(),
    }))
}
