//! A program that runs on a stage beside the tests: ready when it says so, its log kept, ended by a
//! signal; not what it serves.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Trouble;
use crate::cri::PATIENCE;
use crate::stage::starting;

/// Longer than nsenter takes to start the program.
const FORKED: Duration = Duration::from_secs(10);

/// A program at work. It ends with its stage, if not before.
#[derive(Debug)]
pub(crate) struct Service {
    program: PathBuf,
    process: Child,
}

impl Service {
    /// Starts it and returns when a line it logs contains `ready`. What it logs is added to `log`.
    pub(crate) fn start(command: Command, ready: &'static str, log: &Path) -> Result<Self, Trouble> {
        let (service, told) = Service::begin(command, ready, log)?;
        service.wait(&told, ready, log)?;
        Ok(service)
    }

    /// Starts it and does not wait.
    pub(crate) fn begin(
        mut command: Command,
        ready: &'static str,
        log: &Path,
    ) -> Result<(Self, Receiver<()>), Trouble> {
        let program = named(&command);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(starting(&program))?;
        let said = process.stderr.take().ok_or_else(|| Trouble::Ended {
            program: program.clone(),
            said: "it has no standard error".into(),
        })?;
        Ok((Service { program, process }, keep(said, ready, log)?))
    }

    fn wait(&self, told: &Receiver<()>, ready: &'static str, log: &Path) -> Result<(), Trouble> {
        match told.recv_timeout(PATIENCE) {
            Ok(()) => Ok(()),
            Err(RecvTimeoutError::Timeout) => Err(Trouble::Late { what: ready, within: PATIENCE }),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Trouble::Ended { program: self.program.clone(), said: format!("see {}", log.display()) })
            }
        }
    }

    /// Its number outside the stage: nsenter waits for its one child, which is the program.
    pub(crate) fn pid(&self) -> Result<Pid, Trouble> {
        let nsenter = self.process.id();
        let list = PathBuf::from(format!("/proc/{nsenter}/task/{nsenter}/children"));
        let gone =
            || Trouble::Ended { program: self.program.clone(), said: "it is not running any more".into() };
        let start = Instant::now();
        // A zombie has no children, and nsenter has none yet in its first milliseconds.
        while start.elapsed() < FORKED {
            let children = fs::read_to_string(&list).map_err(Trouble::file(&list))?;
            if let Some(child) = children.split_whitespace().next() {
                return child.parse().map(Pid::from_raw).map_err(|_| gone());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Err(gone())
    }

    /// Sends it a signal and returns when it has ended. What it started lives on.
    pub(crate) fn end(mut self, signal: Signal) -> Result<(), Trouble> {
        kill(self.pid()?, signal).map_err(|errno| Trouble::file(&self.program)(errno.into()))?;
        let ended = self.process.wait();
        ended.map(drop).map_err(Trouble::file(self.program))
    }
}

/// The program behind nsenter's own arguments, which end in `--`.
fn named(command: &Command) -> PathBuf {
    let behind = command.get_args().skip_while(|argument| *argument != "--").nth(1);
    PathBuf::from(behind.unwrap_or(command.get_program()))
}

/// Copies what it says to the log, and tells once that it is ready.
fn keep(said: ChildStderr, ready: &'static str, log: &Path) -> Result<Receiver<()>, Trouble> {
    let opened = File::options().create(true).append(true).open(log);
    let mut file = opened.map_err(Trouble::file(log))?;
    let (tell, told): (Sender<()>, _) = channel();
    thread::spawn(move || {
        let mut tell = Some(tell);
        for line in BufReader::new(said).lines().map_while(Result::ok) {
            if line.contains(ready) {
                let _ = tell.take().map(|tell| tell.send(()));
            }
            // A log that cannot be kept must not stop the program by a full pipe.
            let _ = writeln!(file, "{line}");
        }
    });
    Ok(told)
}
