//! istio-cni, from the chart of Istio's module.

use std::path::Path;

use gybe_integration::failure::Failure;

use super::images::{HUB, TAG};
use super::istio::NAMESPACE;
use crate::cluster::Cluster;

/// Installs istio-cni, and waits until its agent is ready.
pub(super) fn install(cluster: &Cluster, charts: &Path) -> Result<(), Failure> {
    let chart = charts.join("istio-cni").to_string_lossy().into_owned();
    let (hub, tag) = (format!("global.hub={HUB}"), format!("global.tag={TAG}"));
    let install = ["install", "istio-cni", &chart, "--namespace", NAMESPACE];
    let values = ["--set", &hub, "--set", &tag, "--set", "global.imagePullPolicy=Never"];
    cluster.run("helm", &[&install[..], &values, &["--wait", "--timeout", "180s"]].concat()).map(drop)
}

/// Uninstalls istio-cni, and waits until its agent has ended.
pub(super) fn uninstall(cluster: &Cluster) -> Result<(), Failure> {
    let uninstall = ["uninstall", "istio-cni", "--namespace", NAMESPACE, "--wait", "--timeout", "180s"];
    cluster.run("helm", &uninstall).map(drop)
}
