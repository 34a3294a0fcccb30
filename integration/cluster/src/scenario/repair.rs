//! Running pods that lost their rules, with a real API server: in each mode of the setting `repair`; and what the
//! policies of the components `repair-label` and `repair-delete` refuse.

use std::fs;
use std::time::{Duration, Instant};

use gybe_bench::report::{Report, Table, cells};
use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use super::Releases;
use super::admission::{AdmissionChecks, OTHER_NODE, create_other_node, delete_component, delete_other_node};
use crate::agent::AgentApi;
use crate::api::{Api, wait_at_most, wait_until};
use crate::cluster::{Cluster, has_condition};
use crate::pods::{Kind, Reached, pod};

const LABEL: &str = "cni.istio.io/uninitialized";
/// A pod of the other node.
const ELSEWHERE: &str = "elsewhere";
/// A pod of this node, outside of the mesh.
const HERE: &str = "here";
/// How long a setting may take to reach the node: the kubelet updates a mounted ConfigMap about once a minute.
const SETTING: Duration = Duration::from_secs(150);
/// The plugin directory's program.
const GYBE: &str = "/opt/cni/bin/gybe";

pub(super) fn run(cluster: &Cluster, releases: &Releases) -> Result<Report, Failure> {
    create_other_node(cluster, &json!({}))?;
    let mut elsewhere = pod(Kind::Plain, "default", ELSEWHERE, ELSEWHERE);
    if let Some(spec) = elsewhere.pointer_mut("/spec").and_then(Value::as_object_mut) {
        spec.insert("nodeName".to_owned(), json!(OTHER_NODE));
    }
    create(cluster, &elsewhere)?;
    create(cluster, &pod(Kind::Plain, "default", HERE, HERE))?;
    wait_until_ready(cluster, HERE)?;
    let (mut times, mut requests) = (Vec::new(), AdmissionChecks::default());
    times.push(("repair", lose_rules(cluster, "repair", |name| Ok(is_redirected(&get(cluster, name)?)))?));
    for (mode, is_done) in [("label", is_labelled as fn(&Value) -> bool), ("delete", Value::is_null)] {
        let component = format!("repair-{mode}");
        releases.installed.install_with(cluster, &component, ("repair", mode))?;
        times.push((mode, lose_rules(cluster, mode, |name| Ok(is_done(&get(cluster, name)?)))?));
        changes_with_the_agents_token(cluster, mode, &mut requests)?;
        delete_component(cluster, &component)?;
    }
    releases.installed.install(cluster)?;
    // The other node has no kubelet, which would confirm that the pod has ended.
    cluster.run("kubectl", &["delete", "pod", "--force", "--grace-period=0", ELSEWHERE])?;
    delete_other_node(cluster)?;
    let (requests, as_expected) =
        requests.report("Requests about pods with the agent's token", ["Token", "Request"]);
    let row =
        |(mode, time): &(&str, Duration)| vec![(*mode).to_owned(), format!("{:.2}", time.as_secs_f64())];
    Ok(Report {
        tables: vec![
            Table {
                title: "A running pod loses its rules".into(),
                head: cells(["`repair`", "Seconds until it is redirected, labelled or deleted"]),
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

/// Starts a pod in this mode, removes its rules, and returns how long it took until `is_done`.
fn lose_rules(
    cluster: &Cluster,
    mode: &str,
    mut is_done: impl FnMut(&str) -> Result<bool, Failure>,
) -> Result<Duration, Failure> {
    let name = format!("broken-{mode}");
    let setting = cluster.node.host().path("/run/gybe/repair.json");
    wait_at_most(SETTING, "the setting reaches the process that repairs", || {
        let text = fs::read_to_string(&setting).unwrap_or_default();
        let kept = serde_json::from_str::<Value>(&text).unwrap_or_default();
        Ok(kept.get("repair").is_some_and(|kept| kept == mode))
    })?;
    create(cluster, &pod(Kind::Meshed, "default", &name, &name))?;
    wait_until_ready(cluster, &name)?;
    let pod = get(cluster, &name)?;
    if !is_redirected(&pod) {
        return Err(Failure::new(format!("{name}: {:?}", Reached::by(&pod))));
    }
    cluster.run(GYBE, &["remove", "--pod", &format!("default/{name}")])?;
    let before = Instant::now();
    wait_until("the pod without rules is handled", || is_done(&name))?;
    let time = before.elapsed();
    if mode != "delete" {
        cluster.api.delete(&path(&name))?;
    }
    Ok(time)
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
