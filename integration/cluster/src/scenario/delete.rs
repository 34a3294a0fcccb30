//! The DaemonSet is deleted without `mode: leave`, as docs/INSTALL.md has it: what stays on the node, and what becomes
//! of running and of new pods.

use std::time::{Duration, Instant};

use gybe_bench::report::{Report, Table, cells};
use gybe_integration::failure::Failure;
use serde_json::json;

use super::{Releases, is_try_again, none, wrong};
use crate::agent;
use crate::api::{wait_at_most, wait_until};
use crate::cluster::Cluster;
use crate::pods::Kind;
use crate::storm::{Plan, Storm};

const SETTINGS: &str = "/api/v1/namespaces/gybe-system/configmaps/gybe-config";
const PLAN: Plan = Plan {
    name: "running",
    kind: Kind::Meshed,
    count: 1,
    interval: Duration::ZERO,
    patience: Duration::from_secs(600),
};
/// How long the agent may take to remove the entry as it ends: five seconds for clients, six for the API server, eight
/// for the entry.
const ENTRY: Duration = Duration::from_secs(30);
/// How long the programs stay after that, with time for the last sandbox.
const PROGRAMS: Duration = Duration::from_secs(330);

pub(super) fn run(cluster: &Cluster, releases: &Releases) -> Result<Report, Failure> {
    let stays = by_default(cluster, releases)?;
    let leaves = with_the_setting(cluster, releases)?;
    Ok(Report {
        tables: [stays.tables, leaves.tables].concat(),
        targets: [stays.targets, leaves.targets].concat(),
    })
}

/// Everything stays. A pod of the mesh is refused until the DaemonSet is there again.
fn by_default(cluster: &Cluster, releases: &Releases) -> Result<Report, Failure> {
    releases.installed.install(cluster)?;
    let running = started(cluster, PLAN)?;
    let before = agent::installed(cluster)?;
    delete_daemon_set(cluster)?;
    wait_until("the agent ends", || Ok(agent::pods(cluster)?.is_empty()))?;
    let plain =
        Storm::start(cluster, Plan { name: "outside", kind: Kind::Plain, ..PLAN })?.finish(cluster)?;
    let waiting = Storm::start(cluster, Plan { name: "waiting", ..PLAN })?;
    wait_until("a pod of the mesh is refused", || Ok(!waiting.refusals(cluster)?.is_empty()))?;
    let ran = waiting.running(cluster)?.len();
    let after = agent::installed(cluster)?;
    let gone: Vec<_> = before.iter().filter(|name| !after.contains(name)).collect();
    let old = running.finish(cluster)?;
    releases.installed.install(cluster)?;
    let waited = waiting.finish(cluster)?;
    let unexpected = waited.refusals.iter().filter(|message| !is_try_again(message)).count();
    let row = |what: &str, count: usize| vec![what.to_owned(), count.to_string()];
    Ok(Report {
        tables: vec![Table {
            title: "The DaemonSet is deleted".into(),
            head: cells(["What", "Count"]),
            rows: vec![
                row("files that stay: programs and the conf file with the entry", after.len()),
                row(
                    "refusals of a pod of the mesh until the DaemonSet is there again",
                    waited.refusals.len(),
                ),
            ],
        }],
        targets: vec![
            none(&format!("deleted: files that are gone {gone:?}"), gone.len()),
            none("deleted: new pods of the mesh that run without an agent", ran),
            none("deleted: refusals without code 11", unexpected),
            wrong("deleted: pods not as expected", &[&old, &plain, &waited]),
        ],
    })
}

/// The agent removes the entry as it ends, and the programs when no sandbox needs them.
fn with_the_setting(cluster: &Cluster, releases: &Releases) -> Result<Report, Failure> {
    releases.installed.install(cluster)?;
    cluster.api.patch(SETTINGS, &json!({ "data": { "leave_when_daemonset_gone": "true" } }))?;
    agent::replace(cluster)?;
    let running = started(cluster, Plan { name: "redirected", ..PLAN })?;
    let before = Instant::now();
    prune(cluster)?;
    let is_in_conf = |name: &String| name.starts_with("/etc/");
    wait_at_most(ENTRY, "the entry is removed", || Ok(!agent::installed(cluster)?.iter().any(is_in_conf)))?;
    let entry = before.elapsed().as_secs_f64();
    let programs = agent::installed(cluster)?.len();
    let new = Storm::start(cluster, Plan { name: "unmeshed", ..PLAN })?.finish(cluster)?;
    let redirected = new.seconds.len() - new.astray.len();
    let old = running.finish(cluster)?;
    wait_at_most(PROGRAMS, "the programs are removed", || Ok(agent::installed(cluster)?.is_empty()))?;
    let removed = before.elapsed().as_secs_f64();
    wait_until("the agent ends", || Ok(agent::pods(cluster)?.is_empty()))?;
    let row = |what: &str, seconds: f64| vec![what.to_owned(), format!("{seconds:.1}")];
    Ok(Report {
        tables: vec![Table {
            title: "The DaemonSet is pruned, with `leave_when_daemonset_gone`".into(),
            head: cells(["What", "Seconds"]),
            rows: vec![
                row("until the entry is removed", entry),
                row("until the programs are removed; the last sandbox that names them ends before", removed),
            ],
        }],
        targets: vec![
            none(
                "pruned, with the setting: programs missing while a sandbox needs them",
                usize::from(programs == 0),
            ),
            none("pruned, with the setting: new pods of the mesh that are redirected", redirected),
            none("pruned, with the setting: new pods that are refused", new.refusals.len() + new.late.len()),
            wrong("pruned, with the setting: running pods not as expected", &[&old]),
        ],
    })
}

/// Starts the pods and returns when they are ready.
fn started(cluster: &Cluster, plan: Plan) -> Result<Storm, Failure> {
    let storm = Storm::start(cluster, plan)?;
    wait_until("the pods are ready", || Ok(storm.running(cluster)?.len() == plan.count))?;
    Ok(storm)
}

/// As `kubectl delete`: the DaemonSet is gone at once, and the garbage collector deletes its pods.
fn delete_daemon_set(cluster: &Cluster) -> Result<(), Failure> {
    cluster
        .run("kubectl", &["-n", "gybe-system", "delete", "--timeout=240s", "daemonset", "gybe-node"])
        .map(drop)
}

/// As a GitOps tool: the DaemonSet and all else but the ServiceAccount, its Role and its RoleBinding, which the chart
/// annotates so that such a tool leaves them. The rights are deleted first, which is the worst order.
fn prune(cluster: &Cluster) -> Result<(), Failure> {
    let objects = [
        "clusterrolebinding/gybe-node",
        "clusterrole/gybe-node",
        "configmap/gybe-config",
        "daemonset/gybe-node",
    ];
    let command = [&["-n", "gybe-system", "delete", "--timeout=240s"][..], &objects].concat();
    cluster.run("kubectl", &command).map(drop)
}
