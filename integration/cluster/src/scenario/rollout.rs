//! A rolling upgrade over several nodes and its rollback, while pods start on all of them: `maxSurge: 10%` and
//! `maxUnavailable: 0` as in the manifests.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use gybe_bench::report::{Limit, Report, Table, Target, cells};
use gybe_integration::failure::Failure;
use serde_json::Value;

use super::{Releases, distribution, none, wrong};
use crate::agent;
use crate::api::Api;
use crate::cluster::{Cluster, has_condition};
use crate::pods::Kind;
use crate::release::{Release, roll_out};
use crate::storm::{Plan, Storm};

/// Pods of the time without a roll. The others start at the same pace.
const QUIET: Plan = Plan {
    name: "rollout-quiet",
    kind: Kind::Meshed,
    count: 50,
    interval: Duration::from_millis(400),
    patience: Duration::from_secs(240),
};
/// The part of the nodes whose agents are replaced at a time.
const SURGE_PERCENT: usize = 10;
/// The time between two looks at the agents.
const INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn run(cluster: &Cluster, releases: &Releases) -> Result<Report, Failure> {
    releases.installed.install(cluster)?;
    let quiet = Storm::start(cluster, QUIET)?.finish(cluster)?;
    let (upgrade, upgraded) = roll(cluster, "rollout-upgrade", &releases.next)?;
    let (rollback, rolled_back) = roll(cluster, "rollout-rollback", &releases.installed)?;
    let surge = (cluster.nodes().len() * SURGE_PERCENT).div_ceil(100);
    let mut targets = vec![wrong(
        "pods during a rollout over several nodes that are not redirected, or not ready",
        &[&quiet, &upgraded, &rolled_back],
    )];
    for (what, observed, pods) in [("upgrade", &upgrade, &upgraded), ("rollback", &rollback, &rolled_back)] {
        targets.push(none(&format!("{what}: `FailedCreatePodSandBox`"), pods.refusals.len()));
        targets
            .push(none(&format!("{what}: times at which a node had no ready agent"), observed.without_agent));
        targets.push(none(
            &format!("{what}: times at which no conf file of a node had the entry"),
            observed.without_entry,
        ));
        targets.push(none(
            &format!("{what}: agents of another version {:?}", observed.others),
            observed.others.len(),
        ));
        targets.push(Target {
            what: format!("{what}: nodes at a time with a new agent that is not ready yet"),
            measured: number(observed.most_starting),
            limit: Limit::AtMost(number(surge)),
            unit: "",
        });
    }
    let row = |what: &str, observed: &Observed| {
        let counts = [observed.looks, observed.most_starting, observed.without_agent, observed.without_entry];
        let counts = counts.map(|count| count.to_string());
        [vec![what.to_owned(), format!("{:.1}", observed.seconds)], counts.to_vec()].concat()
    };
    let nodes = cluster.nodes().len();
    Ok(Report {
        tables: vec![
            Table {
                title: format!("A rollout over {nodes} nodes, observed every {} ms", INTERVAL.as_millis()),
                head: cells([
                    "Rollout",
                    "s",
                    "looks",
                    "most nodes at a time",
                    "without agent",
                    "without entry",
                ]),
                rows: vec![row("upgrade", &upgrade), row("rollback", &rollback)],
            },
            distribution(
                &format!(
                    "{} pods on {nodes} nodes during a rollout, from creation to readiness",
                    QUIET.count
                ),
                &[("without", &quiet), ("upgrade", &upgraded), ("rollback", &rolled_back)],
                &quiet,
            ),
        ],
        targets,
    })
}

/// What was observed during a rollout.
#[derive(Debug, Default)]
struct Observed {
    seconds: f64,
    looks: usize,
    /// The most nodes at a time with an agent that is not ready yet.
    most_starting: usize,
    /// Looks at which a node had no agent that is ready.
    without_agent: usize,
    /// Looks at which no conf file of a node named the plugin.
    without_entry: usize,
    /// The images of the agents after it that are not the expected one.
    others: Vec<String>,
}

fn number(count: usize) -> f64 {
    // Counts of nodes are small.
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

/// Applies a release while pods start.
fn roll(
    cluster: &Cluster,
    name: &'static str,
    to: &Release,
) -> Result<(Observed, crate::storm::Started), Failure> {
    let api = cluster.api.another()?;
    let is_over = AtomicBool::new(false);
    let (observed, started) = scope(|threads| {
        let watcher = threads.spawn(|| watch(cluster, &api, &is_over));
        let rolled = || {
            let storm = Storm::start(cluster, Plan { name, ..QUIET })?;
            let begin = Instant::now();
            to.apply(cluster)?;
            roll_out(cluster)?;
            let seconds = begin.elapsed().as_secs_f64();
            is_over.store(true, Ordering::Relaxed);
            Ok::<_, Failure>((seconds, storm.finish(cluster)?))
        };
        let rolled = rolled();
        is_over.store(true, Ordering::Relaxed);
        (watcher.join(), rolled)
    });
    let mut observed =
        observed.map_err(|_| Failure::new("the thread that looks at the agents panicked"))??;
    let (seconds, started) = started?;
    observed.seconds = seconds;
    let expected = format!("gybe:{}", to.version);
    let image =
        |pod: &Value| pod.pointer("/spec/containers/0/image").and_then(Value::as_str).map(str::to_owned);
    let images = agent::pods(cluster)?;
    let running = images.iter().filter(|pod| pod.pointer("/metadata/deletionTimestamp").is_none());
    observed.others = running.filter_map(image).filter(|image| *image != expected).collect();
    Ok((observed, started))
}

/// Looks at the agents and the conf files of all nodes until the rollout is over.
fn watch(cluster: &Cluster, api: &Api, is_over: &AtomicBool) -> Result<Observed, Failure> {
    let mut observed = Observed::default();
    while !is_over.load(Ordering::Relaxed) {
        let pods = api.list(agent::PODS)?;
        let mut ready: BTreeMap<String, (usize, usize)> =
            cluster.nodes().iter().map(|node| (node.number.to_string(), (0, 0))).collect();
        for pod in &pods {
            let name = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
            let Some((ready, starting)) = ready.get_mut(name) else { continue };
            if has_condition(pod, "Ready") {
                *ready += 1;
            } else if pod.pointer("/metadata/deletionTimestamp").is_none() {
                *starting += 1;
            }
        }
        observed.looks += 1;
        observed.without_agent += usize::from(ready.values().any(|(ready, _)| *ready == 0));
        let starting = ready.values().filter(|(_, starting)| *starting > 0).count();
        observed.most_starting = observed.most_starting.max(starting);
        for node in cluster.nodes() {
            observed.without_entry += usize::from(agent::entries(node.host())?.is_empty());
        }
        sleep(INTERVAL);
    }
    Ok(observed)
}
