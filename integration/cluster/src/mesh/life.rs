//! What an operator and failures do while a pod of the mesh makes requests: each request is answered, and a pod that
//! starts after each step is redirected.

use std::time::Duration;

use gybe_bench::report::Report;
use gybe_integration::failure::Failure;
use serde_json::Value;

use super::Mesh;
use super::application;
use super::gybe::NEXT;
use super::load::Pair;
use crate::agent;
use crate::checks::Checks;
use crate::cluster::Cluster;

const PAIR: Pair = Pair { client: "life-client", server: "life-server", fresh: "life-fresh" };

/// Less than the time after which pods of a node without a kubelet count as not ready.
const OUTAGE: Duration = Duration::from_secs(20);

/// Upgrades, a rollback, and failures.
pub(super) fn run(mesh: &Mesh) -> Result<Report, Failure> {
    let (cluster, workstation) = (&mesh.cluster, &mesh.workstation);
    let mut checks = Checks::default();
    mesh.ensure_gybe()?;
    PAIR.start(workstation, mesh.apart())?;
    let mut during = |what: &str, version: &str, step: &dyn Fn() -> Result<(), Failure>| {
        PAIR.under_load(workstation, &mut checks, what, |_| step())?;
        checks.equal(
            &format!("{what}: the agents' images"),
            &images(cluster)?,
            &vec![format!("gybe:{version}"); mesh.nodes.len()],
        );
        Ok::<_, Failure>(())
    };
    let first = env!("CARGO_PKG_VERSION");
    during("`helm upgrade` to another release", NEXT, &|| mesh.gybe.upgrade(cluster, NEXT))?;
    during("`helm rollback`", first, &|| mesh.gybe.roll_back(cluster))?;
    during("the agents are killed", first, &|| agent::kill_and_wait(cluster).map(drop))?;
    during("the API server does not answer for 20 seconds", first, &|| cluster.stop_apiserver_for(OUTAGE))?;
    application::delete(workstation, &PAIR.pods())?;
    Ok(checks.report("Upgrades and failures under a load of requests"))
}

/// Returns the image of each agent.
fn images(cluster: &Cluster) -> Result<Vec<String>, Failure> {
    let image = |pod: &Value| Some(pod.pointer("/spec/containers/0/image")?.as_str()?.to_owned());
    Ok(agent::pods(cluster)?.iter().filter_map(image).collect())
}
