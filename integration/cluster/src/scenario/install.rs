//! `kubectl apply -k`, and the first pods.

use std::time::{Duration, Instant};

use gybe_bench::report::{Report, Table, cells};
use gybe_integration::failure::Failure;

use super::Releases;
use crate::cluster::Cluster;
use crate::pods::Kind;
use crate::storm::{Plan, Storm};

const PLAN: Plan = Plan {
    name: "first",
    kind: Kind::Meshed,
    count: 1,
    interval: Duration::ZERO,
    patience: Duration::from_secs(60),
};

pub(super) fn run(cluster: &Cluster, releases: &Releases) -> Result<Report, Failure> {
    let before = Instant::now();
    releases.installed.install(cluster)?;
    let rolled_out = before.elapsed().as_secs_f64();
    let meshed = Storm::start(cluster, PLAN)?.finish(cluster)?;
    // The control: the same connections reach other listeners when a pod is not redirected.
    let plain = Storm::start(cluster, Plan { name: "plain", kind: Kind::Plain, ..PLAN })?.finish(cluster)?;
    let row = |what: &str, seconds: f64| vec![what.to_owned(), format!("{seconds:.2}")];
    let astray: Vec<String> = [&meshed, &plain].iter().flat_map(|pods| pods.astray.clone()).collect();
    let wrong = astray.len() + meshed.late.len() + plain.late.len();
    Ok(Report {
        tables: vec![Table {
            title: "Installation".into(),
            head: cells(["What", "Seconds"]),
            rows: vec![
                row("`kubectl apply -k` until the DaemonSet is rolled out", rolled_out),
                row("a pod of the mesh until it is ready", meshed.quantile(1.0)),
                row("a pod outside of it", plain.quantile(1.0)),
            ],
        }],
        targets: vec![super::none(&format!("first pods not as expected {astray:?}"), wrong)],
    })
}
