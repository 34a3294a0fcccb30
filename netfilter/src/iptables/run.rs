//! One call of an iptables program: absolute path, empty environment, as root of the right user
//! namespace, and a deadline for all of them. Knows no rules.

use super::error::IptablesError;
use super::programs::Program;
use super::user_namespace::confine;
use crate::program::{NotRun, run};
use nix::errno::Errno;
use std::io;
use std::os::fd::BorrowedFd;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// Under which conditions programs run.
#[derive(Clone, Copy)]
pub(super) struct Conditions<'a> {
    /// When the last of them must have ended.
    pub deadline: Instant,
    /// The user namespace to enter first.
    pub user_namespace: Option<BorrowedFd<'a>>,
}

/// What legacy programs lock: the network namespace is locked already, by us, so each has to have a
/// file that nobody else locks. The mount namespace is the thread's own where one may be made
/// (`secluded`), and no file is left behind. `flock` works on it; seen with iptables-legacy-restore
/// 1.8.9. Before 1.8.6 the file cannot be chosen, and all namespaces wait for /run/xtables.lock.
const PROGRAMS_LOCK: &str = "/proc/self/ns/mnt";

/// What a program said.
pub(super) struct Answer {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// More than this no namespace of ours will ever print.
const LONGEST_OUTPUT: u64 = 64 << 20;
/// A program may complain at length; so much of it is told.
const LONGEST_COMPLAINT: u64 = 64 << 10;
const TOLD: usize = 4 << 10;

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
        let command = self.command(program, arguments).map_err(not_run)?;
        let longest = (LONGEST_OUTPUT, LONGEST_COMPLAINT);
        let ended = run(command, input.as_bytes(), time, longest).map_err(|fault| match fault {
            NotRun::Late(after) => IptablesError::Deadline { program: program.path.clone(), after },
            NotRun::Talk(source) => not_run(source),
            NotRun::Start(source) => match source.raw_os_error().map(Errno::from_raw) {
                // What is done between fork and exec: becoming root of a user namespace that may have none.
                Some(Errno::EINVAL | Errno::EPERM) if self.user_namespace.is_some() => {
                    IptablesError::UserNamespace(source)
                }
                _ => not_run(source),
            },
        })?;
        Ok(Answer {
            status: ended.status,
            stdout: String::from_utf8_lossy(&ended.stdout).into_owned(),
            stderr: String::from_utf8_lossy(ended.stderr.get(..TOLD).unwrap_or(&ended.stderr)).into_owned(),
        })
    }

    #[expect(clippy::disallowed_methods, reason = "this backend is iptables: its programs are what it runs")]
    fn command(&self, program: &Program, arguments: &[String]) -> io::Result<Command> {
        let mut command = Command::new(&program.path);
        command.args(program.applet).args(arguments).current_dir("/");
        command.env_clear().env("XTABLES_LOCKFILE", PROGRAMS_LOCK);
        confine(&mut command, self.user_namespace.map(|fd| fd.try_clone_to_owned()).transpose()?);
        Ok(command)
    }
}
