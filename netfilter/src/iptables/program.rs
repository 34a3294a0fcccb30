//! Runs one program with a deadline, with memory files of bounded size for its input and output. The caller chooses the
//! program, its user and its environment.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The most bytes that a program may write; a longer write of the program fails with EPERM.
#[derive(Debug, Clone, Copy)]
pub struct OutputLimits {
    /// To stdout.
    pub stdout: u64,
    /// To stderr.
    pub stderr: u64,
}

/// The error of running a program.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It could not be started.
    #[error("it cannot be started")]
    Start(#[source] io::Error),
    /// The files for its input and output could not be created, or its end could not be awaited.
    #[error("its input or output failed")]
    Io(#[from] io::Error),
    /// It did not end in time, and was killed.
    #[error("it did not end within {0:?}")]
    Timeout(Duration),
}

/// Starts `command` with `input` on stdin, and waits for its end, at most `time`.
///
/// # Errors
/// When it cannot be started, or has to be killed.
pub fn run(
    mut command: Command,
    input: &[u8],
    time: Duration,
    limits: OutputLimits,
) -> Result<Output, ProgramError> {
    let (mut stdout, mut stderr) = (bounded(limits.stdout)?, bounded(limits.stderr)?);
    command.stdin(filled(input)?).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    // A process group of its own, so that a kill reaches the processes that it has started.
    let child = command.process_group(0).spawn().map_err(ProgramError::Start)?;
    let status = end_of(child, time)?.ok_or(ProgramError::Timeout(time))?;
    Ok(Output { status, stdout: written(&mut stdout)?, stderr: written(&mut stderr)? })
}

/// Memory files instead of pipes: input and output need no concurrent reader, and a process that the program leaves
/// running (a modprobe) does not delay the caller.
fn memory_file(flags: MFdFlags) -> io::Result<File> {
    Ok(memfd_create(c"gybe-program", MFdFlags::MFD_CLOEXEC | flags)?.into())
}

/// A sparse file of the maximum size that cannot grow: a write allocates memory, and a write beyond the end fails
/// (fcntl(2), `F_SEAL_GROW`).
fn bounded(size: u64) -> io::Result<File> {
    let file = memory_file(MFdFlags::MFD_ALLOW_SEALING)?;
    file.set_len(size)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_GROW))?;
    Ok(file)
}

fn filled(bytes: &[u8]) -> io::Result<File> {
    let mut file = memory_file(MFdFlags::empty())?;
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

/// Reads what the program has written: its descriptor and this one share one position.
fn written(file: &mut File) -> io::Result<Vec<u8>> {
    let length = file.stream_position()?;
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Waits for `time` at most; then kills the process group and returns `None`.
fn end_of(mut child: Child, time: Duration) -> io::Result<Option<ExitStatus>> {
    let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    thread::scope(|scope| {
        let (ended, end) = mpsc::channel();
        // Waits without reaping, so that the pid is still this child's when it is killed.
        let waiter = thread::Builder::new().spawn_scoped(scope, move || {
            while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
            let _receiver_timed_out = ended.send(());
        });
        let in_time = waiter.is_ok() && end.recv_timeout(time).is_ok();
        if !in_time {
            killpg(pid, Signal::SIGKILL)?;
        }
        let status = child.wait()?;
        waiter.map(|_| in_time.then_some(status))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[expect(clippy::disallowed_methods, reason = "what is tested runs programs")]
    fn shell(script: &str, input: &str, limit: u64) -> Result<Output, ProgramError> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).env_clear();
        run(command, input.as_bytes(), Duration::from_secs(20), OutputLimits { stdout: limit, stderr: limit })
    }

    #[test]
    fn input_and_output_are_complete() {
        let ended = shell("cat; echo why >&2; exit 3", "words\n", 100).unwrap();
        assert_eq!(
            (ended.status.code(), ended.stdout, ended.stderr),
            (Some(3), b"words\n".into(), b"why\n".into())
        );
        let nothing = shell(":", "", 100).unwrap();
        assert_eq!((nothing.stdout.len(), nothing.stderr.len()), (0, 0));
    }

    #[test]
    fn a10_endless_output_is_cut_off() {
        let ended = shell("exec cat /dev/zero", "", 100_000).unwrap();
        assert!(!ended.status.success() && ended.stdout.len() <= 100_000, "{:?}", ended.status);
    }

    #[test]
    fn a10_a_late_program_is_killed_and_its_background_processes_are_not_waited_for() {
        let before = Instant::now();
        let mut command = command_sleep();
        command.env_clear();
        let late = run(command, b"", Duration::from_millis(50), OutputLimits { stdout: 10, stderr: 10 });
        assert!(matches!(late, Err(ProgramError::Timeout(_))), "{late:?}");
        assert!(shell("sleep 60 &", "", 10).unwrap().status.success());
        assert!(before.elapsed() < Duration::from_secs(30));
    }

    #[expect(clippy::disallowed_methods, reason = "what is tested runs programs")]
    fn command_sleep() -> Command {
        let mut command = Command::new("/bin/sleep");
        command.arg("60");
        command
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "what is tested runs programs")]
    fn a_missing_program_is_an_error() {
        let command = Command::new("/nonexistent/gybe");
        let fault =
            run(command, b"", Duration::from_secs(1), OutputLimits { stdout: 10, stderr: 10 }).unwrap_err();
        assert!(
            matches!(&fault, ProgramError::Start(why) if why.kind() == io::ErrorKind::NotFound),
            "{fault:?}"
        );
    }
}
