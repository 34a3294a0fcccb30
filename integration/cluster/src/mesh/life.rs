//! What an operator and failures do while a pod of the mesh makes requests: each request is answered, and a pod that
//! starts after each step is redirected.

use std::time::Duration;

use gybe_bench::report::Report;
use gybe_integration::failure::Failure;
use serde::Deserialize;
use serde_json::Value;

use super::Mesh;
use super::application::{self, MESHED, control, pod, service, start};
use super::checks::Checks;
use super::gybe::NEXT;
use crate::agent;
use crate::cluster::Cluster;

const SERVER: &str = "life-server";
const CLIENT: &str = "life-client";
/// A pod that starts after each step.
const FRESH: &str = "life-fresh";

/// Less than the time after which pods of a node without a kubelet count as not ready.
const OUTAGE: Duration = Duration::from_secs(20);

/// How many requests a load has made, and which failed.
#[derive(Debug, Deserialize)]
struct Counts {
    requests: u64,
    failed: u64,
    /// What the first of them received.
    #[expect(dead_code, reason = "printed with the others")]
    failures: Vec<String>,
}

/// Upgrades, a rollback, and failures.
pub(super) fn run(mesh: &Mesh) -> Result<Report, Failure> {
    let cluster = &mesh.cluster;
    let mut checks = Checks::default();
    mesh.ensure_gybe()?;
    start_pair(cluster)?;
    let mut during = |what: &str, version: &str, step: &dyn Fn() -> Result<(), Failure>| {
        under_load(cluster, &mut checks, what, step)?;
        checks.equal(
            &format!("{what}: the agents' images"),
            &images(cluster)?,
            &vec![format!("gybe:{version}")],
        );
        Ok::<_, Failure>(())
    };
    let first = env!("CARGO_PKG_VERSION");
    during("`helm upgrade` to another release", NEXT, &|| mesh.gybe.upgrade(cluster, NEXT))?;
    during("`helm rollback`", first, &|| mesh.gybe.roll_back(cluster))?;
    during("the agent is killed", first, &|| agent::kill_and_wait(cluster).map(drop))?;
    during("the API server does not answer for 20 seconds", first, &|| cluster.stop_apiserver_for(OUTAGE))?;
    application::delete(cluster, &[(MESHED, SERVER), (MESHED, CLIENT)])?;
    Ok(checks.report("Upgrades and failures under a load of requests"))
}

fn start_pair(cluster: &Cluster) -> Result<(), Failure> {
    for name in [SERVER, CLIENT] {
        start(cluster, MESHED, &pod(name))?;
    }
    Ok(())
}

/// Returns the image of each agent.
fn images(cluster: &Cluster) -> Result<Vec<String>, Failure> {
    let image = |pod: &Value| Some(pod.pointer("/spec/containers/0/image")?.as_str()?.to_owned());
    Ok(agent::pods(cluster)?.iter().filter_map(image).collect())
}

/// Does a step while the client makes requests, and starts a pod after it, before the load ends.
fn under_load(
    cluster: &Cluster,
    checks: &mut Checks,
    what: &str,
    step: &dyn Fn() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let client = (MESHED, CLIENT);
    control(cluster, client, &format!("load/{}", service((MESHED, SERVER))))?;
    step()?;
    start(cluster, MESHED, &pod(FRESH))?;
    let target = service((MESHED, SERVER));
    checks.passes(&format!("{what}: a pod that starts then"), cluster, [FRESH, SERVER], &target)?;
    let counts: Counts = serde_json::from_value(control(cluster, client, "counts")?)?;
    let what = format!("{what}: {} requests of a running pod", counts.requests);
    checks.holds(&what, counts.requests > 0 && counts.failed == 0, &counts, "all answered");
    application::delete(cluster, &[(MESHED, FRESH)])
}
