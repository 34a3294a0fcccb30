//! A reboot of a node: pods, Gybe's agent and its sockets are gone, its entry and programs are there. Afterwards
//! every pod is redirected again.

use gybe_bench::report::Report;
use gybe_integration::failure::Failure;
use serde_json::Value;

use super::Mesh;
use super::application::{self, MESHED, Name, Nodes, PLAIN, pod, request, service, start, wait_for_pod};
use super::commands;
use super::load::{NEXT_ATTEMPT, Pair};
use crate::checks::Checks;
use crate::cluster::{Cluster, has_condition};
use crate::components;

const PAIR: Pair = Pair { client: "reboot-client", server: "reboot-server", fresh: "reboot-fresh" };

/// Pods of another node than the one that boots.
const ELSEWHERE: Pair =
    Pair { client: "elsewhere-client", server: "elsewhere-server", fresh: "elsewhere-fresh" };

/// containerd's state and sockets, which the node has before Gybe.
const RUNTIME: [&str; 3] =
    ["/run/gybe/state", "/run/gybe/containerd.sock", "/run/gybe/containerd.sock.ttrpc"];

pub(super) fn run(mesh: &mut Mesh) -> Result<Report, Failure> {
    let mut checks = Checks::default();
    mesh.ensure_gybe()?;
    let (nodes, node) = (mesh.apart(), mesh.last());
    PAIR.start(&mesh.workstation, nodes)?;
    start(&mesh.workstation, PLAIN, &nodes.server(pod(PAIR.client)))?;
    let pods = [PAIR.pods().as_slice(), &[(PLAIN, PAIR.client)]].concat();
    let mut rebooted = vec![(MESHED, PAIR.server), (PLAIN, PAIR.client)];
    if let Nodes::On { clients, .. } = nodes {
        ELSEWHERE.start(&mesh.workstation, Nodes::On { clients, servers: clients })?;
    } else {
        rebooted.push((MESHED, PAIR.client));
    }

    let mut kept = mesh.before.in_run_directory();
    kept.retain(|path| !RUNTIME.contains(&path.as_str()));
    let Mesh { cluster, workstation, proxy_mode, .. } = mesh;
    let mut reboot = |_: &mut Checks| {
        cluster.node_mut(node)?.reboot(&kept)?;
        cluster.node_mut(node)?.start_component("kube-proxy", &components::proxy(*proxy_mode, node))?;
        cluster.wait_for_node(node)?;
        for pod in rebooted.iter().copied() {
            wait_for_pod(workstation, pod, NEXT_ATTEMPT, "is ready again", |pod| {
                (restarts(pod) > 0 && has_condition(pod, "Ready")).then_some(())
            })?;
        }
        Ok(())
    };
    if mesh.nodes.len() > 1 {
        ELSEWHERE.load_during(workstation, &mut checks, "a reboot of another node", reboot)?;
        application::delete(workstation, &ELSEWHERE.pods())?;
    } else {
        reboot(&mut checks)?;
    }
    let (cluster, workstation) = (&mesh.cluster, &mesh.workstation);
    mesh.wait_for_backend("nft")?;
    let what = "after a reboot";
    checks.redirected(what, &commands::verify(workstation, &PAIR.pods())?, &[PAIR.client, PAIR.server]);
    PAIR.passes_between(workstation, &mut checks, what)?;
    let answer = request(workstation, (PLAIN, PAIR.client), &service((MESHED, PAIR.server)))?;
    let title = format!("{what}: a client without a sidecar");
    checks.holds(&title, answer.is_refused(), &answer, "refused");
    start(workstation, MESHED, &mesh.apart().server(pod(PAIR.fresh)))?;
    PAIR.passes(workstation, &mut checks, what, PAIR.fresh)?;
    checks.equal(&format!("{what}: pods that are not ready"), &not_ready(cluster)?, &Vec::new());
    let all: Vec<Name<'_>> = pods.into_iter().chain([(MESHED, PAIR.fresh)]).collect();
    application::delete(workstation, &all)?;
    Ok(checks.report("A reboot of a node"))
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
