//! istio-cni, from the chart of Istio's module.

use std::path::Path;

use gybe_integration::failure::Failure;

use super::images::{HUB, TAG};
use super::istio::NAMESPACE;
use crate::api::wait_until;
use crate::cluster::Cluster;

/// Installs istio-cni, and waits until its agent is ready.
pub(super) fn install(cluster: &Cluster, charts: &Path) -> Result<(), Failure> {
    let chart = charts.join("istio-cni").to_string_lossy().into_owned();
    let (hub, tag) = (format!("global.hub={HUB}"), format!("global.tag={TAG}"));
    let install = ["install", "istio-cni", &chart, "--namespace", NAMESPACE];
    let values = ["--set", &hub, "--set", &tag, "--set", "global.imagePullPolicy=Never"];
    cluster.run("helm", &[&install[..], &values].concat())?;
    let rollout = ["rollout", "status", "daemonset", "istio-cni-node", "--timeout=120s"];
    cluster
        .run("kubectl", &[&["-n", NAMESPACE], &rollout[..]].concat())
        .map(drop)
        .map_err(|error| cluster.with_pods(&error, NAMESPACE, &["-l", "k8s-app=istio-cni-node"]))
}

/// Uninstalls istio-cni, and waits until its agent has ended.
pub(super) fn uninstall(cluster: &Cluster) -> Result<(), Failure> {
    cluster.run("helm", &["uninstall", "istio-cni", "--namespace", NAMESPACE])?;
    let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=k8s-app%3Distio-cni-node");
    wait_until("istio-cni's agent has ended", || Ok(cluster.api.list(&pods)?.is_empty()))
}
