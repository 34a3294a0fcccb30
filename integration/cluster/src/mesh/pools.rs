//! A pool of nodes gets a version first (the chart's value `pools`): its DaemonSet replaces the other's agent on the
//! last node, then all nodes get the version, and the node leaves the pool.

use gybe_bench::report::Report;
use gybe_integration::failure::Failure;

use super::Mesh;
use super::application::{self, MESHED, VALIDATION, exit_code_of_first_run, pod, start};
use super::commands;
use super::gybe::NEXT;
use super::load::Pair;
use crate::api::{PATIENCE, wait_for};
use crate::checks::Checks;

const PAIR: Pair = Pair { client: "pools-client", server: "pools-server", fresh: "pools-fresh" };
/// A pool whose nodes get another image.
const POOL: &str = "canary";
const BACKEND: &str = "settings.backend=nft";

pub(super) fn run(mesh: &Mesh) -> Result<Report, Failure> {
    let (cluster, workstation) = (&mesh.cluster, &mesh.workstation);
    let mut checks = Checks::default();
    mesh.ensure_gybe()?;
    PAIR.start(workstation, mesh.apart())?;
    let node = mesh.last().to_string();
    let (pool, first) = (format!("pools.{POOL}.image.tag={NEXT}"), env!("CARGO_PKG_VERSION"));
    let all = |tag: &str| vec![format!("gybe-node gybe:{tag}"); mesh.nodes.len()];
    let with_pool = |tag: &str| {
        let mut agents = all(tag);
        agents.pop();
        agents.push(format!("gybe-node-{POOL} gybe:{NEXT}"));
        agents
    };

    let mut step = |what: &str, expected: &[String], step: &dyn Fn() -> Result<(), Failure>| {
        checks.part(what);
        PAIR.load_during(workstation, &mut checks, "pods of all nodes", |checks| {
            step()?;
            let observed = settled(mesh, expected)?;
            checks.equal("the agents by node", &observed, &expected.to_vec());
            // A pod on each side of the boundary between the versions.
            for (name, pod) in [
                (PAIR.fresh, mesh.apart().server(pod(PAIR.fresh))),
                (SECOND, mesh.apart().client(pod(SECOND))),
            ] {
                let started = start(workstation, MESHED, &pod)?;
                let title = format!("exit code of {name}'s {VALIDATION}");
                checks.equal(&title, &exit_code_of_first_run(&started, VALIDATION), &Some(0));
                PAIR.passes(workstation, checks, "a new pod", name)?;
            }
            let names = [PAIR.fresh, SECOND];
            checks.redirected(
                "a new pod",
                &commands::verify(workstation, &names.map(|name| (MESHED, name)))?,
                &names,
            );
            Ok(())
        })?;
        application::delete(workstation, &[(MESHED, PAIR.fresh), (MESHED, SECOND)])
    };
    step("a pool with another version, and no node", &all(first), &|| {
        mesh.gybe.install(cluster, &[BACKEND, &pool])
    })?;
    step("a node enters the pool", &with_pool(first), &|| {
        label(mesh, &node, &format!("gybe.dev/pool={POOL}"))
    })?;
    step("all nodes get the version", &with_pool(NEXT), &|| {
        mesh.gybe.install(cluster, &[BACKEND, &pool, &format!("image.tag={NEXT}")])
    })?;
    step("the node leaves the pool", &all(NEXT), &|| label(mesh, &node, "gybe.dev/pool-"))?;
    step("without pools, the first version", &all(first), &|| mesh.ensure_gybe())?;
    application::delete(workstation, &PAIR.pods())?;
    Ok(checks.report("A pool of nodes that gets a version first"))
}

/// A second new pod, on the first node.
const SECOND: &str = "pools-second";

fn label(mesh: &Mesh, node: &str, label: &str) -> Result<(), Failure> {
    mesh.cluster.run("kubectl", &["label", "node", node, label]).map(drop)
}

/// Waits until each node has one agent, which is ready, of this DaemonSet and with this image, and returns those in the
/// order of the nodes.
fn settled(mesh: &Mesh, expected: &[String]) -> Result<Vec<String>, Failure> {
    let mut observed = Vec::new();
    // The last ones are part of the report.
    let _ = wait_for(PATIENCE, "each node has one agent of its version", || {
        let mut agents = commands::images(&mesh.workstation)?;
        agents.sort();
        observed = agents.into_iter().map(|(_, daemonset, image)| format!("{daemonset} {image}")).collect();
        Ok((observed == expected).then_some(()))
    });
    Ok(observed)
}
