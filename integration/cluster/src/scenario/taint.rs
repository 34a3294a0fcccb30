//! The component `node-taint` and the agent's events, with a real API server: a tainted node, a refused pod, a node
//! that no longer redirects new pods, and what the policy of the component refuses.

use std::fs;
use std::time::{Duration, Instant};

use gybe_bench::report::{Limit, Report, Table, Target, cells};
use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use super::admission::{AdmissionChecks, OTHER_NODE, create_other_node, delete_component, delete_other_node};
use super::{Releases, none};
use crate::agent::{self, AgentApi};
use crate::api::{SETTING, wait_at_most, wait_until};
use crate::cluster::Cluster;
use crate::network::NODE;
use crate::pods::{Kind, pod};
use crate::storm::{Plan, Storm};

const KEY: &str = "cni.istio.io/not-ready";
const REFUSED: &str = "refused";
const COMPONENT: &str = "node-taint";
/// How long pods would have to start without redirection until the agent sets the taint again.
const LOST: Duration = Duration::from_secs(30);
/// The agent writes the node at most once a minute.
const WRITE_INTERVAL: Duration = Duration::from_secs(60);
/// How long the agent may take beyond these times.
const SLACK: Duration = Duration::from_secs(15);
/// Pods that do not tolerate the taint.
const KEPT_OFF: Plan = Plan {
    name: "kept-off",
    kind: Kind::Meshed,
    count: 2,
    interval: Duration::ZERO,
    patience: Duration::from_secs(240),
};

pub(super) fn run(cluster: &Cluster, releases: &Releases) -> Result<Report, Failure> {
    let spec = json!({ "taints": [{ "key": KEY, "effect": "NoSchedule" }] });
    for tainted in cluster.nodes() {
        cluster.api.patch(&node(&tainted.number.to_string()), &json!({ "spec": spec }))?;
    }
    create_other_node(cluster, &spec)?;
    let before = Instant::now();
    releases.installed.install_with(cluster, COMPONENT, ("node_taints", KEY))?;
    wait_at_most(SETTING, "the taint of each node is removed", || Ok(tainted(cluster)?.is_empty()))?;
    let removed = before.elapsed().as_secs_f64();
    let noted = refused_pod_is_noted(cluster)?;
    let again = set_again(cluster)?;
    let (changes, as_expected) = changes_with_the_agents_token(cluster)?
        .report("Changes of nodes with the agent's token", ["Node", "Patch"]);
    delete_component(cluster, COMPONENT)?;
    delete_other_node(cluster)?;
    releases.installed.install(cluster)?;
    Ok(Report {
        tables: vec![
            Table {
                title: "Node taint and events".into(),
                head: cells(["What", "Seconds"]),
                rows: vec![
                    vec!["`kubectl apply -k` until the taint is removed".to_owned(), format!("{removed:.2}")],
                    vec!["a refused pod until its event".to_owned(), format!("{noted:.2}")],
                    vec![
                        "pods would start without redirection until the taint is set".to_owned(),
                        format!("{:.2}", again.set),
                    ],
                    vec![
                        "they would be redirected again until the taint is removed".to_owned(),
                        format!("{:.2}", again.removed),
                    ],
                ],
            },
            changes,
        ],
        targets: vec![
            as_expected,
            Target {
                what: "pods would start without redirection until the taint is set".to_owned(),
                measured: again.set,
                limit: Limit::AtLeast(LOST.as_secs_f64()),
                unit: "s",
            },
            none(
                &format!("pods that the taint kept off the node not as expected {:?}", again.wrong),
                again.wrong.len(),
            ),
        ],
    })
}

fn node(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

/// Returns the nodes with a kubelet that have the taint.
fn tainted(cluster: &Cluster) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    for name in cluster.nodes().iter().map(|node| node.number.to_string()) {
        let node = cluster.api.get(&node(&name))?.unwrap_or_default();
        let taints = node.pointer("/spec/taints").and_then(Value::as_array);
        if taints.into_iter().flatten().any(|taint| text(taint, "/key") == KEY) {
            found.push(name);
        }
    }
    Ok(found)
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the seconds until a pod that the plugin refuses has the agent's event.
fn refused_pod_is_noted(cluster: &Cluster) -> Result<f64, Failure> {
    let mut refused = pod(Kind::Meshed, "default", REFUSED, REFUSED);
    if let Some(annotations) = refused.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.insert("traffic.sidecar.istio.io/excludeOutboundPorts".to_owned(), json!("none"));
    }
    let created = cluster.api.create("/api/v1/namespaces/default/pods", &refused)?;
    let before = Instant::now();
    wait_until("the event of the refused pod", || {
        let events = agent::events(cluster, &created, "RedirectionRefused")?;
        Ok(events.iter().any(|event| text(event, "/note").starts_with("GYBE-ADD-")))
    })?;
    let noted = before.elapsed().as_secs_f64();
    let path = format!("/api/v1/namespaces/default/pods/{REFUSED}");
    cluster.api.delete(&path)?;
    wait_until("the refused pod is deleted", || Ok(cluster.api.get(&path)?.is_none()))?;
    Ok(noted)
}

/// What happened to the node while new pods would not have been redirected, and afterwards.
struct SetAgain {
    /// The seconds until the taint was set.
    set: f64,
    /// The seconds until it was removed.
    removed: f64,
    /// The pods that were not redirected, or not ready.
    wrong: Vec<String>,
}

/// Writes a conf file that the runtime takes and that is too large for the agent, until the first node is tainted. Pods
/// wait for it, or start at once on other nodes, which are not tainted.
fn set_again(cluster: &Cluster) -> Result<SetAgain, Failure> {
    let host = cluster.host();
    let (temporary, path) = (host.path("/etc/cni/large"), host.path("/etc/cni/net.d/00-large.conflist"));
    let mut conf: Value = serde_json::from_str(&cluster.first().conflist.clone().text(0))?;
    if let Some(members) = conf.as_object_mut() {
        // A network without Gybe's drop-in.
        members.insert("name".to_owned(), "large".into());
        members.insert("padding".to_owned(), "x".repeat(2 << 20).into());
    }
    fs::write(&temporary, conf.to_string())?;
    let before = Instant::now();
    fs::rename(&temporary, &path)?;
    wait_at_most(LOST + WRITE_INTERVAL + SLACK, "the taint is set", || Ok(tainted(cluster)? == [NODE]))?;
    let set = before.elapsed().as_secs_f64();
    let remove = || {
        let before = Instant::now();
        fs::remove_file(&path)?;
        wait_at_most(WRITE_INTERVAL + SLACK, "the taint is removed", || Ok(tainted(cluster)?.is_empty()))?;
        Ok::<_, Failure>(before.elapsed().as_secs_f64())
    };
    let pods = Storm::start(cluster, KEPT_OFF)?;
    let (removed, started) = if cluster.nodes().len() == 1 {
        wait_until("the scheduler has found no node", || Ok(pods.unscheduled(cluster)? == KEPT_OFF.count))?;
        (remove()?, pods.finish(cluster)?)
    } else {
        let elsewhere = pods.finish(cluster)?;
        (remove()?, elsewhere)
    };
    Ok(SetAgain { set, removed, wrong: [started.astray, started.late].concat() })
}

/// Patches nodes with the tokens of the agent's pod and of no pod.
fn changes_with_the_agents_token(cluster: &Cluster) -> Result<AdmissionChecks, Failure> {
    let AgentApi { bound, unbound } = AgentApi::connect(cluster)?;
    let (no_schedule, no_execute) = (
        json!({ "spec": { "taints": [{ "key": "example.com/x", "effect": "NoSchedule" }] } }),
        json!({ "spec": { "taints": [{ "key": "example.com/x", "effect": "NoExecute" }] } }),
    );
    let mut checks = AdmissionChecks::default();
    for (expected, api, name, patch) in [
        ("allowed", &bound, NODE, no_schedule.clone()),
        ("allowed", &bound, NODE, json!({ "spec": { "taints": [] } })),
        ("refused", &bound, NODE, no_execute),
        ("refused", &bound, NODE, json!({ "metadata": { "labels": { "x": "y" } } })),
        ("refused", &bound, NODE, json!({ "metadata": { "annotations": { "x": "y" } } })),
        ("refused", &bound, NODE, json!({ "spec": { "unschedulable": true } })),
        ("refused", &bound, OTHER_NODE, no_schedule.clone()),
        ("refused", &unbound, NODE, no_schedule),
    ] {
        let response = api.patch(&node(name), &patch);
        checks.add(COMPONENT, expected, response, [name, &format!("`{patch}`")]);
    }
    Ok(checks)
}
