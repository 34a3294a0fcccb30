//! A program that runs on a simulated host: ready at a log message, ended by a signal, its log kept in a file.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::HarnessError;
use crate::cri::CALL_TIMEOUT;

/// Longer than nsenter takes to start the program.
const FORK_TIMEOUT: Duration = Duration::from_secs(10);

/// A running program. It ends with its host at the latest.
#[derive(Debug)]
pub struct HostProcess {
    program: PathBuf,
    nsenter: Child,
}

impl HostProcess {
    /// Starts a program and returns when a line of its log contains `ready`. The log is appended to `log`.
    pub fn start_and_wait(command: Command, ready: &'static str, log: &Path) -> Result<Self, HarnessError> {
        let (process, is_ready) = HostProcess::spawn(command, ready, log)?;
        match is_ready.recv_timeout(CALL_TIMEOUT) {
            Ok(()) => Ok(process),
            Err(RecvTimeoutError::Timeout) => {
                Err(HarnessError::Timeout { what: ready, within: CALL_TIMEOUT })
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(process.ended(&format!("its log is {}", log.display())))
            }
        }
    }

    /// Starts a program and returns at once.
    pub fn start(command: Command, ready: &'static str, log: &Path) -> Result<Self, HarnessError> {
        Ok(HostProcess::spawn(command, ready, log)?.0)
    }

    fn spawn(
        mut command: Command,
        ready: &'static str,
        log: &Path,
    ) -> Result<(Self, Receiver<()>), HarnessError> {
        // The program comes after nsenter's own arguments, which end in `--`.
        let program = command.get_args().skip_while(|argument| *argument != "--").nth(1);
        let program = PathBuf::from(program.unwrap_or(command.get_program()));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut nsenter = command.spawn().map_err(HarnessError::start(&program))?;
        let stderr = nsenter.stderr.take();
        let process = HostProcess { program, nsenter };
        let stderr = stderr.ok_or_else(|| process.ended("it has no standard error"))?;
        Ok((process, copy_log(stderr, ready, log)?))
    }

    fn ended(&self, message: &str) -> HarnessError {
        HarnessError::Ended { program: self.program.clone(), message: message.to_owned() }
    }

    /// The process id outside the host's namespaces: that of nsenter's only child.
    pub fn pid(&self) -> Result<Pid, HarnessError> {
        let nsenter = self.nsenter.id();
        let list = PathBuf::from(format!("/proc/{nsenter}/task/{nsenter}/children"));
        let start = Instant::now();
        // nsenter has no child in its first milliseconds, and none after the program's end.
        while start.elapsed() < FORK_TIMEOUT {
            let children = fs::read_to_string(&list).map_err(HarnessError::file(&list))?;
            if let Some(child) = children.split_whitespace().next() {
                return child.parse().map(Pid::from_raw).map_err(|_| self.ended("its process id is unknown"));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Err(self.ended("it does not run any more"))
    }

    /// Stops the program until the returned value is dropped.
    pub fn suspend(&self) -> Result<Suspended<'_>, HarnessError> {
        let program = self.pid()?;
        kill(program, Signal::SIGSTOP).map_err(|errno| HarnessError::file(&self.program)(errno.into()))?;
        Ok(Suspended { process: self, program })
    }

    /// Sends a signal and waits until the program has ended. Its child processes go on running.
    pub fn stop(mut self, signal: Signal) -> Result<(), HarnessError> {
        self.end(signal)
    }

    /// As [`HostProcess::stop`], for a program that another replaces.
    pub(crate) fn end(&mut self, signal: Signal) -> Result<(), HarnessError> {
        kill(self.pid()?, signal).map_err(|errno| HarnessError::file(&self.program)(errno.into()))?;
        self.nsenter.wait().map(drop).map_err(HarnessError::file(&self.program))
    }
}

/// A program that does not run until this is dropped.
#[derive(Debug)]
pub struct Suspended<'p> {
    process: &'p HostProcess,
    program: Pid,
}

impl Drop for Suspended<'_> {
    /// nsenter stopped itself with its child. It has to go on, too: otherwise nothing reaps the child, and the host
    /// cannot end.
    fn drop(&mut self) {
        let nsenter = Pid::from_raw(self.process.nsenter.id().cast_signed());
        for process in [self.program, nsenter] {
            // The program may have been killed meanwhile.
            let _ = kill(process, Signal::SIGCONT);
        }
    }
}

/// Copies the program's standard error to the log and sends once when a line contains `ready`.
fn copy_log(stderr: ChildStderr, ready: &'static str, log: &Path) -> Result<Receiver<()>, HarnessError> {
    let opened = File::options().create(true).append(true).open(log);
    let mut file = opened.map_err(HarnessError::file(log))?;
    let (sender, receiver): (Sender<()>, _) = channel();
    thread::spawn(move || {
        let mut sender = Some(sender);
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if line.contains(ready) {
                let _ = sender.take().map(|sender| sender.send(()));
            }
            // Reading goes on after a failed write: a full pipe would block the program.
            let _ = writeln!(file, "{line}");
        }
    });
    Ok(receiver)
}

/// Returns the path of a built program of another package, such as `gybe-cni`. It is in the directory of this
/// crate's programs, which is the parent directory of a test's.
pub fn program_under_test(name: &str) -> Result<PathBuf, HarnessError> {
    let this = std::env::current_exe().map_err(HarnessError::file("/proc/self/exe"))?;
    let mut candidates = this.ancestors().skip(1).take(2).map(|directory| directory.join(name));
    let built = candidates.find(|path| path.is_file());
    built.ok_or_else(|| HarnessError::NotBuilt { path: this.with_file_name(name) })
}
