//! Runs a program and kills it at its n-th system call, counted over all its threads, without its children.
//!
//! `strace -e inject=…:when=N` counts the calls of each thread separately, so it never reaches those of a thread
//! that makes few.
//!
//! The program's parent is a shell, not this process: `gybe-cni` searches all threads of its parent for children, and
//! the number of a test's threads varies.

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
    /// Killed at its n-th system call.
    Killed,
    /// It made fewer and ended by itself.
    Exited {
        /// `None` when another signal ended it.
        code: Option<i32>,
        calls: u64,
    },
}

/// A program that ran, and what it wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub end: End,
    pub stdout: String,
    pub stderr: String,
}

/// Put before a command: waits for a line, by which time the shell is traced, and then runs the program.
pub const WAIT_THEN_RUN: [&str; 3] = ["sh", "-c", "read -r _ && \"$0\" \"$@\"; exit $?"];

/// Runs `command`, which begins with [`WAIT_THEN_RUN`], with `stdin`, and kills the program at its system call `at`.
///
/// # Errors
/// When the program cannot be run or traced.
pub fn kill_at_system_call(mut command: Command, stdin: &str, at: u64) -> io::Result<Run> {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    ptrace::seize(pid, of_program() | Options::PTRACE_O_TRACEFORK | Options::PTRACE_O_TRACEVFORK)?;
    if let Some(mut pipe) = child.stdin.take() {
        pipe.write_all(b"\n")?;
        pipe.write_all(stdin.as_bytes())?;
    }
    let end = Tracer { shell: pid, program: None, at, calls: 0 }.follow()?;
    let (mut stdout, mut stderr) = (String::new(), String::new());
    child.stdout.take().map_or(Ok(0), |mut pipe| pipe.read_to_string(&mut stdout))?;
    child.stderr.take().map_or(Ok(0), |mut pipe| pipe.read_to_string(&mut stderr))?;
    Ok(Run { end, stdout, stderr })
}

/// The program's threads are traced, its children are not.
fn of_program() -> Options {
    Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_EXITKILL
}

struct Tracer {
    shell: Pid,
    /// Known once the shell's child has executed it.
    program: Option<Pid>,
    at: u64,
    calls: u64,
}

impl Tracer {
    /// Returns the program's end once the shell has ended.
    fn follow(mut self) -> io::Result<End> {
        // __WALL: threads too. __WNOTHREAD: only children of the calling thread.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        let mut end = None;
        loop {
            let (pid, deliver) = match waitpid(None, Some(flags))? {
                WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..) if pid == self.shell => {
                    return end.ok_or_else(|| io::Error::other("the shell ended before the program"));
                }
                WaitStatus::Exited(pid, code) if Some(pid) == self.program => {
                    end = Some(End::Exited { code: Some(code), calls: self.calls });
                    continue;
                }
                WaitStatus::Signaled(pid, ..) if Some(pid) == self.program => {
                    let is_ours = self.calls >= self.at;
                    end = Some(if is_ours {
                        End::Killed
                    } else {
                        End::Exited { code: None, calls: self.calls }
                    });
                    continue;
                }
                WaitStatus::PtraceEvent(pid, _, event) => {
                    // The shell's own execution may come after it is traced.
                    if event == Event::PTRACE_EVENT_EXEC as i32 && pid != self.shell {
                        self.program = Some(pid);
                        ptrace::setoptions(pid, of_program())?;
                    }
                    (pid, None)
                }
                WaitStatus::PtraceSyscall(pid) => {
                    if self.is_target_call(pid)? {
                        // A process killed at the entry of a call does not execute it.
                        self.program.map_or(Ok(()), |program| kill(program, Signal::SIGKILL))?;
                        continue;
                    }
                    (pid, None)
                }
                WaitStatus::Stopped(pid, signal) => (pid, Some(signal)),
                _ => continue,
            };
            let is_programs = self.program.is_some() && pid != self.shell;
            let go_on = if is_programs { ptrace::syscall(pid, deliver) } else { ptrace::cont(pid, deliver) };
            match go_on {
                // Killed meanwhile: the next wait reports it.
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Reports whether this stop is the entry of the call at which to kill.
    fn is_target_call(&mut self, pid: Pid) -> nix::Result<bool> {
        let entered = match ptrace::syscall_info(pid) {
            Ok(info) => info.op == PTRACE_SYSCALL_INFO_ENTRY,
            Err(Errno::ESRCH) => false,
            Err(errno) => return Err(errno),
        };
        self.calls += u64::from(entered);
        Ok(entered && self.calls == self.at)
    }
}
