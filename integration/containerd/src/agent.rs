//! The node agent as a process on a test node.

use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::containerd::{BIN_DIR, CONF_DIR};
use crate::process::HostProcess;
use crate::{HarnessError, SimulatedHost, manifest};

/// The agent's facts socket on the test node.
pub const SOCKET: &str = "/run/gybe/facts.sock";

/// The directory of the agent's settings on the test node: the mounted ConfigMap.
pub const SETTINGS: &str = "/run/gybe/settings";

/// libcni's cache of results.
const CNI_CACHE: &str = "/var/lib/cni";

/// The log message of an agent whose sockets accept connections.
const SERVING: &str = "gybe node: serving";

/// Options of an agent that installs Gybe.
#[derive(Debug, Clone, Copy)]
pub struct AgentOptions<'a> {
    /// The directory of the programs that the agent installs, on the test node.
    pub image: &'a Path,
    /// A program with arguments that runs the agent; empty for none.
    pub wrapper: &'a [&'a str],
    /// Variables that override the agent's usual environment.
    pub environment: &'a [(&'a str, &'a str)],
}

/// A running `gybe node`.
#[derive(Debug)]
pub struct Agent(HostProcess);

impl Agent {
    /// Starts an agent that answers queries about the published pods and installs nothing. Returns when it serves.
    pub fn start_serving(host: &SimulatedHost, program: &Path, log: &Path) -> Result<Agent, HarnessError> {
        let mut command = host.command(Path::new("/nonexistent"), program);
        command.args(["node", "--pods-from", manifest::DIRECTORY]);
        HostProcess::start_and_wait(command, SERVING, log).map(Self)
    }

    /// Starts an agent that also installs Gybe and keeps it in the conflist. Returns at once.
    pub fn start_installing(
        host: &SimulatedHost,
        options: &AgentOptions<'_>,
        log: &Path,
    ) -> Result<Agent, HarnessError> {
        let program = options.image.join("gybe");
        let mut command = match options.wrapper {
            [] => host.command(Path::new("/nonexistent"), &program),
            [wrapper, arguments @ ..] => {
                let mut command: Command = host.command(Path::new("/nonexistent"), wrapper);
                command.args(arguments).arg(&program);
                command
            }
        };
        command.args(["node", "--pods-from", manifest::DIRECTORY, "--install"]);
        command.env("MOUNTED_CNI_NET_DIR", CONF_DIR).env("MOUNTED_CNI_BIN_DIR", BIN_DIR);
        command.env("GYBE_PROGRAMS_DIR", options.image).env("GYBE_CONFIG_DIR", SETTINGS);
        command.env("MOUNTED_CNI_CACHE_DIR", CNI_CACHE).envs(options.environment.iter().copied());
        HostProcess::start(command, SERVING, log).map(Self)
    }

    /// The process id outside the test node's namespaces.
    pub fn pid(&self) -> Result<Pid, HarnessError> {
        self.0.pid()
    }

    /// Sends a signal and waits until the process has ended.
    pub fn stop(self, signal: Signal) -> Result<(), HarnessError> {
        self.0.stop(signal)
    }
}
