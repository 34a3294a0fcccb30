//! A reboot of the node: pods, Gybe's agent and its sockets are gone, its entry and programs are there. Afterwards
//! every pod is redirected again.

use gybe_bench::report::Report;
use gybe_integration::failure::Failure;
use serde_json::Value;

use super::Mesh;
use super::application::{self, MESHED, Name, PLAIN, pod, request, service, start, wait_for_pod};
use super::checks::Checks;
use super::commands;
use super::load::{NEXT_ATTEMPT, Pair};
use crate::cluster::{Cluster, has_condition};
use crate::components;

const PAIR: Pair = Pair { client: "reboot-client", server: "reboot-server", fresh: "reboot-fresh" };

/// containerd's state and sockets, which the node has before Gybe.
const RUNTIME: [&str; 3] =
    ["/run/gybe/state", "/run/gybe/containerd.sock", "/run/gybe/containerd.sock.ttrpc"];

pub(super) fn run(mesh: &mut Mesh) -> Result<Report, Failure> {
    let mut checks = Checks::default();
    mesh.ensure_gybe()?;
    PAIR.start(&mesh.workstation)?;
    start(&mesh.workstation, PLAIN, &pod(PAIR.client))?;
    let pods = [PAIR.pods().as_slice(), &[(PLAIN, PAIR.client)]].concat();

    let mut kept = mesh.before.in_run_directory();
    kept.retain(|path| !RUNTIME.contains(&path.as_str()));
    mesh.cluster.reboot(&kept)?;
    mesh.cluster.start_component("kube-proxy", &components::proxy(mesh.proxy_mode))?;

    let (cluster, workstation) = (&mesh.cluster, &mesh.workstation);
    for pod in pods.iter().copied() {
        wait_for_pod(workstation, pod, NEXT_ATTEMPT, "is ready again", |pod| {
            (restarts(pod) > 0 && has_condition(pod, "Ready")).then_some(())
        })?;
    }
    mesh.wait_for_backend("nft")?;
    let what = "after a reboot";
    checks.redirected(what, &commands::verify(workstation, &PAIR.pods())?, &[PAIR.client, PAIR.server]);
    PAIR.passes_between(workstation, &mut checks, what)?;
    let answer = request(workstation, (PLAIN, PAIR.client), &service((MESHED, PAIR.server)))?;
    let title = format!("{what}: a client without a sidecar");
    checks.holds(&title, answer.is_refused(), &answer, "refused");
    start(workstation, MESHED, &pod(PAIR.fresh))?;
    PAIR.passes(workstation, &mut checks, what, PAIR.fresh)?;
    checks.equal(&format!("{what}: pods that are not ready"), &not_ready(cluster)?, &Vec::new());
    let all: Vec<Name<'_>> = pods.into_iter().chain([(MESHED, PAIR.fresh)]).collect();
    application::delete(workstation, &all)?;
    Ok(checks.report("A reboot of the node"))
}

/// Returns how often the application of a pod was started again.
fn restarts(pod: &Value) -> u64 {
    let containers = pod.pointer("/status/containerStatuses").and_then(Value::as_array);
    let counts = containers.into_iter().flatten().filter_map(|it| it.get("restartCount")?.as_u64());
    counts.min().unwrap_or_default()
}

/// Returns the pods of the cluster that are not ready.
fn not_ready(cluster: &Cluster) -> Result<Vec<String>, Failure> {
    let pods = cluster.api.list("/api/v1/pods")?;
    let names = pods.iter().filter(|pod| !has_condition(pod, "Ready"));
    Ok(names.map(crate::storm::name_of).collect())
}
