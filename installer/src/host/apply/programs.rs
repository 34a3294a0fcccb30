//! Copies a program to the host: written, read back, tried, and only then renamed to its name. A trial queries the
//! program's version on this node, before any conf file depends on it.

use gybe_netfilter::model::Hint;
use gybe_plugin::version::BUILD_MARK;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, openat};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, fchmod};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, fsync};

use super::ChangeError;
use super::directory::{OpenDirectory, temporary_name};
use crate::error::errno;
use crate::host::desired::{Program, Trial};
use crate::host::image::has_text;
use crate::host::observe::Hash;

/// Bytes written at once: the whole of `gybe-cni`, whose pages then lie together in the page cache, which
/// shortens each call of it by 30 to 180 µs (Linux 6.18, docs/BENCHMARKS.md).
const IN_ONE_PIECE: usize = 2 << 20;

/// Replaces a program. The old one serves until the rename, and its running processes continue, because a
/// rename gives the name to another file (F09).
pub(super) fn place(folder: &OpenDirectory, program: &Program) -> Result<(), ChangeError> {
    copy(folder, program)
        .and_then(|()| check(folder, program))
        .and_then(|()| folder.rename(temporary_name(), &program.name))
        .map_err(|why| folder.give_up(why))?;
    folder.sync()
}

fn copy(folder: &OpenDirectory, program: &Program) -> Result<(), ChangeError> {
    let unread = |why: &std::io::Error| ChangeError::System {
        step: "read",
        path: program.source.clone(),
        why: errno(why),
    };
    let mut source = File::open(&program.source).map_err(|why| unread(&why))?;
    let mut copy = folder.temporary()?;
    let mut buffer = vec![0; IN_ONE_PIECE];
    // Plain reads and writes: copy_file_range fails on some overlays (F10).
    loop {
        let n = source.read(&mut buffer).map_err(|why| unread(&why))?;
        if n == 0 {
            break;
        }
        let piece = buffer.get(..n).unwrap_or_default();
        copy.write_all(piece).map_err(|why| folder.failed("write", program.name.as_os_str())(errno(&why)))?;
    }
    fchmod(&copy, Mode::from_bits_truncate(0o755))
        .and_then(|()| fsync(&copy))
        .map_err(folder.failed("write", program.name.as_os_str()))
}

fn check(folder: &OpenDirectory, program: &Program) -> Result<(), ChangeError> {
    let unread = || folder.failed("read", temporary_name());
    let fd =
        openat(&folder.fd, OsStr::new(temporary_name()), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty());
    let found = Hash::of_all(File::from(fd.map_err(unread())?)).map_err(|why| unread()(errno(&why)))?;
    if found != program.hash {
        let (source_path, desired) = (program.source.clone(), program.hash);
        return Err(ChangeError::Damaged { source_path, desired, found });
    }
    run(&folder.path.join(temporary_name()), program.trial)
        .map_err(|why| ChangeError::Trial { source_path: program.source.clone(), why })
}

/// The deadline of a trial. A response takes a millisecond, and longer on a node that swaps.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest response that is read, in bytes.
const MAX_RESPONSE: u64 = 64 << 10;

/// Why a program's trial failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrialError {
    #[error("it cannot be run")]
    NotRun(#[source] Errno),
    /// Its exit status.
    #[error("it ended with {0}")]
    Failed(String),
    #[error("it did not answer VERSION with its supported versions")]
    NoVersions,
    /// Whatever it answers, it may do anything at an ADD.
    #[error("it is no build of gybe-cni")]
    Another,
    #[error("it did not answer within {} seconds", TIMEOUT.as_secs())]
    Hung,
}

impl Hint for TrialError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::NotRun(Errno::ENOEXEC) => Some("use an image for this node's architecture".into()),
            Self::NotRun(Errno::EACCES | Errno::EPERM) => {
                Some("mount the directory without noexec, and check whether a security module forbids running programs there".into())
            }
            // The loader is missing: the image's programs need none.
            Self::NotRun(Errno::ENOENT) => Some("the program is not linked statically; use those of the image".into()),
            Self::NotRun(_) => None,
            Self::Another => Some("find out which program writes another one under this name, and run gybe install".into()),
            Self::Failed(_) | Self::NoVersions => Some(
                "look for a damaged or different program in the image or next to gybe; the old program is kept".into(),
            ),
            Self::Hung => Some(
                "look at the node's load and disk, then at what the program waits for; the old program is kept".into(),
            ),
        }
    }
}

/// Tries a program that this agent did not place: another release may have.
pub fn try_installed(program: &Path, trial: Trial) -> Result<(), TrialError> {
    run(program, trial)?;
    let is_build = File::open(program).and_then(|file| has_text(file, BUILD_MARK.as_bytes()));
    let is_another = trial == Trial::CniVersion && !is_build.unwrap_or_default();
    if is_another { Err(TrialError::Another) } else { Ok(()) }
}

/// Runs the program once.
fn run(program: &Path, trial: Trial) -> Result<(), TrialError> {
    let (success, status, response) = wait(start(program, trial)?)?;
    match trial {
        _ if !success => Err(TrialError::Failed(status)),
        Trial::CniVersion if !names_versions(&response) => Err(TrialError::NoVersions),
        Trial::CniVersion | Trial::Version => Ok(()),
    }
}

fn start(program: &Path, trial: Trial) -> Result<Child, TrialError> {
    #[expect(clippy::disallowed_methods, reason = "the trial has to run the program that is to be installed")]
    let mut command = Command::new(program);
    command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    match trial {
        // The query that libcni sends; CRI-O sends it before it accepts a network.
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
        // A program that does not read its input may have ended already; its response decides.
        let _ = stdin.write_all(br#"{"cniVersion":"1.0.0"}"#);
    }
    Ok(child)
}

/// Starts the program. A process that another thread forks during our write holds our descriptor until its own
/// exec: until then the kernel returns ETXTBSY (F09), and no event reports the release.
fn spawn(command: &mut Command) -> Result<Child, TrialError> {
    let until = Instant::now() + TIMEOUT;
    loop {
        match command.spawn() {
            Err(why) if errno(&why) == Errno::ETXTBSY && Instant::now() < until => {
                thread::sleep(Duration::from_millis(1));
            }
            spawned => return spawned.map_err(|why| TrialError::NotRun(errno(&why))),
        }
    }
}

fn wait(mut child: Child) -> Result<(bool, String, Vec<u8>), TrialError> {
    let pid = Pid::from_raw(i32::try_from(child.id()).map_err(|_| TrialError::NotRun(Errno::ESRCH))?);
    let stdout = child.stdout.take();
    let (sender, receiver) = mpsc::channel();
    // A thread waits for the child, because a channel can be waited for with a deadline.
    let waiting = thread::Builder::new().spawn(move || sender.send(child.wait()));
    let waiting = match waiting {
        Ok(waiting) => waiting,
        // Without the thread, the child has to be reaped here.
        Err(why) => {
            let _ = kill(pid, Signal::SIGKILL);
            let _ = waitpid(pid, None);
            return Err(TrialError::NotRun(errno(&why)));
        }
    };
    let (ended, hung) = match receiver.recv_timeout(TIMEOUT) {
        Err(RecvTimeoutError::Timeout) => {
            // The pid is still its own: the child is not reaped before the thread reports.
            let _ = kill(pid, Signal::SIGKILL);
            (receiver.recv(), true)
        }
        exit => (exit.map_err(|_| mpsc::RecvError), false),
    };
    let _ = waiting.join();
    match ended {
        _ if hung => Err(TrialError::Hung),
        Ok(Ok(status)) => {
            Ok((status.success(), status.to_string(), stdout.map(output_of).unwrap_or_default()))
        }
        Ok(Err(why)) => Err(TrialError::NotRun(errno(&why))),
        Err(_) => Err(TrialError::NotRun(Errno::ECHILD)),
    }
}

/// The output of a program that has ended. Does not wait for the end of the pipe: a process that the program
/// left behind may hold the other end forever. Every response fits in a pipe (pipe(7)).
fn output_of(pipe: ChildStdout) -> Vec<u8> {
    let mut response = Vec::new();
    if fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_ok() {
        // Output before EAGAIN counts.
        let _ = pipe.take(MAX_RESPONSE).read_to_end(&mut response);
    }
    response
}

fn names_versions(response: &[u8]) -> bool {
    let response = serde_json::from_slice::<serde_json::Value>(response).unwrap_or_default();
    response
        .get("supportedVersions")
        .and_then(|it| it.as_array())
        .is_some_and(|versions| !versions.is_empty())
}
