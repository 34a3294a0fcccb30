//! `helm uninstall` while pods run: its Job waits for the agents, running pods keep their rules, pods that start
//! afterwards are not redirected until Gybe is installed again, and in the end the node is as before.

use std::time::Instant;

use gybe_bench::report::Report;
use gybe_integration::failure::Failure;
use nix::sys::signal::Signal;

use super::Mesh;
use super::application::{
    MESHED, NOT_REDIRECTED, Name, Nodes, PLAIN, create, pod, start, validation_exit_code, wait_for_pod,
    wait_for_validation, wait_until_ready_for,
};
use super::commands;
use super::gybe::NAMESPACE;
use super::load::{NEXT_ATTEMPT, Pair};
use super::namespaces;
use super::node_files::NodeFiles;
use super::workstation::Workstation;
use crate::agent;
use crate::api::{PATIENCE, wait_until};
use crate::checks::Checks;
use crate::cluster::has_condition;
use crate::network::NODE;

const PAIR: Pair = Pair { client: "remove-client", server: "remove-server", fresh: "remove-fresh" };
/// A pod that starts while helm waits for the Job, and one that starts when helm has ended.
const DURING: &str = "remove-during";
const AFTER: &str = "remove-after";

pub(super) fn run(mesh: &Mesh) -> Result<Report, Failure> {
    let (cluster, workstation) = (&mesh.cluster, &mesh.workstation);
    let mut checks = Checks::default();
    mesh.ensure_gybe()?;
    PAIR.start(workstation, Nodes::Any)?;
    names_a_stopped_agent(mesh, &mut checks)?;
    mesh.ensure_gybe()?;
    let what = "`helm uninstall`";
    PAIR.load_during(workstation, &mut checks, what, |checks| while_pods_run(mesh, checks, what))?;
    let what = "Gybe is installed again";
    PAIR.under_load(workstation, &mut checks, what, |checks| {
        mesh.ensure_gybe()?;
        for name in [DURING, AFTER] {
            wait_until_ready_for(workstation, (MESHED, name), NEXT_ATTEMPT)?;
            PAIR.passes(workstation, checks, what, name)?;
        }
        Ok(())
    })?;
    let verdicts = commands::verify(workstation, &PAIR.pods())?;
    checks.redirected(what, &verdicts, &[PAIR.client, PAIR.server, DURING, AFTER]);
    namespaces::delete_pods(workstation)?;
    mesh.remove_gybe()?;
    let left = NodeFiles::read(cluster.host())?.differences(&mesh.before);
    checks.equal("files of the node that differ from before the installation", &left, &Vec::new());
    Ok(checks.report("Removal with pods that run"))
}

/// `helm uninstall` fails with the name of a node whose agent does not answer, and deletes nothing. `helm rollback`
/// keeps Gybe, as docs/INSTALL.md has it.
fn names_a_stopped_agent(mesh: &Mesh, checks: &mut Checks) -> Result<(), Failure> {
    let (cluster, workstation) = (&mesh.cluster, &mesh.workstation);
    mesh.gybe.install(cluster, &["settings.backend=nft", "leave.timeoutSeconds=20"])?;
    let what = "`helm uninstall` with an agent that does not answer";
    PAIR.under_load(workstation, checks, what, |checks| {
        let stopped = agent::signal(cluster, Signal::SIGSTOP)?;
        checks.equal(&format!("{what}: stopped agents"), &stopped, &1);
        let failed = uninstall_fails(mesh, checks, what);
        agent::signal(cluster, Signal::SIGCONT)?;
        failed?;
        mesh.gybe.roll_back_to_last(cluster)?;
        mesh.wait_for_backend("nft")
    })
}

fn uninstall_fails(mesh: &Mesh, checks: &mut Checks, what: &str) -> Result<(), Failure> {
    let cluster = &mesh.cluster;
    let failed = mesh.gybe.uninstall(cluster)?.output();
    checks.holds(what, failed.is_err(), &failed, "fails");
    let log = cluster.run("kubectl", &["-n", NAMESPACE, "logs", "job/gybe-leave"])?;
    let is_named = log.contains(&format!("\n- {NODE}: "));
    checks.holds(&format!("{what}: the Job's log"), is_named, &log, "names the node and the reason");
    checks.equal(&format!("{what}: agents' pods that stay"), &agent::pods(cluster)?.len(), &1);
    Ok(())
}

fn while_pods_run(mesh: &Mesh, checks: &mut Checks, what: &str) -> Result<(), Failure> {
    let (cluster, workstation) = (&mesh.cluster, &mesh.workstation);
    let begin = Instant::now();
    let helm = mesh.gybe.uninstall(cluster)?;
    let jobs =
        format!("/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io%2Fname%3Dgybe-leave");
    wait_until("the Job of helm's hook has a pod", || Ok(!cluster.api.list(&jobs)?.is_empty()))?;
    create(workstation, MESHED, &pod(DURING))?;
    start(workstation, PLAIN, &pod(DURING))?;
    let ended = helm.output();
    let title = format!("{what} ends after {:.0} s", begin.elapsed().as_secs_f64());
    checks.holds(&title, ended.is_ok(), &ended, "without an error");
    checks.equal(&format!("{what}: releases of helm"), &mesh.gybe.is_installed(cluster)?, &false);
    let files = NodeFiles::read(cluster.host())?;
    let named = files.conf_files_with("gybe-cni");
    checks.equal(&format!("{what}: conf files that name gybe-cni"), &named, &Vec::new());
    let conf: Vec<_> =
        files.differences(&mesh.before).into_iter().filter(|path| path.starts_with("/etc")).collect();
    checks.equal(&format!("{what}: conf files that differ from before"), &conf, &Vec::new());

    create(workstation, MESHED, &pod(AFTER))?;
    start(workstation, PLAIN, &pod(AFTER))?;
    let exit_code = wait_for_validation(workstation, (MESHED, AFTER))?;
    let title = format!("{what}: exit code of istio-validation in a pod that starts then");
    checks.equal(&title, &exit_code, &NOT_REDIRECTED);
    let during = outcome(workstation, (MESHED, DURING))?;
    checks.holds(
        &format!("{what}: a pod that starts while it waits"),
        matches!(during, PodOutcome::Ready | PodOutcome::Validation(NOT_REDIRECTED)),
        &during,
        "is redirected, or refused by istio-validation",
    );
    PAIR.passes_between(workstation, checks, what)?;
    checks.redirected(what, &mesh.gybe.verify_by_hand(cluster)?, &[PAIR.client, PAIR.server]);
    Ok(())
}

/// What has become of a pod of the mesh.
#[derive(Debug, PartialEq, Eq)]
enum PodOutcome {
    Ready,
    /// The exit code of Istio's validation container.
    Validation(i64),
}

/// Waits until a pod is ready, or istio-validation has refused it.
fn outcome(workstation: &Workstation, pod: Name<'_>) -> Result<PodOutcome, Failure> {
    wait_for_pod(workstation, pod, PATIENCE, "is ready, or refused by istio-validation", |pod| {
        match validation_exit_code(pod) {
            Some(0) | None => has_condition(pod, "Ready").then_some(PodOutcome::Ready),
            Some(code) => Some(PodOutcome::Validation(code)),
        }
    })
}
