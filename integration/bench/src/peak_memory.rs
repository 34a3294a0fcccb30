//! The peak memory of a program: the kernel's high-water mark.
//!
//! It is read when the program is about to end. What wait4(2) reports includes the memory of the parent, which the
//! child has until its exec.

use crate::pod::Pod;
use crate::programs::Contender;
use gybe_integration::failure::Failure;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs;

/// Returns the peak memory in KiB of a program that reads its stdin, and so waits until it is traced.
///
/// # Errors
/// When it fails or cannot be traced.
pub fn peak_memory(contender: &Contender, pod: &Pod) -> Result<f64, Failure> {
    let mut waiting = contender.start(pod)?;
    let program = Pid::from_raw(i32::try_from(waiting.process_id())?);
    ptrace::seize(program, Options::PTRACE_O_TRACEEXIT | Options::PTRACE_O_EXITKILL)?;
    waiting.write_stdin()?;
    let status = match waitpid(program, None)? {
        WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXIT) => {
            fs::read_to_string(format!("/proc/{program}/status"))?
        }
        other => return Err(Failure::new(format!("{}: {other:?} instead of its exit", contender.name))),
    };
    ptrace::cont(program, None)?;
    match waitpid(program, None)? {
        WaitStatus::Exited(_, 0) => high_water_mark(&status),
        other => Err(Failure::new(format!("{}: {other:?}", contender.name))),
    }
}

/// `VmHWM:      1234 kB`
fn high_water_mark(status: &str) -> Result<f64, Failure> {
    let mark = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let mark = mark.and_then(|mark| mark.trim().strip_suffix(" kB")?.parse().ok());
    mark.ok_or_else(|| Failure::new(format!("no VmHWM in {status}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_water_mark_is_read_from_the_status_file() {
        assert_eq!(high_water_mark("VmPeak:\t 9 kB\nVmHWM:\t    1388 kB\nVmRSS:\t 7 kB\n").unwrap(), 1388.0);
        assert!(high_water_mark("Name:\tgybe-cni\n").is_err());
    }
}
