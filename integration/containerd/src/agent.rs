//! The node agent on a stage: started, told to stop, killed; not what it knows.

use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::service::Service;
use crate::{Stage, Trouble, manifest};

/// Where it answers the plugin, inside the stage.
pub const SOCKET: &str = "/run/gybe/facts.sock";

/// What it says when its sockets are there.
const SERVING: &str = "gybe node: serving";

/// What an agent is to do on its node.
#[derive(Debug, Clone, Copy)]
pub struct Errand<'e> {
    /// The agent.
    pub program: &'e Path,
    /// Where its programs are.
    pub image: &'e str,
    /// `install`, or `leave`.
    pub mode: &'e str,
}

/// Where an agent runs, and where its lines go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'p> {
    pub(crate) stage: &'p Stage,
    pub(crate) log: &'p Path,
}

impl Place<'_> {
    fn command(&self, errand: &Errand<'_>) -> Command {
        let mut command = self.stage.command(Path::new("/nonexistent"), errand.program);
        command.arg(errand.image).arg(errand.mode);
        command
    }
}

/// A running `gybe node`.
#[derive(Debug)]
pub struct Agent(Service);

impl Agent {
    /// One that needs no cluster: it knows the pods whose manifests are published on the stage.
    pub(crate) fn with_manifests(place: &Place<'_>, program: &Path) -> Result<Agent, Trouble> {
        let mut command = place.stage.command(Path::new("/nonexistent"), program);
        command.args(["node", "--pods-from", manifest::DIRECTORY, "--socket", SOCKET]);
        Service::start(command, SERVING, place.log).map(Self)
    }

    /// One that changes the node, and has done what can be done now.
    pub(crate) fn installing(place: &Place<'_>, errand: &Errand<'_>) -> Result<Agent, Trouble> {
        Service::start(place.command(errand), SERVING, place.log).map(Self)
    }

    /// One that is on its way.
    pub(crate) fn beginning(place: &Place<'_>, errand: &Errand<'_>) -> Result<Agent, Trouble> {
        Service::begin(place.command(errand), SERVING, place.log).map(|(service, _)| Self(service))
    }

    /// Its number outside the stage.
    pub fn pid(&self) -> Result<Pid, Trouble> {
        self.0.pid()
    }

    /// Ends it by that signal, and returns when it is gone.
    pub fn end(self, signal: Signal) -> Result<(), Trouble> {
        self.0.end(signal)
    }
}
