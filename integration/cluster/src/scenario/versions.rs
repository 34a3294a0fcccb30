//! Two versions on the node for a minute, in which another program rewrites the conf file and removes the plugin: the
//! new agent leads, and the old one writes nothing.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gybe_bench::report::{Limit, Report, Table, Target, cells};
use gybe_containerd_tests::node::CONFLIST;
use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use super::{Releases, none};
use crate::agent::{self, Write, Writes};
use crate::api::wait_until;
use crate::cluster::{Cluster, has_condition};
use crate::release::roll_out;

/// How long both agents run.
const TOGETHER: Duration = Duration::from_secs(60);
/// How often another program writes the conf file without Gybe's entry in that time: fewer times than a conflict needs.
const REWRITES: u32 = 4;
/// The DaemonSet.
const DAEMON_SET: &str = "/apis/apps/v1/namespaces/gybe-system/daemonsets/gybe-node";

/// The DaemonSet's controller ends the old agent when the new one is available: ready for `minReadySeconds`.
pub(super) fn run(cluster: &Cluster, releases: &Releases) -> Result<Report, Failure> {
    releases.installed.install(cluster)?;
    agent::replace(cluster)?;
    let old = uids(cluster)?;
    let since = cluster.run("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"])?;
    let min_ready = |seconds: u64| json!({ "spec": { "minReadySeconds": seconds } });
    let writes = Writes::watch(cluster)?;
    releases.next.apply(cluster)?;
    cluster.api.patch(DAEMON_SET, &min_ready(10 * TOGETHER.as_secs()))?;
    wait_until("two agents", || Ok(agent::count(cluster)? == 2))?;
    // The newcomer leads as soon as it is ready.
    let ready = |pod: &Value| has_condition(pod, "Ready");
    wait_until("the new agent is ready", || Ok(agent::pods(cluster)?.iter().all(ready)))?;
    let leads = Instant::now();
    for number in 1..=REWRITES {
        rewrite_conf(cluster, number.into())?;
        sleep((leads + TOGETHER * number / REWRITES).saturating_duration_since(Instant::now()));
    }
    remove_plugin(cluster)?;
    let are_both_there = agent::count(cluster)? == 2;
    let new: Vec<String> = uids(cluster)?.into_iter().filter(|uid| !old.contains(uid)).collect();
    let text = logs(cluster, &since)?;
    let seconds = leads.elapsed().as_secs();
    let written = writes.finish()?;
    cluster.api.patch(DAEMON_SET, &min_ready(0))?;
    roll_out(cluster)?;
    let count = |pods: &[String], is_counted: &dyn Fn(&Write) -> bool| {
        written.iter().filter(|write| pods.iter().any(|uid| write.is_by(uid)) && is_counted(write)).count()
    };
    let before = |write: &Write| write.at < leads;
    let after = |write: &Write| write.at >= leads;
    let repairs = count(&new, &|write| after(write) && write.directory == "/etc/cni/net.d");
    let conflicts = text.lines().filter(|line| line.contains("conflict")).count();
    let row = |what: &str, count: usize| vec![what.to_owned(), count.to_string()];
    Ok(Report {
        tables: vec![Table {
            title: format!("Two versions on the node for {seconds} s"),
            head: cells(["What", "Count"]),
            rows: vec![
                row("changes by the old pod until the new agent was ready", count(&old, &before)),
                row("changes by the new pod until then", count(&new, &before)),
                row("changes by the old pod afterwards", count(&old, &after)),
                row("changes by the new pod afterwards, which repaired", count(&new, &after)),
                row("lines about a conflict in both logs", conflicts),
            ],
        }],
        targets: vec![
            none("two versions: agents missing at the end", usize::from(!are_both_there)),
            none("two versions: changes by the pod that does not lead", count(&old, &after)),
            Target {
                what: format!("two versions: repairs of the conf file, which was rewritten {REWRITES} times"),
                measured: u32::try_from(repairs).map_or(f64::NAN, f64::from),
                limit: Limit::AtLeast(REWRITES.into()),
                unit: "",
            },
            none("two versions: lines about a conflict", conflicts),
        ],
    })
}

/// Returns the UIDs of the agents' pods.
fn uids(cluster: &Cluster) -> Result<Vec<String>, Failure> {
    let uid =
        |pod: &Value| pod.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(agent::pods(cluster)?.iter().map(uid).collect())
}

/// Replaces the conf file as the primary plugin does, removes a drop-in, and waits until Gybe's entry is there again.
fn rewrite_conf(cluster: &Cluster, revision: u64) -> Result<(), Failure> {
    let host = cluster.host();
    let is_drop_in = |path: &String| !path.ends_with(CONFLIST);
    let (temporary, path) = (host.path("/etc/cni/new"), host.path("/etc/cni/net.d").join(CONFLIST));
    fs::write(&temporary, cluster.first().conflist.clone().text(revision))?;
    fs::rename(&temporary, &path)?;
    for drop_in in agent::entries(host)?.iter().filter(|path| is_drop_in(path)) {
        fs::remove_file(host.path(drop_in))?;
    }
    wait_until("the entry is there again", || Ok(!agent::entries(host)?.is_empty()))
}

/// Removes the plugin, and waits until it is there again.
fn remove_plugin(cluster: &Cluster) -> Result<(), Failure> {
    let path = cluster.host().path("/opt/cni/bin/gybe-cni");
    fs::remove_file(&path)?;
    wait_until("the removed plugin is installed again", || Ok(path.exists()))
}

/// Returns the logs of both agents.
fn logs(cluster: &Cluster, since: &str) -> Result<String, Failure> {
    let pods = ["-n", "gybe-system", "logs", "-l", "app.kubernetes.io/name=gybe-node", "-c", "install"];
    let lines = ["--prefix", "--tail=-1", "--since-time", since.trim()];
    cluster.run("kubectl", &[pods.as_slice(), &lines].concat())
}
