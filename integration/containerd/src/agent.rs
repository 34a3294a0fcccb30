//! The node agent on a stage: started, told to stop, killed; not what it knows.

use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::service::Service;
use crate::{Stage, Trouble, config, manifest};

/// Where it answers the plugin, inside the stage.
pub const SOCKET: &str = "/run/gybe/facts.sock";

/// Its settings, as a ConfigMap mounts them, inside the stage.
pub const SETTINGS: &str = "/run/gybe/settings";

/// Where libcni keeps what it knows of living sandboxes.
const CACHE: &str = "/var/lib/cni";

/// What it says when its sockets are there.
const SERVING: &str = "gybe node: serving";

/// Where an agent runs, and where its lines go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'p> {
    pub(crate) stage: &'p Stage,
    pub(crate) log: &'p Path,
}

impl Place<'_> {
    fn command(&self, program: &Path) -> Command {
        let mut command = self.stage.command(Path::new("/nonexistent"), program);
        command.args(["node", "--pods-from", manifest::DIRECTORY]);
        command
    }
}

/// How an agent that keeps its node is started.
#[derive(Debug, Clone, Copy)]
pub struct Keeping<'k> {
    /// The directory with its programs, inside the stage.
    pub image: &'k Path,
    /// The words before the program: another program that runs it.
    pub wrapper: &'k [&'k str],
    /// Variables that count for more than the usual ones.
    pub environment: &'k [(&'k str, &'k str)],
}

/// A running `gybe node`.
#[derive(Debug)]
pub struct Agent(Service);

impl Agent {
    /// One that knows the pods whose manifests are published on the stage, and changes nothing.
    pub(crate) fn telling(place: &Place<'_>, program: &Path) -> Result<Agent, Trouble> {
        Service::start(place.command(program), SERVING, place.log).map(Self)
    }

    /// One that also keeps its node, with the programs beside its own.
    pub(crate) fn keeping(place: &Place<'_>, image: &Path) -> Result<Agent, Trouble> {
        let mut command = place.command(&image.join("gybe"));
        command.arg("--install").env("GYBE_PROGRAMS_DIR", image);
        command.env("MOUNTED_CNI_NET_DIR", config::CONF_DIR).env("MOUNTED_CNI_BIN_DIR", config::BIN_DIR);
        command.env("GYBE_CONFIG_DIR", SETTINGS).env("MOUNTED_CNI_CACHE_DIR", CACHE);
        Service::begin(command, SERVING, place.log).map(|(service, _)| Self(service))
    }

    /// The same, told and started otherwise.
    pub(crate) fn keeping_as(place: &Place<'_>, how: &Keeping<'_>) -> Result<Agent, Trouble> {
        let program = how.image.join("gybe");
        let wrapper = how.wrapper.first().map_or(program.as_path(), Path::new);
        let mut command = place.stage.command(Path::new("/nonexistent"), wrapper);
        if !how.wrapper.is_empty() {
            command.args(how.wrapper.iter().skip(1)).arg(&program);
        }
        command.args(["node", "--pods-from", manifest::DIRECTORY, "--install"]);
        command.env("MOUNTED_CNI_NET_DIR", config::CONF_DIR).env("MOUNTED_CNI_BIN_DIR", config::BIN_DIR);
        command.env("GYBE_PROGRAMS_DIR", how.image).env("GYBE_CONFIG_DIR", SETTINGS);
        command.env("MOUNTED_CNI_CACHE_DIR", CACHE).envs(how.environment.iter().copied());
        Service::begin(command, SERVING, place.log).map(|(service, _)| Self(service))
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
