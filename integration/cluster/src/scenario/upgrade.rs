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
const SPREAD: [Plan; 3] = plans(["quiet", "upgrade", "rollback"], Duration::from_millis(400));
/// All pods start at one instant.
const AT_ONCE: [Plan; 3] = plans(["burst-quiet", "burst-upgrade", "burst-rollback"], Duration::ZERO);

const fn plans(names: [&'static str; 3], interval: Duration) -> [Plan; 3] {
    let [quiet, upgrade, rollback] = names;
    let plan =
        Plan { name: quiet, kind: Kind::Meshed, count: 50, interval, patience: Duration::from_secs(240) };
    [plan, Plan { name: upgrade, ..plan }, Plan { name: rollback, ..plan }]
}

pub(super) fn run(cluster: &Cluster, releases: &Releases) -> Result<Report, Failure> {
    let mut report = Report { tables: Vec::new(), targets: Vec::new() };
    for (how, plans) in [("one after the other", SPREAD), ("at one instant", AT_ONCE)] {
        let of_these = rolls(cluster, releases, how, plans)?;
        report.tables.extend(of_these.tables);
        report.targets.extend(of_these.targets);
    }
    Ok(report)
}

/// Starts pods without a roll, during an upgrade, and during its rollback.
fn rolls(
    cluster: &Cluster,
    releases: &Releases,
    how: &str,
    [quiet, upgrade, rollback]: [Plan; 3],
) -> Result<Report, Failure> {
    releases.installed.install(cluster)?;
    let without = Storm::start(cluster, quiet)?.finish(cluster)?;
    let upgraded = during_roll(cluster, upgrade, &releases.next)?;
    let rolled_back = during_roll(cluster, rollback, &releases.installed)?;
    let rows = [("without", &without), ("upgrade", &upgraded), ("rollback", &rolled_back)];
    let mut targets = Vec::new();
    for (plan, pods) in [(upgrade, &upgraded), (rollback, &rolled_back)] {
        let name = plan.name;
        targets.push(none(&format!("{name}: `FailedCreatePodSandBox`"), pods.refusals.len()));
        // Pods that start at one instant keep the processors busy: their times show the work of the roll itself.
        if plan.interval > Duration::ZERO {
            targets.push(Target {
                what: format!("{name}: added to the start of a pod"),
                measured: pods.most_added_to(&without),
                limit: Limit::AtMost(1.0),
                unit: "s",
            });
        }
    }
    let all = |list: fn(&Started) -> &Vec<String>| rows.iter().map(|(_, pods)| list(pods).len()).sum();
    targets.push(none(&format!("pods {how} that are not redirected"), all(|pods| &pods.astray)));
    targets.push(none(&format!("pods {how} that were not ready in time"), all(|pods| &pods.late)));
    let title = format!("{} pods during a rolling upgrade, {how}, from creation to readiness", quiet.count);
    Ok(Report { tables: vec![distribution(&title, &rows, &without)], targets })
}

fn during_roll(cluster: &Cluster, plan: Plan, to: &Release) -> Result<Started, Failure> {
    let storm = Storm::start(cluster, plan)?;
    to.apply(cluster)?;
    roll_out(cluster)?;
    storm.finish(cluster)
}
