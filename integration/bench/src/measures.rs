//! What is measured of a program: repeated times with median and quartiles, and the kernel's high-water mark of its
//! memory. That is read when the program is about to end: what wait4(2) reports includes the memory of the parent,
//! which the child has until its exec.

use crate::pod::Pod;
use crate::programs::Contender;
use gybe_integration::failure::Failure;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::time::Duration;
use std::{fmt, fs};

/// Measurements in ascending order.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample(Vec<f64>);

impl Sample {
    pub(crate) fn sorted(mut measurements: Vec<f64>) -> Self {
        measurements.sort_by(f64::total_cmp);
        Self(measurements)
    }

    pub fn median(&self) -> f64 {
        self.at(2)
    }

    /// The lower and the upper quartile.
    pub fn quartiles(&self) -> (f64, f64) {
        (self.at(1), self.at(3))
    }

    fn at(&self, quarter: usize) -> f64 {
        self.0.get(self.0.len().saturating_sub(1) * quarter / 4).copied().unwrap_or(f64::NAN)
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = self.quartiles();
        let places = if self.median() < 10.0 { 2 } else { usize::from(self.median() < 1000.0) };
        write!(f, "{:.places$} ({low:.places$} - {high:.places$})", self.median())
    }
}

/// Measures several subjects in turn, `rounds` times, and returns `N` samples of each in the same order. Each round has
/// another order: a program is up to a tenth slower after one that has used the processor's caches.
///
/// # Errors
/// The first error of a measurement.
pub fn in_turn<T, E, const N: usize>(
    rounds: usize,
    subjects: &[T],
    mut measure: impl FnMut(&T) -> Result<[f64; N], E>,
) -> Result<Vec<[Sample; N]>, E> {
    let mut measured: Vec<[Vec<f64>; N]> = subjects.iter().map(|_| [const { Vec::new() }; N]).collect();
    let shuffled = BuildHasherDefault::<DefaultHasher>::default();
    for round in 0..rounds.max(1) {
        let mut turns: Vec<_> = subjects.iter().zip(&mut measured).enumerate().collect();
        turns.sort_by_key(|(index, _)| shuffled.hash_one((round, index)));
        for (_, (subject, values)) in turns {
            for (value, values) in measure(subject)?.into_iter().zip(values) {
                values.push(value);
            }
        }
    }
    Ok(measured.into_iter().map(|values| values.map(Sample::sorted)).collect())
}

/// Returns the processor time of the calling thread.
///
/// # Errors
/// When the kernel has no such clock.
pub fn processor_time() -> nix::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// Returns the processor time of the ended child processes.
///
/// # Errors
/// None on Linux.
pub fn children_processor_time() -> nix::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let micros = [usage.user_time(), usage.system_time()].map(|time| time.num_microseconds());
    Ok(Duration::from_micros(micros.iter().sum::<i64>().unsigned_abs()))
}

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
    fn median_and_quartiles_are_those_of_the_sorted_measurements() {
        let sample = Sample::sorted(vec![5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!((sample.median(), sample.quartiles()), (3.0, (2.0, 4.0)));
        assert_eq!(Sample::sorted(vec![7.0]).quartiles(), (7.0, 7.0));
    }

    #[test]
    fn each_round_measures_every_subject_once_and_not_all_rounds_have_one_order() {
        let mut order = Vec::new();
        let samples = in_turn(20, &["a", "b", "c"], |subject| {
            order.push(*subject);
            Ok::<_, ()>(if *subject == "b" { [1.0, 2.0] } else { [3.0, 4.0] })
        });
        let rounds: Vec<&[&str]> = order.chunks(3).collect();
        assert!(rounds.iter().all(|round| ["a", "b", "c"].iter().all(|subject| round.contains(subject))));
        assert!(rounds.iter().any(|round| *round != rounds[0]), "{rounds:?}");
        assert_eq!(samples.unwrap()[1].clone().map(|sample| sample.median()), [1.0, 2.0]);
    }

    #[test]
    fn the_high_water_mark_is_read_from_the_status_file() {
        assert_eq!(high_water_mark("VmPeak:\t 9 kB\nVmHWM:\t    1388 kB\nVmRSS:\t 7 kB\n").unwrap(), 1388.0);
        assert!(high_water_mark("Name:\tgybe-cni\n").is_err());
    }
}
