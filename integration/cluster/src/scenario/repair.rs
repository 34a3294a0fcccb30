//! Running pods that lost their rules, with a real API server: in each mode of the setting `repair`; and what the
//! policies of the components `repair-label` and `repair-delete` refuse.

use std::fs;
use std::mem;
use std::path::Path;
use std::time::{Duration, Instant};

use gybe_bench::report::{Report, Table, cells};
use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use super::Releases;
use super::admission::{AdmissionChecks, OTHER_NODE, create_other_node, delete_component, delete_other_node};
use crate::agent::{AgentApi, GYBE};
use crate::api::{Api, SETTING, wait_at_most, wait_until};
use crate::cluster::{Cluster, ClusterNode, has_condition};
use crate::network::{NODE, NodeNumber};
use crate::pods::{Kind, Reached, on, pod};

const LABEL: &str = "cni.istio.io/uninitialized";
/// A pod of the other node.
const ELSEWHERE: &str = "elsewhere";
/// A pod of this node, outside of the mesh.
const HERE: &str = "here";

pub(super) fn run(cluster: &Cluster, releases: &Releases) -> Result<Report, Failure> {
    create_other_node(cluster, &json!({}))?;
    let elsewhere = on(OTHER_NODE, pod(Kind::Plain, "default", ELSEWHERE, ELSEWHERE));
    create(cluster, &elsewhere)?;
    create(cluster, &on(NODE, pod(Kind::Plain, "default", HERE, HERE)))?;
    wait_until_ready(cluster, HERE)?;
    let (mut times, mut requests) = (Vec::new(), AdmissionChecks::default());
    times.extend(lose_rules(cluster, "repair", |name| Ok(is_redirected(&get(cluster, name)?)))?);
    for (mode, is_done) in [("label", is_labelled as fn(&Value) -> bool), ("delete", Value::is_null)] {
        let component = format!("repair-{mode}");
        releases.installed.install_with(cluster, &component, ("repair", mode))?;
        times.extend(lose_rules(cluster, mode, |name| Ok(is_done(&get(cluster, name)?)))?);
        changes_with_the_agents_token(cluster, mode, &mut requests)?;
        delete_component(cluster, &component)?;
    }
    releases.installed.install(cluster)?;
    // The other node has no kubelet, which would confirm that the pod has ended.
    cluster.run("kubectl", &["delete", "pod", "--force", "--grace-period=0", ELSEWHERE])?;
    delete_other_node(cluster)?;
    let (requests, as_expected) =
        requests.report("Requests about pods with the agent's token", ["Token", "Request"]);
    let row = |(mode, node, time): &(&str, NodeNumber, Duration)| {
        vec![(*mode).to_owned(), node.to_string(), format!("{:.2}", time.as_secs_f64())]
    };
    Ok(Report {
        tables: vec![
            Table {
                title: "A running pod loses its rules".into(),
                head: cells(["`repair`", "Node", "Seconds until it is redirected, labelled or deleted"]),
                rows: times.iter().map(row).collect(),
            },
            requests,
        ],
        targets: vec![as_expected],
    })
}

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/default/pods/{name}")
}

fn create(cluster: &Cluster, pod: &Value) -> Result<(), Failure> {
    cluster.api.create("/api/v1/namespaces/default/pods", pod).map(drop)
}

/// Returns the pod; null when there is none.
fn get(cluster: &Cluster, name: &str) -> Result<Value, Failure> {
    Ok(cluster.api.get(&path(name))?.unwrap_or_default())
}

fn wait_until_ready(cluster: &Cluster, name: &str) -> Result<(), Failure> {
    wait_until("the pod is ready", || Ok(has_condition(&get(cluster, name)?, "Ready")))
}

fn is_redirected(pod: &Value) -> bool {
    Reached::by(pod) == Reached::expected(Kind::Meshed)
}

fn is_labelled(pod: &Value) -> bool {
    pod.pointer("/metadata/labels").and_then(|labels| labels.get(LABEL)).is_some_and(|value| value == "true")
}

/// Starts a pod on each node in this mode, removes their rules, and returns how long each took until `is_done`.
fn lose_rules<'m>(
    cluster: &Cluster,
    mode: &'m str,
    mut is_done: impl FnMut(&str) -> Result<bool, Failure>,
) -> Result<Vec<(&'m str, NodeNumber, Duration)>, Failure> {
    let mut broken = Vec::new();
    for node in cluster.nodes() {
        let name = format!("broken-{mode}-{}", node.number);
        start(cluster, node, mode, &name)?;
        broken.push((node, name));
    }
    for (node, name) in &broken {
        node.host().run(Path::new(GYBE), &["remove", "--pod", &format!("default/{name}")])?;
    }
    let before = Instant::now();
    let mut times = Vec::new();
    wait_until("the pods without rules are handled", || {
        for (node, name) in mem::take(&mut broken) {
            if !is_done(&name)? {
                broken.push((node, name));
                continue;
            }
            times.push((mode, node.number, before.elapsed()));
            if mode != "delete" {
                cluster.api.delete(&path(&name))?;
            }
        }
        Ok(broken.is_empty())
    })?;
    Ok(times)
}

/// Starts a pod of the mesh on a node in this mode.
fn start(cluster: &Cluster, node: &ClusterNode, mode: &str, name: &str) -> Result<(), Failure> {
    let setting = node.host().path("/run/gybe/repair.json");
    wait_at_most(SETTING, "the setting reaches the process that repairs", || {
        let text = fs::read_to_string(&setting).unwrap_or_default();
        let kept = serde_json::from_str::<Value>(&text).unwrap_or_default();
        Ok(kept.get("repair").is_some_and(|kept| kept == mode))
    })?;
    create(cluster, &on(&node.number.to_string(), pod(Kind::Meshed, "default", name, name)))?;
    wait_until_ready(cluster, name)?;
    let pod = get(cluster, name)?;
    if is_redirected(&pod) { Ok(()) } else { Err(Failure::new(format!("{name}: {:?}", Reached::by(&pod)))) }
}

/// Adds requests with the tokens of the agent's pod and of no pod.
fn changes_with_the_agents_token(
    cluster: &Cluster,
    mode: &str,
    checks: &mut AdmissionChecks,
) -> Result<(), Failure> {
    let AgentApi { bound, unbound } = AgentApi::connect(cluster)?;
    let component = format!("repair-{mode}");
    let mut add = |expected: &str, token: &str, request: String, response: Result<Value, Failure>| {
        checks.add(&component, expected, response, [token, &request]);
    };
    let (of_pod, of_none) = ("of the agent's pod", "of no pod");
    if mode == "delete" {
        let mut delete = |expected, token, api: &Api, name| {
            add(expected, token, format!("delete {name}"), api.delete(&path(name)).map(|()| Value::Null));
        };
        delete("refused", of_pod, &bound, ELSEWHERE);
        delete("refused", of_none, &unbound, HERE);
        delete("allowed", of_pod, &bound, HERE);
        return Ok(());
    }
    let mut patch = |expected, token, api: &Api, name, patch: &Value| {
        let response = api.patch(&format!("{}/status", path(name)), patch);
        add(expected, token, format!("patch {name}/status `{patch}`"), response);
    };
    let label = json!({ "metadata": { "labels": { LABEL: "true" } } });
    patch("refused", of_pod, &bound, ELSEWHERE, &label);
    patch("refused", of_none, &unbound, HERE, &label);
    patch("allowed", of_pod, &bound, HERE, &label);
    for other in [
        json!({ "metadata": { "labels": { "x": "y" } } }),
        json!({ "metadata": { "labels": { "storm": null } } }),
        json!({ "metadata": { "labels": { "storm": "other" } } }),
        json!({ "metadata": { "annotations": { "x": "y" } } }),
        json!({ "metadata": { "finalizers": ["example.com/x"] } }),
        json!({ "status": { "message": "x" } }),
    ] {
        patch("refused", of_pod, &bound, HERE, &other);
    }
    Ok(())
}
