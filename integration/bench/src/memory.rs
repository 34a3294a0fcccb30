//! The most memory that a program had in use at once, by the kernel's own high-water mark.
//!
//! Read from the program itself when it is about to end: what wait4(2) reports of a child has the
//! memory in it of whoever started it, until the child has a program of its own.

use crate::pod::Pod;
use crate::programs::Contender;
use gybe_integration::failure::Failure;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs;

/// In KiB; of a program that reads its stdin, and so waits until it is watched.
///
/// # Errors
/// When it fails, or cannot be watched.
pub fn peak(contender: &Contender, pod: &Pod) -> Result<f64, Failure> {
    let mut waiting = contender.begun(pod)?;
    let program = Pid::from_raw(i32::try_from(waiting.process())?);
    ptrace::seize(program, Options::PTRACE_O_TRACEEXIT | Options::PTRACE_O_EXITKILL)?;
    waiting.go_on()?;
    let told = match waitpid(program, None)? {
        WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXIT) => {
            fs::read_to_string(format!("/proc/{program}/status"))?
        }
        other => return Err(Failure::new(format!("{}: {other:?} instead of its end", contender.name))),
    };
    ptrace::cont(program, None)?;
    match waitpid(program, None)? {
        WaitStatus::Exited(_, 0) => high_water(&told),
        other => Err(Failure::new(format!("{}: {other:?}", contender.name))),
    }
}

/// `VmHWM:      1234 kB`
fn high_water(status: &str) -> Result<f64, Failure> {
    let mark = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let mark = mark.and_then(|mark| mark.trim().strip_suffix(" kB")?.parse().ok());
    mark.ok_or_else(|| Failure::new(format!("no VmHWM in {status}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_read_out_of_what_the_kernel_tells() {
        assert_eq!(high_water("VmPeak:\t 9 kB\nVmHWM:\t    1388 kB\nVmRSS:\t 7 kB\n").unwrap(), 1388.0);
        assert!(high_water("Name:\tgybe-cni\n").is_err());
    }
}
