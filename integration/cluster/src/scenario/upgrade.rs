//! Pods that start during a rolling upgrade and its rollback, compared with pods that start without.

use std::time::Duration;

use gybe_bench::report::{Limit, Report, Target};
use gybe_integration::failure::Failure;

use super::{Releases, distribution, none};
use crate::cluster::Cluster;
use crate::pods::Kind;
use crate::release::{Release, roll_out};
use crate::storm::{Plan, Started, Storm};

/// The pods start before, during and after the roll.
const PLAN: Plan = Plan {
    name: "quiet",
    kind: Kind::Meshed,
    count: 50,
    interval: Duration::from_millis(400),
    patience: Duration::from_secs(240),
};

pub(super) fn run(cluster: &Cluster, releases: &Releases) -> Result<Report, Failure> {
    releases.installed.install(cluster)?;
    let quiet = Storm::start(cluster, PLAN)?.finish(cluster)?;
    let upgrade = during_roll(cluster, "upgrade", &releases.next)?;
    let rollback = during_roll(cluster, "rollback", &releases.installed)?;
    let rows = [("without", &quiet), ("upgrade", &upgrade), ("rollback", &rollback)];
    let mut targets = Vec::new();
    for (what, pods) in [("upgrade", &upgrade), ("rollback", &rollback)] {
        targets.push(none(&format!("{what}: `FailedCreatePodSandBox`"), pods.refusals.len()));
        targets.push(Target {
            what: format!("{what}: added to the start of a pod"),
            measured: pods.most_added_to(&quiet),
            limit: Limit::AtMost(1.0),
            unit: "s",
        });
    }
    targets.push(none("pods that are not redirected", rows.iter().map(|(_, pods)| pods.astray.len()).sum()));
    targets
        .push(none("pods that were not ready in time", rows.iter().map(|(_, pods)| pods.late.len()).sum()));
    let title = format!("{} pods during a rolling upgrade, from creation to readiness", PLAN.count);
    Ok(Report { tables: vec![distribution(&title, &rows, &quiet)], targets })
}

fn during_roll(cluster: &Cluster, name: &'static str, to: &Release) -> Result<Started, Failure> {
    let storm = Storm::start(cluster, Plan { name, ..PLAN })?;
    to.apply(cluster)?;
    roll_out(cluster)?;
    storm.finish(cluster)
}
