//! Runs the built programs and others, and finds the backends with a long deadline.

use crate::failure::Failure;
use gybe_netfilter::apply::backend::{Backend, BackendKind};
use gybe_netfilter::iptables::Iptables;
use gybe_netfilter::model::ruleset::Engine;
use gybe_netfilter::nft::Nft;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The result of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// `None` when a signal ended it.
    pub code: Option<i32>,
    /// Stdout.
    pub out: String,
    /// Stderr.
    pub err: String,
}

/// Returns the path of `gybe` or `gybe-cni`: in the directory `GYBE_PROGRAMS`, or in the one that the tests were built in.
///
/// # Errors
/// When it is not built.
pub fn path_of_ours(name: &str) -> Result<PathBuf, Failure> {
    // A test is in target/PROFILE/deps, the programs are in target/PROFILE.
    let test = std::env::current_exe()?;
    let directory = match std::env::var_os("GYBE_PROGRAMS") {
        // A test runs in its package's directory.
        Some(directory) => std::env::current_dir()?.join("..").join(directory),
        None => test.ancestors().nth(2).map(Path::to_owned).unwrap_or_default(),
    };
    let path = directory.join(name);
    // Cargo does not build it for the tests: it belongs to another package.
    let not_built =
        || Failure::new(format!("{} is not there; build it first: cargo build --workspace", path.display()));
    if path.exists() { Ok(path) } else { Err(not_built()) }
}

/// Returns a backend whose programs have as much time as they need on a busy machine.
///
/// # Errors
/// When it is not installed.
pub fn patient(kind: BackendKind) -> Result<Box<dyn Backend>, Failure> {
    Ok(match kind {
        BackendKind::Nft => Box::new(Nft),
        BackendKind::IptablesNft => Box::new(patient_iptables(Engine::NfTables)?),
        BackendKind::IptablesLegacy => Box::new(patient_iptables(Engine::Legacy)?),
    })
}

/// Returns an iptables backend whose programs have as much time as they need on a busy machine.
///
/// # Errors
/// When it is not installed.
pub fn patient_iptables(engine: Engine) -> Result<Iptables, Failure> {
    Ok(Iptables::find(engine)?.with_deadline(Duration::from_secs(120)))
}

/// Runs `gybe` or `gybe-cni`.
///
/// # Errors
/// When it is not built, or cannot be run.
pub fn ours(name: &str, arguments: &[&str], stdin: &str) -> Result<Run, Failure> {
    run(&path_of_ours(name)?.to_string_lossy(), arguments, stdin)
}

/// Runs a program in the network namespace of the calling thread, with `stdin`.
///
/// # Errors
/// When it cannot be run.
pub fn run(program: &str, arguments: &[&str], stdin: &str) -> Result<Run, Failure> {
    let not_run = |source: io::Error| Failure::because(format!("cannot run {program}"), source);
    #[allow(clippy::disallowed_methods, reason = "tests run programs: ours, and those that judge ours")]
    let mut command = Command::new(program);
    let pipes = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().map_err(not_run)?;
    if let Some(mut pipe) = child.stdin.take() {
        match pipe.write_all(stdin.as_bytes()) {
            // It may end before it has read all of it.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(not_run(error)),
            _ => {}
        }
    }
    let output = child.wait_with_output().map_err(not_run)?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) })
}
