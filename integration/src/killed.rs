//! Runs a program and kills it at the n-th system call it makes, counted over all its threads (but
//! not over what it forks). What the program is and what is left afterwards is not known here.
//!
//! `strace -e inject=…:when=N` counts each thread's calls for itself, and so never gets to those of
//! a thread that makes fewer than its elders.

use nix::errno::Errno;
use nix::libc::PTRACE_SYSCALL_INFO_ENTRY;
use nix::sys::ptrace::{self, Event, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It was killed as it made its n-th system call.
    Killed,
    /// It makes fewer: it came to its own end.
    Itself {
        /// Its exit code; `None` when by another signal.
        code: Option<i32>,
        /// How many system calls it made.
        calls: u64,
        /// What it wrote to stdout and stderr.
        said: String,
    },
}

/// What a shell does to become the program once it is watched: it waits for a line.
pub const BECOME: [&str; 3] = ["sh", "-c", "read -r _ && exec \"$0\" \"$@\""];

/// Runs `command`, which begins with [`BECOME`], on `stdin`, and kills it at its system call `at`.
///
/// # Errors
/// When it cannot be run or watched.
pub fn killed_at(mut command: Command, stdin: &str, at: u64) -> io::Result<End> {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_TRACEEXEC;
    ptrace::seize(pid, options | Options::PTRACE_O_EXITKILL)?;
    if let Some(mut pipe) = child.stdin.take() {
        pipe.write_all(b"\n")?;
        pipe.write_all(stdin.as_bytes())?;
    }
    let end = Watch { pid, at, calls: 0, became: false }.follow()?;
    let mut said = String::new();
    child.stdout.take().map_or(Ok(0), |mut pipe| pipe.read_to_string(&mut said))?;
    child.stderr.take().map_or(Ok(0), |mut pipe| pipe.read_to_string(&mut said))?;
    Ok(match end {
        Some((code, calls)) => End::Itself { code, calls, said },
        None => End::Killed,
    })
}

struct Watch {
    pid: Pid,
    at: u64,
    calls: u64,
    /// Is it the program by now, and not the shell any more?
    became: bool,
}

impl Watch {
    /// Its exit code and calls; `None` when it was killed by us.
    fn follow(mut self) -> nix::Result<Option<(Option<i32>, u64)>> {
        // __WALL: also threads. __WNOTHREAD: only what this very thread started.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        loop {
            let (who, deliver) = match waitpid(None, Some(flags))? {
                WaitStatus::Exited(who, code) if who == self.pid => {
                    return Ok(Some((Some(code), self.calls)));
                }
                WaitStatus::Signaled(who, ..) if who == self.pid => {
                    return Ok((self.calls < self.at).then_some((None, self.calls)));
                }
                WaitStatus::PtraceEvent(who, _, event) => {
                    self.became |= event == Event::PTRACE_EVENT_EXEC as i32;
                    (who, None)
                }
                WaitStatus::PtraceSyscall(who) => {
                    if self.is_the_call(who)? {
                        // What is killed on its way into a call does not make it.
                        kill(self.pid, Signal::SIGKILL)?;
                        continue;
                    }
                    (who, None)
                }
                WaitStatus::Stopped(who, signal) => (who, Some(signal)),
                _ => continue,
            };
            let go_on = if self.became { ptrace::syscall(who, deliver) } else { ptrace::cont(who, deliver) };
            match go_on {
                // Killed meanwhile: the next wait tells.
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Is this stop the beginning of the call at which it is to be killed?
    fn is_the_call(&mut self, who: Pid) -> nix::Result<bool> {
        let entered = match ptrace::syscall_info(who) {
            Ok(info) => info.op == PTRACE_SYSCALL_INFO_ENTRY,
            Err(Errno::ESRCH) => false,
            Err(errno) => return Err(errno),
        };
        self.calls += u64::from(entered);
        Ok(entered && self.calls == self.at)
    }
}
