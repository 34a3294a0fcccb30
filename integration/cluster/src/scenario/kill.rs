//! The agent killed with SIGKILL while pods start: once, and again and again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use gybe_bench::report::{Limit, Report, Table, Target, cells};
use gybe_integration::failure::Failure;

use super::{Releases, distribution, is_try_again, none, wrong};
use crate::agent;
use crate::api::wait_for_every;
use crate::cluster::Cluster;
use crate::pods::Kind;
use crate::storm::{Plan, Storm};

const PLAN: Plan = Plan {
    name: "calm",
    kind: Kind::Meshed,
    count: 20,
    interval: Duration::from_millis(400),
    patience: Duration::from_secs(240),
};
/// Pods that start at one instant. The kubelet waits up to 80 seconds before it starts an agent for the fifth time.
const CROWD: Plan = Plan {
    name: "crowd",
    kind: Kind::Meshed,
    count: 200,
    interval: Duration::ZERO,
    patience: Duration::from_secs(900),
};
const CROWD_KILLS: usize = 10;
/// When the agent is killed.
const INTO_THE_STORM: Duration = Duration::from_secs(3);
/// How long it is killed again and again: the kubelet waits 10, 20 and 40 seconds before it restarts the container.
const LOOP: Duration = Duration::from_secs(75);

/// One SIGKILL. The kubelet restarts a container at once that was not restarted in the last ten minutes.
pub(super) fn once(cluster: &Cluster, releases: &Releases) -> Result<Report, Failure> {
    releases.installed.install(cluster)?;
    agent::replace(cluster)?;
    let calm = Storm::start(cluster, PLAN)?.finish(cluster)?;
    let storm = Storm::start(cluster, Plan { name: "killed", ..PLAN })?;
    sleep(INTO_THE_STORM);
    let gap = agent::kill_and_wait(cluster)?.as_secs_f64();
    let killed = storm.finish(cluster)?;
    let title =
        format!("{} pods while the agent is killed once; its socket was away for {gap:.2} s", PLAN.count);
    Ok(Report {
        tables: vec![distribution(&title, &[("without", &calm), ("killed", &killed)], &calm)],
        targets: vec![
            none("killed once: `FailedCreatePodSandBox`", killed.refusals.len()),
            none(
                "killed once: pods that are not redirected, or not ready",
                killed.astray.len() + killed.late.len(),
            ),
            Target {
                what: format!(
                    "killed once: added to the start of a pod, beside the socket's gap of {gap:.2} s"
                ),
                measured: killed.most_added_to(&calm) - gap,
                limit: Limit::AtMost(0.3),
                unit: "s",
            },
        ],
    })
}

/// 200 pods at one instant, and ten agents killed on all nodes, each as soon as it runs.
pub(super) fn crowd(cluster: &Cluster, releases: &Releases) -> Result<Report, Failure> {
    releases.installed.install(cluster)?;
    agent::replace(cluster)?;
    let storm = Storm::start(cluster, CROWD)?;
    sleep(INTO_THE_STORM);
    let mut kills = 0;
    wait_for_every(Duration::from_millis(50), CROWD.patience, "agents were killed ten times", || {
        kills += agent::kill(cluster)?;
        Ok((kills >= CROWD_KILLS).then_some(()))
    })?;
    let pods = storm.finish(cluster)?;
    // On a busy machine other plugins refuse pods, too.
    let by_gybe = pods.refusals.iter().filter(|message| message.contains("GYBE-"));
    let unexpected: Vec<_> = by_gybe.filter(|message| !is_try_again(message)).collect();
    let title =
        format!("{} pods at once on {} nodes, {kills} agents killed", CROWD.count, cluster.nodes().len());
    Ok(Report {
        tables: vec![distribution(&title, &[("killed", &pods)], &pods)],
        targets: vec![
            wrong("200 pods at once: not redirected, or not ready", &[&pods]),
            none(
                &format!("200 pods at once: Gybe's refusals without code 11 {unexpected:?}"),
                unexpected.len(),
            ),
        ],
    })
}

/// SIGKILL as soon as an agent runs. Pods are refused until the end, and none runs without redirection.
pub(super) fn again(cluster: &Cluster, releases: &Releases) -> Result<Report, Failure> {
    releases.installed.install(cluster)?;
    agent::replace(cluster)?;
    let is_over = AtomicBool::new(false);
    let (kills, result) = scope(|threads| {
        let killer = threads.spawn(|| {
            let mut kills = 0;
            while !is_over.load(Ordering::Relaxed) {
                kills += agent::kill(cluster)?;
                sleep(Duration::from_millis(50));
            }
            Ok::<_, Failure>(kills)
        });
        let start = Instant::now();
        let storm = Storm::start(cluster, Plan { name: "looped", ..PLAN });
        sleep(LOOP.saturating_sub(start.elapsed()));
        let running = storm.and_then(|storm| Ok((storm.running(cluster)?, storm)));
        is_over.store(true, Ordering::Relaxed);
        (killer.join(), running)
    });
    let kills = kills.map_err(|_| Failure::new("the killer panicked"))??;
    let (running, storm) = result?;
    let looped = storm.finish(cluster)?;
    let unexpected = looped.refusals.iter().filter(|message| !is_try_again(message)).count();
    let redirected = running.iter().filter(|(_, is_expected)| *is_expected).count();
    let row = |what: &str, count: usize| vec![what.to_owned(), count.to_string()];
    Ok(Report {
        tables: vec![
            Table {
                title: format!("{} pods while the agent is killed for {} s", PLAN.count, LOOP.as_secs()),
                head: cells(["What", "Count"]),
                rows: vec![
                    row("agents killed", kills),
                    row("pods that ran at the end of that time", running.len()),
                    row("of these redirected", redirected),
                    row("events `FailedCreatePodSandBox`", looped.refusals.len()),
                    row("of these without code 11", unexpected),
                ],
            },
            distribution(
                "The same pods, with the time until they were ready",
                &[("killed", &looped)],
                &looped,
            ),
        ],
        targets: vec![
            none(
                "killed in a loop: pods that are not redirected",
                running.len() - redirected + looped.astray.len(),
            ),
            none("killed in a loop: refusals without code 11", unexpected),
            none("killed in a loop: pods that were not ready after it", looped.late.len()),
        ],
    })
}
