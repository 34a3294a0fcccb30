//! `gybe-cluster existing` in the cluster of the mesh: with a restart of the agents, for a node and a revision of istiod
//! that do not exist, and ended by a signal. Each time it deletes its namespaces, unless a second signal ends that.

use std::env;
use std::fs::{self, File};
use std::process::{Child, Command};
use std::time::Duration;

use gybe_bench::report::Report;
use gybe_integration::failure::Failure;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::super::Mesh;
use super::super::application::{MESHED, PLAIN};
use super::super::images::APPLICATION;
use super::super::namespaces;
use super::super::with_cleanup;
use crate::api::{wait_for, wait_until};
use crate::checks::Checks;
use crate::cluster::HOME;
use crate::credentials::kubeconfig;

/// More than the command takes.
const END: Duration = Duration::from_secs(900);

pub(in super::super) fn run(mesh: &Mesh) -> Result<Report, Failure> {
    let mut checks = Checks::default();
    mesh.ensure_gybe()?;
    // The command makes namespaces with the same names.
    delete_namespaces(mesh)?;
    let outcome = commands(mesh, &mut checks);
    let restored = delete_namespaces(mesh).and_then(|()| {
        namespaces::create(&mesh.workstation, None)?;
        namespaces::wait_until_injected(&mesh.workstation)
    });
    with_cleanup(outcome, restored).map(|()| checks.report("The command for existing clusters"))
}

fn delete_namespaces(mesh: &Mesh) -> Result<(), Failure> {
    let api = &mesh.workstation.api;
    namespaces::delete(api, &namespaces::existing(api)?)
}

fn commands(mesh: &Mesh, checks: &mut Checks) -> Result<(), Failure> {
    let mut ends = |what: &str, options: &[&str], expected: i32| {
        let exit_code = ended(command(mesh, options)?.spawn()?)?;
        records_end(mesh, checks, what, exit_code, expected, &[])
    };
    ends("the command", &["--nodes", &mesh.nodes.join(","), "--restart"], 0)?;
    ends("a node that does not exist", &["--nodes", "absent"], 1)?;
    ends("a revision of istiod that does not exist", &["--revision", "absent"], 1)?;

    let (exit_code, output) = interrupted(mesh, &[Signal::SIGINT])?;
    records_end(mesh, checks, "the command, interrupted", exit_code, 1, &[])?;
    let is_logged = output.contains("interrupted; deleting the namespaces");
    checks.holds("the command, interrupted: standard error", is_logged, &output, "deleting the namespaces");
    let (exit_code, _) = interrupted(mesh, &[Signal::SIGINT, Signal::SIGTERM])?;
    records_end(mesh, checks, "the command, interrupted twice", exit_code, 1, &[MESHED, PLAIN])
}

/// Sends signals to a command that has created a pod, and returns its exit code and standard error.
fn interrupted(mesh: &Mesh, signals: &[Signal]) -> Result<(Option<i32>, String), Failure> {
    let directory = mesh.cluster.host().path(HOME);
    fs::create_dir_all(&directory)?;
    let output = directory.join("existing.log");
    let command = command(mesh, &[])?.stderr(File::create(&output)?).spawn()?;
    let pods = format!("/api/v1/namespaces/{MESHED}/pods");
    let started =
        wait_until("the command has created a pod", || Ok(!mesh.workstation.api.list(&pods)?.is_empty()));
    for signal in signals {
        kill(Pid::from_raw(command.id().try_into()?), *signal)?;
    }
    let exit_code = ended(command)?;
    started?;
    Ok((exit_code, fs::read_to_string(output)?))
}

fn command(mesh: &Mesh, options: &[&str]) -> Result<Command, Failure> {
    let kubeconfig = mesh.cluster.host().path(kubeconfig("admin"));
    let mut command = mesh.workstation.command(env::current_exe()?);
    command.args(["existing", "--application", APPLICATION, "--kubeconfig"]).arg(kubeconfig).args(options);
    Ok(command)
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
    stays: &[&str],
) -> Result<(), Failure> {
    checks.equal(&format!("{what}: exit code"), &exit_code, &Some(expected));
    let left: Vec<_> = namespaces::existing(&mesh.workstation.api)?.iter().map(|left| left.name).collect();
    checks.equal(&format!("{what}: namespaces that stay"), &left, &stays.to_vec());
    Ok(())
}
