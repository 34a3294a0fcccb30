//! The cluster and the node of a command that queries the API server.

use super::Context;
use super::output::CommandError;
use crate::cluster::{Cluster, ClusterNode, ServiceAccount};
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

/// The cluster of a command that runs on a workstation.
#[derive(Debug, Args)]
pub(super) struct KubeconfigArgs {
    /// The kubeconfig [default: KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: its current context]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl KubeconfigArgs {
    pub(super) fn cluster(&self, context: &Context) -> Result<Cluster, CommandError> {
        let variable = |name| context.environment.get(name).filter(|value| !value.is_empty());
        let path = match (&self.kubeconfig, variable("KUBECONFIG"), variable("HOME")) {
            (Some(path), ..) => Ok(path.clone()),
            (None, Some(paths), _) if paths.contains(':') => {
                Err(CommandError::new("KUBECONFIG names several files")
                    .with_hint("name one with --kubeconfig"))
            }
            (None, Some(path), _) => Ok(path.into()),
            (None, None, Some(home)) => Ok(PathBuf::from(home).join(".kube/config")),
            (None, None, None) => {
                Err(CommandError::new("no kubeconfig is named").with_hint("name one with --kubeconfig"))
            }
        }?;
        Ok(Cluster::Kubeconfig { path, context: self.context.clone() })
    }

    /// Returns the beginning of a kubectl command for the same cluster.
    pub(super) fn kubectl(&self) -> String {
        let file =
            self.kubeconfig.as_ref().map(|path| format!(" --kubeconfig={:?}", path.display().to_string()));
        let context = self.context.as_ref().map(|name| format!(" --context={name:?}"));
        ["kubectl".to_owned()].into_iter().chain(file).chain(context).collect()
    }

    /// Returns the cluster in which the command runs as a pod, if no kubeconfig is named.
    pub(super) fn cluster_or_own(&self, context: &Context) -> Result<Cluster, CommandError> {
        let variable = context.environment.get("KUBECONFIG").is_some_and(|value| !value.is_empty());
        let is_named = self.kubeconfig.is_some() || self.context.is_some() || variable;
        own(context).filter(|_| !is_named).map_or_else(|| self.cluster(context), Ok)
    }
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
