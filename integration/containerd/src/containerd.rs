//! One containerd on a stage: started, killed, started again; not what is asked of it.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::service::Service;
use crate::{Generation, Stage, Trouble, config};

/// What containerd logs when its sockets are there, in all generations.
const BOOTED: &str = "containerd successfully booted";

/// A running containerd.
#[derive(Debug)]
pub struct Containerd(Service);

impl Containerd {
    /// Starts it and returns when its sockets are there. What it logs is added to `log`.
    pub fn start(stage: &Stage, generation: Generation, log: &Path) -> Result<Self, Trouble> {
        let programs = generation.programs()?;
        let conf = stage.path("/run/gybe/containerd.toml");
        fs::write(&conf, config::text(generation)).map_err(Trouble::file(conf))?;
        let mut command = stage.command(&programs, programs.join("containerd"));
        command.args(["--config", "/run/gybe/containerd.toml"]);
        Service::start(command, BOOTED, log).map(Self)
    }

    /// Kills it as a power cut would: what it started lives on.
    pub fn kill(self) -> Result<(), Trouble> {
        self.0.end(Signal::SIGKILL)
    }

    /// Its number outside the stage.
    pub fn pid(&self) -> Result<Pid, Trouble> {
        self.0.pid()
    }
}
