//! Runs a program and sees, from its first instruction on, every other one it runs. What the
//! program is asked is not known here.
//!
//! A child asks to be traced and stops; then it becomes the program. From there the kernel stops it
//! at every fork, clone and exec (ptrace(2), `PTRACE_O_TRACE*`), and nothing can slip by: what it
//! forks is traced from birth.

use nix::errno::Errno;
use nix::sys::ptrace::{self, Event, Options};
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, execv};
use std::ffi::CString;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// How a watched program ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedRun {
    /// Its exit code; `None` when a signal ended it.
    pub exit: Option<i32>,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
    /// From its first instruction to its end.
    pub took: Duration,
    /// What it was seen doing.
    pub seen: Observed,
}

/// What a program was seen doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observed {
    /// The kernel told everything.
    All {
        /// Programs it executed.
        programs: u32,
        /// Processes it forked.
        processes: u32,
    },
    /// The kernel let nobody watch.
    Nothing,
}

/// Why it was not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It could not be started, written to or read from.
    #[error("cannot run {program}")]
    Run {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// The kernel stopped telling about it.
    #[error("cannot watch {program}: {errno}")]
    Watch {
        /// The program.
        program: String,
        /// Why.
        errno: Errno,
    },
}

/// Longer than any ADD may take; then it is killed.
const AT_MOST: Duration = Duration::from_secs(10);

/// In the child: waits to be watched, and becomes `program`. Comes back only when it cannot.
pub fn become_program(program: &Path) -> io::Error {
    // Where nobody may be traced the program runs all the same, and nothing is claimed about it.
    if ptrace::traceme().is_ok()
        && let Err(errno) = raise(Signal::SIGSTOP)
    {
        return errno.into();
    }
    let Ok(path) = CString::new(program.as_os_str().as_bytes()) else {
        return io::Error::from(Errno::EINVAL);
    };
    match execv(&path, &[&path]) {
        Err(errno) => errno.into(),
    }
}

/// Runs `child`, a command that ends in [`become_program`], and watches it.
///
/// # Errors
/// When it cannot be started, fed or watched.
pub fn watch(mut child: Command, stdin: &str) -> Result<TracedRun, TraceError> {
    let program = child.get_program().to_string_lossy().into_owned();
    let run = |source| TraceError::Run { program: program.clone(), source };
    child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let begun = Instant::now();
    let mut child = child.spawn().map_err(run)?;
    // It reads only once it is let go on; until then the pipe holds this.
    child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(stdin.as_bytes())).map_err(run)?;
    let pid = i32::try_from(child.id()).map(Pid::from_raw).map_err(|_| run(Errno::ESRCH.into()))?;
    let watching = |errno| TraceError::Watch { program: program.clone(), errno };
    let (alarm, ended) = mpsc::channel();
    let end = thread::scope(|scope| {
        scope.spawn(move || {
            if ended.recv_timeout(AT_MOST).is_err() {
                let _gone_already = kill(pid, Signal::SIGKILL);
            }
        });
        let end = Watch { pid, begun, became: false, seen: Observed::Nothing }.follow();
        if end.is_err() {
            let _gone_already = kill(pid, Signal::SIGKILL);
        }
        let _sent = alarm.send(());
        end
    });
    let End { exit, took, seen } = end.map_err(watching)?;
    let (stdout, stderr) = output(&mut child).map_err(run)?;
    Ok(TracedRun { exit, stdout, stderr, took, seen })
}

/// What it wrote; it has ended, and all it wrote is in the pipes.
fn output(child: &mut Child) -> io::Result<(String, String)> {
    let (mut stdout, mut stderr) = (String::new(), String::new());
    child.stdout.take().map_or(Ok(0), |mut pipe| pipe.read_to_string(&mut stdout))?;
    child.stderr.take().map_or(Ok(0), |mut pipe| pipe.read_to_string(&mut stderr))?;
    Ok((stdout, stderr))
}

/// What is known about a program so far.
struct Watch {
    pid: Pid,
    /// When it began; until its own exec this is the child that is to become it.
    begun: Instant,
    became: bool,
    seen: Observed,
}

/// How it ended.
struct End {
    exit: Option<i32>,
    took: Duration,
    seen: Observed,
}

impl Watch {
    /// Lets it run from stop to stop until it has ended.
    fn follow(mut self) -> nix::Result<End> {
        // __WALL: also threads. __WNOTHREAD: only what this very thread started.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        loop {
            let status = waitpid(None, Some(flags))?;
            let (who, deliver) = match status {
                WaitStatus::Exited(who, code) if who == self.pid => return Ok(self.end(Some(code))),
                WaitStatus::Signaled(who, ..) if who == self.pid => return Ok(self.end(None)),
                WaitStatus::PtraceEvent(who, _, event) => {
                    self.notice(who, event)?;
                    (who, None)
                }
                WaitStatus::Stopped(who, Signal::SIGSTOP) => {
                    self.begin(who)?;
                    (who, None)
                }
                WaitStatus::Stopped(who, signal) => (who, Some(signal)),
                _ => continue,
            };
            match ptrace::cont(who, deliver) {
                // Killed meanwhile: the next wait tells.
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// The child's own stop is the first; later ones are of threads and processes newly born.
    fn begin(&mut self, who: Pid) -> nix::Result<()> {
        if who != self.pid || self.seen != Observed::Nothing {
            return Ok(());
        }
        let births =
            Options::PTRACE_O_TRACEFORK | Options::PTRACE_O_TRACEVFORK | Options::PTRACE_O_TRACECLONE;
        ptrace::setoptions(who, births | Options::PTRACE_O_TRACEEXEC | Options::PTRACE_O_EXITKILL)?;
        self.seen = Observed::All { programs: 0, processes: 0 };
        Ok(())
    }

    fn notice(&mut self, who: Pid, event: i32) -> nix::Result<()> {
        let Observed::All { mut programs, mut processes } = self.seen else { return Ok(()) };
        if event == Event::PTRACE_EVENT_EXEC as i32 {
            if self.became {
                programs += 1;
            } else {
                self.became = true;
                self.begun = Instant::now();
            }
        } else {
            // A thread is born by the same call as a process; it is listed among its siblings.
            let born = ptrace::getevent(who)?;
            let thread = Path::new(&format!("/proc/{}/task/{born}", self.pid)).exists();
            processes += u32::from(!thread);
        }
        self.seen = Observed::All { programs, processes };
        Ok(())
    }

    fn end(self, exit: Option<i32>) -> End {
        End { exit, took: self.begun.elapsed(), seen: self.seen }
    }
}
