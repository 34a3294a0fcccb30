//! One containerd on a stage: started, killed, started again; not what is asked of it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cri::PATIENCE;
use crate::stage::starting;
use crate::{Generation, Stage, Trouble, config};

/// What containerd logs when its sockets are there, in all generations.
const BOOTED: &str = "containerd successfully booted";

/// A running containerd.
#[derive(Debug)]
pub struct Containerd {
    process: Child,
}

impl Containerd {
    /// Starts it and returns when its sockets are there. What it logs is added to `log`.
    pub fn start(stage: &Stage, generation: Generation, log: &Path) -> Result<Self, Trouble> {
        let programs = generation.programs()?;
        let conf = stage.path("/run/gybe/containerd.toml");
        fs::write(&conf, config::text(generation)).map_err(Trouble::file(conf))?;
        let program = programs.join("containerd");
        let mut command = stage.command(&programs, &program);
        command.args(["--config", "/run/gybe/containerd.toml"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(starting(&program))?;
        if let Some(said) = process.stderr.take() {
            let booted = keep(said, log)?;
            wait(&booted, &program, log)?;
        }
        Ok(Containerd { process })
    }

    /// Kills it as a power cut would: what it started lives on.
    pub fn kill(mut self) -> Result<(), Trouble> {
        // nsenter waits for its one child, which is containerd.
        let pid = self.process.id();
        let list = PathBuf::from(format!("/proc/{pid}/task/{pid}/children"));
        let children = fs::read_to_string(&list).map_err(Trouble::file(&list))?;
        for child in children.split_whitespace().filter_map(|n| n.parse().ok()) {
            kill(Pid::from_raw(child), Signal::SIGKILL)
                .map_err(|errno| Trouble::file(&list)(errno.into()))?;
        }
        let ended = self.process.wait();
        ended.map(drop).map_err(Trouble::file(list))
    }
}

/// Copies the log to its file, and tells when containerd says that it has booted.
fn keep(said: ChildStderr, log: &Path) -> Result<Receiver<()>, Trouble> {
    let opened = File::options().create(true).append(true).open(log);
    let mut file = opened.map_err(Trouble::file(log))?;
    let (tell, booted): (Sender<()>, _) = channel();
    thread::spawn(move || {
        let mut tell = Some(tell);
        for line in BufReader::new(said).lines().map_while(Result::ok) {
            if line.contains(BOOTED) {
                let _ = tell.take().map(|tell| tell.send(()));
            }
            // A log that cannot be kept must not stop containerd by a full pipe.
            let _ = writeln!(file, "{line}");
        }
    });
    Ok(booted)
}

fn wait(booted: &Receiver<()>, program: &Path, log: &Path) -> Result<(), Trouble> {
    match booted.recv_timeout(PATIENCE) {
        Ok(()) => Ok(()),
        Err(RecvTimeoutError::Timeout) => Err(Trouble::Late { what: "containerd's start", within: PATIENCE }),
        Err(RecvTimeoutError::Disconnected) => {
            Err(Trouble::Ended { program: program.to_path_buf(), said: format!("see {}", log.display()) })
        }
    }
}
