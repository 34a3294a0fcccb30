//! istiod, from the charts of Istio's module.

use std::fs;
use std::path::Path;

use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use super::gybe;
use super::images::{HUB, TAG};
use crate::cluster::Cluster;

pub(super) const NAMESPACE: &str = "istio-system";

/// Installs Istio's custom resources and istiod, and waits until istiod is ready.
pub(super) fn install(cluster: &Cluster, charts: &Path) -> Result<(), Failure> {
    let values = "/run/gybe/istiod.json";
    fs::write(cluster.node.host().path(values), istiod_values().to_string())?;
    let chart = |name: &str| charts.join(name).to_string_lossy().into_owned();
    let helm = |name: &str, chart: &str, more: &[&str]| {
        let install = ["install", name, chart, "--namespace", NAMESPACE, "--create-namespace"];
        cluster.run("helm", &[&install, more].concat()).map(drop)
    };
    helm("base", &chart("base"), &[])?;
    helm(
        "istiod",
        &chart("istio-control/istio-discovery"),
        &["--values", values, "--wait", "--timeout", "120s"],
    )
    .map_err(|error| cluster.with_pods(&error, NAMESPACE, &["-l", "app=istiod"]))
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
        "telemetry": { "enabled": false },
        "meshConfig": {
            "accessLogFile": "/dev/stdout",
            "defaultConfig": { "proxyMetadata": { "ISTIO_DUAL_STACK": "true" } },
        },
    })
}
