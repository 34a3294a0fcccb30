//! The process: its start time, the signals that stop it, and whether it leads (`leader`), which its threads share.

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{SysconfVar, sysconf};
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Returns a descriptor that is readable after SIGTERM or SIGINT. It is created before the first thread: each inherits
/// the blocked signals (signal(7)).
pub(crate) fn stop_signal() -> Result<SignalFd, Errno> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block()?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// Returns the start time in seconds since 1970, as Prometheus' client libraries compute it: `starttime` of
/// proc_pid_stat(5), in ticks since the boot, and `btime` of proc_stat(5).
pub(crate) fn start_time() -> Option<f64> {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok()??;
    let (process, system) =
        (fs::read_to_string("/proc/self/stat").ok()?, fs::read_to_string("/proc/stat").ok()?);
    parse(&process, &system, ticks)
}

fn parse(process: &str, system: &str, ticks: i64) -> Option<f64> {
    // The second field is a name, which may contain blanks and brackets; the 22nd is the 20th after it.
    let (_, after_name) = process.rsplit_once(") ")?;
    let started: u32 = after_name.split(' ').nth(19)?.parse().ok()?;
    let booted: u32 = system.lines().find_map(|line| line.strip_prefix("btime "))?.parse().ok()?;
    let ticks = u32::try_from(ticks).ok().filter(|ticks| *ticks > 0)?;
    Some(f64::from(booted) + f64::from(started) / f64::from(ticks))
}

/// Whether this process leads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// It has not led yet.
    #[default]
    Waits,
    Leads {
        since: Instant,
    },
    /// It has led, and a newer agent leads now; this one still knows the node's pods, and leads again when that one
    /// ends.
    HandedOver {
        /// Whether it was ready then.
        was_ready: bool,
    },
}

impl Role {
    pub(crate) fn leads() -> Self {
        Self::Leads { since: Instant::now() }
    }
}

/// A value that the threads share; readers get a copy.
#[derive(Debug, Default)]
pub(crate) struct Shared<T>(Mutex<T>);

impl<T: Clone> Shared<T> {
    pub(crate) fn read(&self) -> T {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, value: T) {
        self.change(|shared| *shared = value);
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn the_start_time_is_read_after_a_name_with_blanks_and_brackets() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 250 20";
        assert_eq!(parse(&format!("7 (a) b) {fields}\n"), "cpu 1\nbtime 1000\nctxt 2\n", 100), Some(1002.5));
        assert_eq!(parse("7 (a) S 1", "btime 1000", 100), None);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - start_time().unwrap();
        assert!((-2.0..3600.0).contains(&age), "{age}");
    }
}
