//! The node agent on a stage: started, told to stop, killed; not what it knows.

use std::path::Path;

use nix::sys::signal::Signal;

use crate::generation::program_under_test;
use crate::service::Service;
use crate::{Stage, Trouble, manifest};

/// Where it answers the plugin, inside the stage.
pub const SOCKET: &str = "/run/gybe/facts.sock";

/// What it says when its sockets are there.
const SERVING: &str = "gybe node: serving";

/// A running `gybe node`.
#[derive(Debug)]
pub struct Agent(Service);

impl Agent {
    /// One that needs no cluster: it knows the pods whose manifests are published on the stage.
    pub fn with_manifests(stage: &Stage, log: &Path) -> Result<Agent, Trouble> {
        let mut command = stage.command(Path::new("/nonexistent"), program_under_test("gybe")?);
        command.args(["node", "--pods-from", manifest::DIRECTORY, "--socket", SOCKET]);
        Service::start(command, SERVING, log).map(Self)
    }

    /// Ends it by that signal, and returns when it is gone.
    pub fn end(self, signal: Signal) -> Result<(), Trouble> {
        self.0.end(signal)
    }
}
