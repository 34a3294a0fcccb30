//! istiod, from the charts of Istio's module.

use std::fs;
use std::path::Path;

use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use super::gybe;
use super::images::{HUB, TAG};
use crate::cluster::Cluster;

pub(super) const NAMESPACE: &str = "istio-system";
/// The file of istiod's values, on the node.
const VALUES: &str = "/run/gybe/istiod.json";

/// Installs Istio's custom resources and istiod, and waits until istiod is ready.
pub(super) fn install(cluster: &Cluster, charts: &Path) -> Result<(), Failure> {
    fs::write(cluster.host().path(VALUES), istiod_values().to_string())?;
    let chart = |name: &str| charts.join(name).to_string_lossy().into_owned();
    let helm = |name: &str, chart: &str, more: &[&str]| {
        let install = ["install", name, chart, "--namespace", NAMESPACE, "--create-namespace"];
        cluster.run("helm", &[&install, more].concat()).map(drop)
    };
    helm("base", &chart("base"), &[])?;
    helm(
        "istiod",
        &chart("istio-control/istio-discovery"),
        &["--values", VALUES, "--wait", "--timeout", "120s"],
    )
    .map_err(|error| cluster.with_pods(&error, NAMESPACE, &["-l", "app=istiod"]))
}

/// Upgrades istiod to the values of the installation and these, and waits until it uses them.
pub(super) fn upgrade(cluster: &Cluster, charts: &Path, values: &[&str]) -> Result<(), Failure> {
    let chart = charts.join("istio-control/istio-discovery").to_string_lossy().into_owned();
    let upgrade = ["upgrade", "istiod", &chart, "--namespace", NAMESPACE, "--values", VALUES];
    let values = values.iter().flat_map(|value| ["--set", value]).collect::<Vec<_>>();
    cluster.run("helm", &[&upgrade[..], &values].concat())?;
    // The kubelet updates the file of a ConfigMap a minute later.
    let rollout = ["rollout", "restart", "deployment/istiod", "--namespace", NAMESPACE];
    cluster.run("kubectl", &rollout)?;
    let status = ["rollout", "status", "deployment/istiod", "--namespace", NAMESPACE, "--timeout=120s"];
    cluster.run("kubectl", &status).map(drop)
}

/// The values of istiod's chart: those that docs/INSTALL.md requires, and those for an Envoy without Istio's filters.
fn istiod_values() -> Value {
    let requests = json!({ "requests": { "cpu": "1m", "memory": "16Mi" } });
    json!({
        "global": {
            "hub": HUB,
            "tag": TAG,
            "imagePullPolicy": "Never",
            "proxy": { "resources": requests },
            "defaultPodDisruptionBudget": { "enabled": false },
        },
        "pilot": {
            "cni": { "enabled": true },
            "autoscaleEnabled": false,
            "resources": requests,
            "env": {
                "PILOT_ENABLE_ALPN_FILTER": "false",
                "PILOT_ENABLE_METADATA_EXCHANGE": "false",
                "PILOT_ENABLE_TELEMETRY_LABEL": "false",
                "ISTIO_DUAL_STACK": "true",
            },
            "taint": { "enabled": true, "namespace": gybe::NAMESPACE },
        },
        "ipFamilyPolicy": "PreferDualStack",
        "telemetry": { "enabled": false },
        "meshConfig": {
            "accessLogFile": "/dev/stdout",
            "defaultConfig": { "proxyMetadata": { "ISTIO_DUAL_STACK": "true" } },
        },
    })
}
