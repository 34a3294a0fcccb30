//! A program asked for its version where it will have to run, before anything depends on it.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::error::errno;
use crate::host::install::wanted::Trial;

/// It takes a millisecond; on a node that swaps, longer.
const PATIENCE: Duration = Duration::from_secs(10);
/// More than any answer.
const LONGEST: u64 = 64 << 10;

/// What a program did instead of telling its version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrialError {
    /// The kernel does not run it.
    #[error("it cannot be run")]
    NotRun(#[source] Errno),
    /// It ended badly.
    #[error("it ended with {0}")]
    Failed(String),
    /// It said something else.
    #[error("it did not answer VERSION with the versions it speaks")]
    NoVersions,
    /// It did not end.
    #[error("it gave no answer for {} seconds", PATIENCE.as_secs())]
    Hung,
}

impl TrialError {
    /// What helps.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotRun(Errno::ENOEXEC) => Some("the image is for another architecture than this node"),
            Self::NotRun(Errno::EACCES | Errno::EPERM) => {
                Some("the directory is mounted noexec, or a security module forbids running programs there")
            }
            // Its loader: the programs of the image need none.
            Self::NotRun(Errno::ENOENT) => Some("it is no static program; use those of the image"),
            Self::NotRun(_) => None,
            Self::Failed(_) | Self::NoVersions => Some(
                "what was there is kept; look for a damaged or foreign program in the image or beside gybe",
            ),
            Self::Hung => Some(
                "look at the node's load and its disk, then at what the program waits for; what was there is kept",
            ),
        }
    }
}

/// Runs it once.
pub fn run(program: &Path, trial: Trial) -> Result<(), TrialError> {
    let (success, status, said) = answer(start(program, trial)?)?;
    match trial {
        _ if !success => Err(TrialError::Failed(status)),
        Trial::CniVersion if !names_versions(&said) => Err(TrialError::NoVersions),
        Trial::CniVersion | Trial::Version => Ok(()),
    }
}

fn start(program: &Path, trial: Trial) -> Result<Child, TrialError> {
    #[expect(clippy::disallowed_methods, reason = "what is to be installed has to be seen running")]
    let mut command = Command::new(program);
    command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    match trial {
        // As libcni asks: CRI-O does so before it takes a network.
        Trial::CniVersion => command.envs([
            ("CNI_COMMAND", "VERSION"),
            ("CNI_IFNAME", "dummy"),
            ("CNI_NETNS", "dummy"),
            ("CNI_PATH", "dummy"),
        ]),
        Trial::Version => command.arg("--version"),
    };
    let mut child = spawn(&mut command)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that does not read its input may be gone already; its answer tells.
        let _ = stdin.write_all(br#"{"cniVersion":"1.0.0"}"#);
    }
    Ok(child)
}

/// A process started by another thread while we wrote holds our descriptor until its own exec: until
/// then the kernel says "text file busy" (F09), and it has no event for the end of that.
fn spawn(command: &mut Command) -> Result<Child, TrialError> {
    let until = Instant::now() + PATIENCE;
    loop {
        match command.spawn() {
            Err(why) if errno(&why) == Errno::ETXTBSY && Instant::now() < until => {
                thread::sleep(Duration::from_millis(1));
            }
            spawned => return spawned.map_err(|why| TrialError::NotRun(errno(&why))),
        }
    }
}

fn answer(mut child: Child) -> Result<(bool, String, Vec<u8>), TrialError> {
    let pid = Pid::from_raw(i32::try_from(child.id()).map_err(|_| TrialError::NotRun(Errno::ESRCH))?);
    let stdout = child.stdout.take();
    let (tell, told) = mpsc::channel();
    // A thread waits, since only it can be waited for with a deadline.
    let waiting = thread::Builder::new().spawn(move || tell.send(child.wait()));
    let waiting = match waiting {
        Ok(waiting) => waiting,
        // Nobody else will reap it.
        Err(why) => {
            let _ = kill(pid, Signal::SIGKILL);
            let _ = waitpid(pid, None);
            return Err(TrialError::NotRun(errno(&why)));
        }
    };
    let (ended, hung) = match told.recv_timeout(PATIENCE) {
        Err(RecvTimeoutError::Timeout) => {
            // It is not reaped before the thread says so, so the number is still its own.
            let _ = kill(pid, Signal::SIGKILL);
            (told.recv(), true)
        }
        told => (told.map_err(|_| mpsc::RecvError), false),
    };
    let _ = waiting.join();
    match ended {
        _ if hung => Err(TrialError::Hung),
        Ok(Ok(status)) => {
            Ok((status.success(), status.to_string(), stdout.map(what_it_said).unwrap_or_default()))
        }
        Ok(Err(why)) => Err(TrialError::NotRun(errno(&why))),
        Err(_) => Err(TrialError::NotRun(Errno::ECHILD)),
    }
}

/// What is in the pipe of a program that has ended. Its end is not waited for: whatever it has started
/// and left behind may hold the other side for ever. No answer is longer than a pipe (pipe(7)).
fn what_it_said(pipe: ChildStdout) -> Vec<u8> {
    let mut said = Vec::new();
    if fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_ok() {
        // What was read before "nothing more for now" counts.
        let _ = pipe.take(LONGEST).read_to_end(&mut said);
    }
    said
}

fn names_versions(said: &[u8]) -> bool {
    let answer = serde_json::from_slice::<serde_json::Value>(said).unwrap_or_default();
    answer.get("supportedVersions").and_then(|it| it.as_array()).is_some_and(|versions| !versions.is_empty())
}
