//! istio-cni, from the chart of Istio's module: its values, and waiting for its agent.

use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use super::images::{HUB, TAG};
use super::istio::NAMESPACE;
use crate::cluster::Cluster;

/// A namespace that an operator excludes.
pub(super) const EXCLUDED: &str = "excluded-by-istio-cni";

/// The values of istio-cni's chart as an operator has them: where the images are, and an excluded namespace.
pub(super) fn values() -> Value {
    json!({
        "excludeNamespaces": ["kube-system", EXCLUDED],
        "global": { "hub": HUB, "tag": TAG, "imagePullPolicy": "Never" },
    })
}

/// The same as values of Gybe's chart, as `gybe migrate values` writes them below its comments.
pub(super) fn translated_values() -> String {
    format!(
        "image:\n  pullPolicy: \"Never\"\nsettings:\n  exclude_namespaces: [\"kube-system\",\"{EXCLUDED}\"]\n"
    )
}

/// Waits until the agent of the applied version is ready on each of its nodes.
pub(super) fn roll_out(cluster: &Cluster) -> Result<(), Failure> {
    let rollout = ["-n", NAMESPACE, "rollout", "status", "daemonset", "istio-cni-node", "--timeout=180s"];
    cluster
        .run("kubectl", &rollout)
        .map(drop)
        .map_err(|error| cluster.with_pods(&error, NAMESPACE, &["-l", "k8s-app=istio-cni-node"]))
}

/// Returns the agents' pods.
pub(super) fn pods(cluster: &Cluster) -> Result<Vec<Value>, Failure> {
    cluster.api.list(&format!("/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=k8s-app%3Distio-cni-node"))
}
