//! A cluster as an operator's workstation reaches it: by its API server, kubectl and gybe.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use gybe_integration::failure::Failure;

use crate::api::Api;
use crate::cluster::describe_pods;

/// How long a command may take, in seconds.
const LIMIT: &str = "60";

/// A connection to a cluster with a mesh.
pub(super) struct Workstation {
    pub(super) api: Api,
    /// The name under which nodes have the application's image, or pull it.
    pub(super) application: String,
    environment: Vec<(&'static str, OsString)>,
}

impl Workstation {
    /// Connects with a kubeconfig. `variables` are those of kubectl and gybe besides the caller's.
    pub(super) fn connect(
        kubeconfig: &Path,
        application: &str,
        variables: &[(&'static str, OsString)],
    ) -> Result<Workstation, Failure> {
        let mut environment = variables.to_vec();
        environment.push(("KUBECONFIG", kubeconfig.into()));
        Ok(Workstation { api: Api::connect(kubeconfig)?, application: application.to_owned(), environment })
    }

    /// Returns a command with the environment of this connection.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = machine_command(program);
        command.envs(self.environment.iter().cloned()).stdin(Stdio::null());
        command
    }

    /// Runs a program, and returns its standard output if its exit code is 0, or at most `highest` with an output:
    /// kubectl, too, exits with 1 when it fails.
    pub(super) fn run(&self, program: &str, arguments: &[&str], highest: i32) -> Result<String, Failure> {
        let output =
            self.command("timeout").args(["--kill-after=5", LIMIT, program]).args(arguments).output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if is_answer(&output, highest) {
            return Ok(text(&output.stdout));
        }
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        Err(Failure::new(format!("{program} {}: {}: {stdout}{stderr}", arguments.join(" "), output.status)))
    }

    /// Returns the error with the description of these pods and the end of their logs.
    pub(super) fn with_pods(&self, error: &Failure, namespace: &str, selection: &[&str]) -> Failure {
        describe_pods(error, namespace, selection, |arguments| self.run("kubectl", arguments, 0))
    }
}

/// Returns a command for a program of this machine.
#[expect(clippy::disallowed_methods, reason = "the scenarios run programs: kubectl, gybe, ldd and this one")]
pub(crate) fn machine_command(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}

fn is_answer(output: &Output, highest: i32) -> bool {
    let is_allowed = output.status.code().is_some_and(|code| code <= highest);
    is_allowed && (output.status.success() || !output.stdout.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn a_failure_without_an_output_is_no_answer() {
        let output = |exit_code: i32, stdout: &str| Output {
            status: ExitStatus::from_raw(exit_code << 8),
            stdout: stdout.into(),
            stderr: b"error".to_vec(),
        };
        assert!(is_answer(&output(0, ""), 0) && is_answer(&output(1, "a/b not redirected\n"), 1));
        assert!(!is_answer(&output(1, ""), 1) && !is_answer(&output(1, "a/b redirected\n"), 0));
    }
}
