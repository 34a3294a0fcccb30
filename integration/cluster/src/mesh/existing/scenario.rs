//! `gybe-cluster existing` in the cluster of the mesh: with a restart of the agents, for a node and a revision of istiod
//! that do not exist, and ended by a signal. Each time it deletes its namespaces.

use std::env;
use std::process::Child;
use std::time::Duration;

use gybe_bench::report::Report;
use gybe_integration::failure::Failure;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::super::Mesh;
use super::super::application::MESHED;
use super::super::checks::Checks;
use super::super::images::APPLICATION;
use super::super::namespaces;
use crate::api::{wait_for, wait_until};
use crate::credentials::kubeconfig;
use crate::network::NODE;

/// More than the command takes.
const END: Duration = Duration::from_secs(900);

pub(in super::super) fn run(mesh: &Mesh) -> Result<Report, Failure> {
    let mut checks = Checks::default();
    mesh.ensure_gybe()?;
    // The command makes namespaces with the same names.
    namespaces::delete(&mesh.workstation.api)?;
    let result = commands(mesh, &mut checks);
    namespaces::delete(&mesh.workstation.api)?;
    namespaces::create(&mesh.workstation, None)?;
    namespaces::wait_until_injected(&mesh.workstation)?;
    result.map(|()| checks.report("The command for existing clusters"))
}

fn commands(mesh: &Mesh, checks: &mut Checks) -> Result<(), Failure> {
    let mut ends = |what: &str, options: &[&str], expected: i32| {
        let exit_code = ended(spawn(mesh, options)?)?;
        records_end(mesh, checks, what, exit_code, expected)
    };
    ends("the command", &["--nodes", NODE, "--restart"], 0)?;
    ends("a node that does not exist", &["--nodes", "absent"], 1)?;
    ends("a revision of istiod that does not exist", &["--revision", "absent"], 1)?;

    let command = spawn(mesh, &[])?;
    let pods = format!("/api/v1/namespaces/{MESHED}/pods");
    let started =
        wait_until("the command has created a pod", || Ok(!mesh.workstation.api.list(&pods)?.is_empty()));
    kill(Pid::from_raw(command.id().try_into()?), Signal::SIGINT)?;
    let exit_code = ended(command)?;
    started?;
    records_end(mesh, checks, "the command, interrupted", exit_code, 1)
}

fn spawn(mesh: &Mesh, options: &[&str]) -> Result<Child, Failure> {
    let kubeconfig = mesh.cluster.node.host().path(kubeconfig("admin"));
    let mut command = mesh.workstation.command(env::current_exe()?);
    command.args(["existing", "--application", APPLICATION, "--kubeconfig"]).arg(kubeconfig);
    Ok(command.args(options).spawn()?)
}

/// Waits for the end of a command, and returns its exit code. A command that does not end is killed.
fn ended(mut command: Child) -> Result<Option<i32>, Failure> {
    let status = wait_for(END, "`gybe-cluster existing` has ended", || Ok(command.try_wait()?));
    if status.is_err() {
        command.kill()?;
        command.wait()?;
    }
    Ok(status?.code())
}

fn records_end(
    mesh: &Mesh,
    checks: &mut Checks,
    what: &str,
    exit_code: Option<i32>,
    expected: i32,
) -> Result<(), Failure> {
    checks.equal(&format!("{what}: exit code"), &exit_code, &Some(expected));
    let left = namespaces::existing(&mesh.workstation.api)?;
    checks.equal(&format!("{what}: namespaces that stay"), &left, &Vec::new());
    Ok(())
}
