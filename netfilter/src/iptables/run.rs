//! Runs one program to its end: absolute path, empty environment, memory files for its input and
//! output, and a deadline. Knows no rules.

use super::error::IptablesError;
use super::programs::Program;
use super::user_namespace::confine;
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Under which conditions programs run.
#[derive(Clone, Copy)]
pub(super) struct Conditions<'a> {
    /// When the last of them must have ended.
    pub deadline: Instant,
    /// The file that legacy programs lock.
    pub lock: &'a Path,
    /// The user namespace to enter first.
    pub user_namespace: Option<BorrowedFd<'a>>,
}

/// What a program said.
pub(super) struct Answer {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// More than this no namespace of ours will ever print; the rest is cut and so cannot be judged.
const LONGEST_OUTPUT: u64 = 64 << 20;
const LONGEST_COMPLAINT: u64 = 4 << 10;

impl Conditions<'_> {
    /// How long is left, never quite nothing.
    pub(super) fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }

    /// Runs `program` on `input` and waits for its end.
    pub(super) fn run(
        &self,
        program: &Program,
        arguments: &[String],
        input: &str,
    ) -> Result<Answer, IptablesError> {
        let not_run = |source| IptablesError::NotRun { program: program.path.clone(), source };
        let time = self.time_left();
        let mut output = memory_file().map_err(not_run)?;
        let mut complaint = memory_file().map_err(not_run)?;
        let mut command = self.command(program, arguments).map_err(not_run)?;
        command.stdin(filled(input).map_err(not_run)?);
        command.stdout(output.try_clone().map_err(not_run)?);
        command.stderr(complaint.try_clone().map_err(not_run)?);
        let child = command.spawn().map_err(|source| match source.raw_os_error().map(Errno::from_raw) {
            // What is done between fork and exec: becoming root of a user namespace that may have none.
            Some(Errno::EINVAL | Errno::EPERM) if self.user_namespace.is_some() => {
                IptablesError::UserNamespace(source)
            }
            _ => not_run(source),
        })?;
        let status = end_of(child, time)
            .map_err(not_run)?
            .ok_or_else(|| IptablesError::Deadline { program: program.path.clone(), after: time })?;
        Ok(Answer {
            status,
            stdout: read_back(&mut output, LONGEST_OUTPUT).map_err(not_run)?,
            stderr: read_back(&mut complaint, LONGEST_COMPLAINT).map_err(not_run)?,
        })
    }

    #[expect(clippy::disallowed_methods, reason = "this backend is iptables: its programs are what it runs")]
    fn command(&self, program: &Program, arguments: &[String]) -> io::Result<Command> {
        let mut command = Command::new(&program.path);
        command.args(program.applet).args(arguments).current_dir("/");
        command.env_clear().env("XTABLES_LOCKFILE", self.lock);
        confine(&mut command, self.user_namespace.map(|fd| fd.try_clone_to_owned()).transpose()?);
        Ok(command)
    }
}

/// Memory, not pipes: nobody has to read while another writes, and what the program leaves running
/// (a modprobe) keeps nobody waiting.
fn memory_file() -> io::Result<File> {
    Ok(memfd_create(c"gybe-iptables", MFdFlags::MFD_CLOEXEC)?.into())
}

fn filled(text: &str) -> io::Result<File> {
    let mut file = memory_file()?;
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

fn read_back(file: &mut File, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(most).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Waits for the end, at most `time`; then kills and gives `None`.
fn end_of(mut child: Child, time: Duration) -> io::Result<Option<ExitStatus>> {
    let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    thread::scope(|scope| {
        let (ended, end) = mpsc::channel();
        // Looks without reaping, so that the number still means this child when it is killed.
        scope.spawn(move || {
            while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
            let _nobody_waits = ended.send(());
        });
        let in_time = end.recv_timeout(time).is_ok();
        if !in_time {
            child.kill()?;
        }
        let status = child.wait()?;
        Ok(in_time.then_some(status))
    })
}
