//! The component `node-taint` and the agent's events, with a real API server: a tainted node, a refused pod, and what
//! the policy of the component refuses.

use std::time::{Duration, Instant};

use gybe_bench::report::{Report, Table, cells};
use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use super::{Releases, none};
use crate::api::{wait_at_most, wait_until};
use crate::cluster::Cluster;
use crate::network::NODE;
use crate::pods::{Kind, pod};
use crate::storm::name_of;

const KEY: &str = "cni.istio.io/not-ready";
/// A node without a kubelet.
const OTHER_NODE: &str = "worker-2";
const REFUSED: &str = "refused";
/// How long the agent may take to remove the taint: the kubelet updates a mounted ConfigMap about once a minute.
const REMOVAL: Duration = Duration::from_secs(90);
const OBJECTS: &str =
    "clusterrole,clusterrolebinding,validatingadmissionpolicy,validatingadmissionpolicybinding";

pub(super) fn run(cluster: &Cluster, releases: &Releases) -> Result<Report, Failure> {
    let spec = json!({ "taints": [{ "key": KEY, "effect": "NoSchedule" }] });
    cluster.api.patch(&node(NODE), &json!({ "spec": spec }))?;
    let other =
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": OTHER_NODE }, "spec": spec });
    cluster.api.create("/api/v1/nodes", &other)?;
    let before = Instant::now();
    releases.installed.install_with_node_taint(cluster, KEY)?;
    wait_at_most(REMOVAL, "the taint is removed", || Ok(!is_tainted(cluster, NODE)?))?;
    let removed = before.elapsed().as_secs_f64();
    let noted = refused_pod_is_noted(cluster)?;
    let rows = changes_with_the_agents_token(cluster)?;
    let wrong = rows.iter().filter(|row| row.first() != row.get(1)).count();
    cluster.run("kubectl", &["delete", OBJECTS, "gybe-node-taint"])?;
    cluster.api.delete(&node(OTHER_NODE))?;
    releases.installed.install(cluster)?;
    Ok(Report {
        tables: vec![
            Table {
                title: "Node taint and events".into(),
                head: cells(["What", "Seconds"]),
                rows: vec![
                    vec!["`kubectl apply -k` until the taint is removed".to_owned(), format!("{removed:.2}")],
                    vec!["a refused pod until its event".to_owned(), format!("{noted:.2}")],
                ],
            },
            Table {
                title: "Changes of nodes with the agent's token".into(),
                head: cells(["Expected", "Observed", "Node", "Patch"]),
                rows,
            },
        ],
        targets: vec![none("changes of nodes not as expected", wrong)],
    })
}

fn node(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

fn is_tainted(cluster: &Cluster, name: &str) -> Result<bool, Failure> {
    let node = cluster.api.get(&node(name))?.unwrap_or_default();
    let taints = node.pointer("/spec/taints").and_then(Value::as_array);
    Ok(taints.into_iter().flatten().any(|taint| text(taint, "/key") == KEY))
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
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    wait_until("the event of the refused pod", || {
        let is_it = |event: &Value| {
            text(event, "/reason") == "RedirectionRefused"
                && text(event, "/regarding/uid") == text(&created, "/metadata/uid")
                && text(event, "/note").starts_with("GYBE-ADD-")
        };
        Ok(cluster.api.list(events)?.iter().any(is_it))
    })?;
    let noted = before.elapsed().as_secs_f64();
    let path = format!("/api/v1/namespaces/default/pods/{REFUSED}");
    cluster.api.delete(&path)?;
    wait_until("the refused pod is deleted", || Ok(cluster.api.get(&path)?.is_none()))?;
    Ok(noted)
}

/// Returns for each patch whether it should be allowed and whether it was, the node and the patch.
fn changes_with_the_agents_token(cluster: &Cluster) -> Result<Vec<Vec<String>>, Failure> {
    let selector = "labelSelector=app.kubernetes.io%2Fname%3Dgybe-node";
    let agents = cluster.api.list(&format!("/api/v1/namespaces/gybe-system/pods?{selector}"))?;
    let agent = agents.first().map(name_of).unwrap_or_default();
    let account = ["-n", "gybe-system", "create", "token", "gybe-node"];
    let bound = ["--bound-object-kind=Pod", &format!("--bound-object-name={agent}")];
    let token = cluster.run("kubectl", &[account.as_slice(), bound.as_slice()].concat())?;
    let unbound = cluster.run("kubectl", &account)?;
    let (no_schedule, no_execute) = (
        json!({ "spec": { "taints": [{ "key": "example.com/x", "effect": "NoSchedule" }] } }),
        json!({ "spec": { "taints": [{ "key": "example.com/x", "effect": "NoExecute" }] } }),
    );
    let mut rows = Vec::new();
    for (is_allowed, token, name, patch) in [
        (true, &token, NODE, no_schedule.clone()),
        (true, &token, NODE, json!({ "spec": { "taints": [] } })),
        (false, &token, NODE, no_execute),
        (false, &token, NODE, json!({ "metadata": { "labels": { "x": "y" } } })),
        (false, &token, NODE, json!({ "metadata": { "annotations": { "x": "y" } } })),
        (false, &token, NODE, json!({ "spec": { "unschedulable": true } })),
        (false, &token, OTHER_NODE, no_schedule.clone()),
        (false, &unbound, NODE, no_schedule),
    ] {
        let (option, patch) = (format!("--token={}", token.trim()), patch.to_string());
        let patched = cluster.run("kubectl", &[&option, "patch", "node", name, "--type=merge", "-p", &patch]);
        let observed = match patched {
            Ok(_) => "allowed".to_owned(),
            Err(error) if format!("{error:?}").contains("ValidatingAdmissionPolicy 'gybe-node-taint'") => {
                "refused".to_owned()
            }
            Err(error) => format!("{error:?}"),
        };
        let expected = if is_allowed { "allowed" } else { "refused" };
        rows.push(vec![expected.to_owned(), observed, name.to_owned(), format!("`{patch}`")]);
    }
    Ok(rows)
}
