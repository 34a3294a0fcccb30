//! Runs one program to its end: memory files for its input and output, so much and no more of them,
//! and a deadline. Which program, as whom and in which environment, is the caller's affair.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How it ended, and what it said.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code, or the signal.
    pub status: ExitStatus,
    /// All of its output.
    pub stdout: Vec<u8>,
    /// All of its complaints.
    pub stderr: Vec<u8>,
}

/// Why nothing is known of its end.
#[derive(Debug, thiserror::Error)]
pub enum NotRun {
    /// It could not be started.
    #[error("it cannot be started")]
    Start(#[source] io::Error),
    /// Files for what it reads and writes could not be had, or its end not be seen.
    #[error("it cannot be talked to")]
    Talk(#[from] io::Error),
    /// It took too long, and was killed.
    #[error("it did not end within {0:?}")]
    Late(Duration),
}

/// Starts `command` on `input` and waits for its end, at most `time`. A write beyond so many bytes of
/// output, or of complaints, fails for it with EPERM.
///
/// # Errors
/// When it cannot be started, or has to be killed.
pub fn run(
    mut command: Command,
    input: &[u8],
    time: Duration,
    (output, complaint): (u64, u64),
) -> Result<Ended, NotRun> {
    let (mut output, mut complaint) = (bounded(output)?, bounded(complaint)?);
    command.stdin(filled(input)?).stdout(output.try_clone()?).stderr(complaint.try_clone()?);
    // A group of its own, so that what it has started ends with it when it takes too long.
    let child = command.process_group(0).spawn().map_err(NotRun::Start)?;
    let status = end_of(child, time)?.ok_or(NotRun::Late(time))?;
    Ok(Ended { status, stdout: written(&mut output)?, stderr: written(&mut complaint)? })
}

/// Memory, not pipes: nobody has to read while another writes, and what the program leaves running
/// (a modprobe) keeps nobody waiting.
fn memory_file(flags: MFdFlags) -> io::Result<File> {
    Ok(memfd_create(c"gybe-program", MFdFlags::MFD_CLOEXEC | flags)?.into())
}

/// A file that is as long as it may become, and empty as long as nobody wrote: memory is taken by the
/// write, and none is possible beyond the end (fcntl(2), `F_SEAL_GROW`).
fn bounded(most: u64) -> io::Result<File> {
    let file = memory_file(MFdFlags::MFD_ALLOW_SEALING)?;
    file.set_len(most)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_GROW))?;
    Ok(file)
}

fn filled(bytes: &[u8]) -> io::Result<File> {
    let mut file = memory_file(MFdFlags::empty())?;
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

/// What the program has written: its descriptor and ours share one position.
fn written(file: &mut File) -> io::Result<Vec<u8>> {
    let length = file.stream_position()?;
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Waits for the end, at most `time`; then kills and gives `None`.
fn end_of(mut child: Child, time: Duration) -> io::Result<Option<ExitStatus>> {
    let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
    thread::scope(|scope| {
        let (ended, end) = mpsc::channel();
        // Looks without reaping, so that the number still means this child when it is killed.
        let looks = thread::Builder::new().spawn_scoped(scope, move || {
            while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
            let _nobody_waits = ended.send(());
        });
        let in_time = looks.is_ok() && end.recv_timeout(time).is_ok();
        if !in_time {
            killpg(pid, Signal::SIGKILL)?;
        }
        let status = child.wait()?;
        looks.map(|_| in_time.then_some(status))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[expect(clippy::disallowed_methods, reason = "what is tested runs programs")]
    fn shell(script: &str, input: &str, most: u64) -> Result<Ended, NotRun> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).env_clear();
        run(command, input.as_bytes(), Duration::from_secs(20), (most, most))
    }

    #[test]
    fn what_goes_in_and_comes_out_is_whole() {
        let ended = shell("cat; echo why >&2; exit 3", "words\n", 100).unwrap();
        assert_eq!(
            (ended.status.code(), ended.stdout, ended.stderr),
            (Some(3), b"words\n".into(), b"why\n".into())
        );
        let nothing = shell(":", "", 100).unwrap();
        assert_eq!((nothing.stdout.len(), nothing.stderr.len()), (0, 0));
    }

    #[test]
    fn a10_what_never_ends_is_not_gathered() {
        let ended = shell("exec cat /dev/zero", "", 100_000).unwrap();
        assert!(!ended.status.success() && ended.stdout.len() <= 100_000, "{:?}", ended.status);
    }

    #[test]
    fn a10_what_takes_too_long_is_killed_and_what_it_leaves_behind_is_not_waited_for() {
        let before = Instant::now();
        let mut command = command_sleep();
        command.env_clear();
        let late = run(command, b"", Duration::from_millis(50), (10, 10));
        assert!(matches!(late, Err(NotRun::Late(_))), "{late:?}");
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
    fn what_is_not_there_is_told() {
        let command = Command::new("/nonexistent/gybe");
        let fault = run(command, b"", Duration::from_secs(1), (10, 10)).unwrap_err();
        assert!(matches!(&fault, NotRun::Start(why) if why.kind() == io::ErrorKind::NotFound), "{fault:?}");
    }
}
