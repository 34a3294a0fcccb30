//! Two versions on the node for a minute: the new agent leads, and the old one writes nothing.

use std::thread::sleep;
use std::time::{Duration, Instant};

use gybe_bench::report::{Report, Table, cells};
use gybe_integration::failure::Failure;
use serde_json::json;

use super::{Releases, none};
use crate::agent::{self, Writes};
use crate::api::wait_until;
use crate::cluster::Cluster;

/// How long both agents run.
const TOGETHER: Duration = Duration::from_secs(60);
/// The DaemonSet.
const DAEMON_SET: &str = "/apis/apps/v1/namespaces/gybe-system/daemonsets/gybe-node";

/// The DaemonSet's controller ends the old agent when the new one is available: ready for `minReadySeconds`.
pub(super) fn run(cluster: &Cluster, releases: &Releases) -> Result<Report, Failure> {
    releases.installed.install(cluster)?;
    agent::replace(cluster)?;
    let since = cluster.run("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"])?;
    let min_ready = |seconds: u64| json!({ "spec": { "minReadySeconds": seconds } });
    let writes = Writes::watch(cluster)?;
    releases.next.apply(cluster)?;
    cluster.api.patch(DAEMON_SET, &min_ready(TOGETHER.as_secs()))?;
    wait_until("two agents", || Ok(agent::processes(cluster)?.len() == 2))?;
    let logs = |since: &str| {
        let selector = ["-l", "app.kubernetes.io/name=gybe-node", "-c", "install", "--prefix", "--tail=-1"];
        cluster.run(
            "kubectl",
            &[&["-n", "gybe-system", "logs", "--since-time", since.trim()], &selector[..]].concat(),
        )
    };
    // The newcomer leads as soon as it is ready.
    let ready = |pod: &serde_json::Value| crate::cluster::has_condition(pod, "Ready");
    let pods = "/api/v1/namespaces/gybe-system/pods?labelSelector=app.kubernetes.io%2Fname%3Dgybe-node";
    wait_until("the new agent is ready", || Ok(cluster.api.list(pods)?.iter().all(ready)))?;
    let leads = Instant::now();
    sleep(TOGETHER.saturating_sub(Duration::from_secs(10)));
    let are_both_there = agent::processes(cluster)?.len() == 2;
    let text = logs(&since)?;
    let until = Instant::now();
    let written = writes.finish()?;
    cluster.api.patch(DAEMON_SET, &min_ready(0))?;
    crate::release::roll_out(cluster)?;
    let (handover, together): (Vec<_>, Vec<_>) = written.iter().partition(|(at, _)| *at < leads);
    let conflicts = text.lines().filter(|line| line.contains("conflict")).count();
    let row = |what: &str, count: usize| vec![what.to_owned(), count.to_string()];
    Ok(Report {
        tables: vec![Table {
            title: format!("Two versions on the node for {} s", until.duration_since(leads).as_secs()),
            head: cells(["What", "Count"]),
            rows: vec![
                row("changes of programs and conf until the new agent was ready", handover.len()),
                row("changes afterwards", together.len()),
                row("lines about a conflict in both logs", conflicts),
            ],
        }],
        targets: vec![
            none("two versions: agents missing at the end", usize::from(!are_both_there)),
            none("two versions: changes after the new agent was ready", together.len()),
            none("two versions: lines about a conflict", conflicts),
        ],
    })
}
