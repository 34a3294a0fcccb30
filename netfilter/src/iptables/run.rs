//! One call of an iptables program: absolute path, empty environment, as root of the user namespace that owns the
//! network namespace, with one deadline for all calls, on a thread whose view of the host's files is its own.

use super::error::IptablesError;
use super::programs::IptablesProgram;
use super::user_namespace::confine;
use crate::iptables::program::{OutputLimits, ProgramError, run};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::os::fd::BorrowedFd;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};
use std::{io, panic, thread};

/// The user and group files that the programs must not read. An empty /etc/nsswitch.conf means "files only" to the C
/// library.
///
/// `iptables-restore` looks up every id as a name before it reads it as a number, even where the input has only
/// numbers: libxt_owner calls `getpwnam("1337")`. Seen with
/// `strace -f -e trace=openat,connect iptables-nft-restore --noflush` (1.8.9, both variants) on one rule
/// with `--uid-owner 1337`: /var/run/nscd/socket, /etc/nsswitch.conf, /etc/passwd, libnss_systemd.
/// A directory service can therefore delay it, and a user named "1337" can change a rule's meaning.
const MASKED: [&str; 4] = ["/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/var/run/nscd/socket"];

/// Runs `work` on a thread without names of users and groups; its child processes inherit that.
///
/// The thread keeps the caller's network namespace and ends with the work, so nothing has to be undone. Where the
/// kernel refuses the mounts, the work runs all the same, which is right on every node without users named like
/// numbers.
pub(super) fn on_private_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("iptables".to_owned()).spawn_scoped(scope, || {
            let _best_effort = mask_names();
            work()
        })?;
        Ok(thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic)))
    })
}

fn mask_names() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Private first: through a shared mount the host would see an empty /etc/passwd.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
    for path in MASKED {
        match mount(Some("/dev/null"), path, None::<&str>, MsFlags::MS_BIND, None::<&str>) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// The conditions under which programs run.
#[derive(Clone, Copy)]
pub(super) struct RunConditions<'a> {
    /// When the last program must have ended.
    pub deadline: Instant,
    /// The user namespace that a program enters first.
    pub user_namespace: Option<BorrowedFd<'a>>,
}

/// The lock file of the legacy programs. Gybe has locked the network namespace already, so each program needs a file
/// that no other process locks. The mount namespace is the thread's own where the kernel allows one, and no file is
/// left behind. `flock` works on it; seen with iptables-legacy-restore 1.8.9. Before 1.8.6 the file cannot be
/// chosen, and all namespaces wait for /run/xtables.lock.
const PROGRAMS_LOCK: &str = "/proc/self/ns/mnt";

/// The exit status and the output of a program.
pub(super) struct ProgramOutput {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// The rules of one namespace never take 64 MiB of stdout.
const LIMITS: OutputLimits = OutputLimits { stdout: 64 << 20, stderr: 64 << 10 };
/// The bytes of stderr that an error message may quote.
const MAX_QUOTED: usize = 4 << 10;

impl RunConditions<'_> {
    /// The time until the deadline, at least 1 ms.
    pub(super) fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }

    /// Runs `program` with `input` on stdin, and waits for its end.
    pub(super) fn run(
        &self,
        program: &IptablesProgram,
        arguments: &[String],
        input: &str,
    ) -> Result<ProgramOutput, IptablesError> {
        let not_run = |source| IptablesError::NotRun { program: program.path.clone(), source };
        let time = self.time_left();
        let command = self.command(program, arguments).map_err(not_run)?;
        let output = run(command, input.as_bytes(), time, LIMITS).map_err(|fault| match fault {
            ProgramError::Timeout(after) => IptablesError::Deadline { program: program.path.clone(), after },
            ProgramError::Io(source) => not_run(source),
            ProgramError::Start(source) => match source.raw_os_error().map(Errno::from_raw) {
                // Fails between fork and exec: the user namespace may not have a root user to become.
                Some(Errno::EINVAL | Errno::EPERM) if self.user_namespace.is_some() => {
                    IptablesError::UserNamespace(source)
                }
                _ => not_run(source),
            },
        })?;
        Ok(ProgramOutput {
            status: output.status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(output.stderr.get(..MAX_QUOTED).unwrap_or(&output.stderr))
                .into_owned(),
        })
    }

    #[expect(clippy::disallowed_methods, reason = "this backend is iptables: its programs are what it runs")]
    fn command(&self, program: &IptablesProgram, arguments: &[String]) -> io::Result<Command> {
        let mut command = Command::new(&program.path);
        command.args(program.applet).args(arguments).current_dir("/");
        command.env_clear().env("XTABLES_LOCKFILE", PROGRAMS_LOCK);
        confine(&mut command, self.user_namespace.map(|fd| fd.try_clone_to_owned()).transpose()?);
        Ok(command)
    }
}
