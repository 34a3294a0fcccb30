//! A node that gets Gybe after its pods: Istio's validation container refuses a pod that is not redirected, Gybe
//! redirects it, and istiod removes the node's taint when Gybe's agent is ready.

use gybe_bench::report::Report;
use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use super::Mesh;
use super::application::{
    self, MESHED, NOT_REDIRECTED, READY, create, get, pod, service, wait_for_validation, wait_until_ready,
};
use crate::api::wait_at_most;
use crate::checks::Checks;
use crate::cluster::Cluster;
use crate::network::NODE;

const TAINT: &str = "cni.istio.io/not-ready";
/// A pod that starts before Gybe, and one that the taint keeps off the node.
const EARLY: &str = "early";
const KEPT_OFF: &str = "kept-off";

pub(super) fn run(mesh: &Mesh) -> Result<Report, Failure> {
    let (cluster, workstation) = (&mesh.cluster, &mesh.workstation);
    let mut checks = Checks::default();
    create(workstation, MESHED, &pod(EARLY))?;
    let exit_code = wait_for_validation(workstation, (MESHED, EARLY))?;
    let what = "exit code of istio-validation in a pod that started before Gybe";
    checks.equal(what, &exit_code, &NOT_REDIRECTED);

    let node = format!("/api/v1/nodes/{NODE}");
    let taint = json!({ "key": TAINT, "effect": "NoSchedule" });
    cluster.api.patch(&node, &json!({ "spec": { "taints": [taint] } }))?;
    create(workstation, MESHED, &pod(KEPT_OFF))?;
    wait_at_most(READY, "the scheduler has found no node", || {
        let pod = get(workstation, (MESHED, KEPT_OFF))?.unwrap_or_default();
        let conditions =
            pod.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
        Ok(conditions.iter().any(|it| it.get("reason").and_then(Value::as_str) == Some("Unschedulable")))
    })?;
    checks.equal("taints of the node without Gybe", &taints(cluster, &node)?, &vec![TAINT.to_owned()]);

    mesh.ensure_gybe()?;
    wait_until_ready(workstation, (MESHED, KEPT_OFF))?;
    checks.equal("taints of the node when Gybe is ready", &taints(cluster, &node)?, &Vec::new());
    wait_until_ready(workstation, (MESHED, EARLY))?;
    for (from, to) in [(KEPT_OFF, EARLY), (EARLY, KEPT_OFF)] {
        checks.passes(&format!("{from} to {to}"), workstation, [from, to], &service((MESHED, to)))?;
    }
    application::delete(workstation, &[(MESHED, EARLY), (MESHED, KEPT_OFF)])?;
    Ok(checks.report("A node that gets Gybe after its pods"))
}

fn taints(cluster: &Cluster, node: &str) -> Result<Vec<String>, Failure> {
    let node = cluster.api.get(node)?.unwrap_or_default();
    let taints = node.pointer("/spec/taints").and_then(Value::as_array).cloned().unwrap_or_default();
    let keys = taints.iter().filter_map(|taint| taint.get("key").and_then(Value::as_str));
    Ok(keys.map(str::to_owned).collect())
}
