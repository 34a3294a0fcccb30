//! Repeated measurements of one thing: its middle, and how far apart they lie.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};
use std::fmt;
use std::time::Duration;

/// Measurements, ascending.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample(Vec<f64>);

impl Sample {
    fn sorted(mut measurements: Vec<f64>) -> Self {
        measurements.sort_by(f64::total_cmp);
        Self(measurements)
    }

    /// The middle one.
    pub fn median(&self) -> f64 {
        self.at(2)
    }

    /// A quarter of them lie below, a quarter above.
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

/// Measures several things in turn, `rounds` times, each in `N` respects, and gives the samples of
/// each thing, in their order.
///
/// # Errors
/// The first that a measurement had.
pub fn in_turn<T, E, const N: usize>(
    rounds: usize,
    things: &[T],
    mut measure: impl FnMut(&T) -> Result<[f64; N], E>,
) -> Result<Vec<[Sample; N]>, E> {
    let mut measured: Vec<[Vec<f64>; N]> = things.iter().map(|_| [const { Vec::new() }; N]).collect();
    for _ in 0..rounds.max(1) {
        for (thing, respects) in things.iter().zip(&mut measured) {
            for (value, respect) in measure(thing)?.into_iter().zip(respects) {
                respect.push(value);
            }
        }
    }
    Ok(measured.into_iter().map(|respects| respects.map(Sample::sorted)).collect())
}

/// Processor time the calling thread has had.
///
/// # Errors
/// When the kernel keeps no such clock.
pub fn processor_time() -> nix::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// Processor time that this process's children have had that were waited for.
///
/// # Errors
/// Never, on Linux.
pub fn childrens_time() -> nix::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let micros = [usage.user_time(), usage.system_time()].map(|time| time.num_microseconds());
    Ok(Duration::from_micros(micros.iter().sum::<i64>().unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_quarters_are_those_of_the_sorted_measurements() {
        let sample = Sample::sorted(vec![5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!((sample.median(), sample.quartiles()), (3.0, (2.0, 4.0)));
        assert_eq!(Sample::sorted(vec![7.0]).quartiles(), (7.0, 7.0));
    }

    #[test]
    fn things_are_measured_in_turn() {
        let mut order = Vec::new();
        let samples = in_turn(2, &["a", "b"], |thing| {
            order.push(*thing);
            Ok::<_, ()>([1.0, 2.0])
        });
        assert_eq!(order, ["a", "b", "a", "b"]);
        assert_eq!(samples.unwrap()[1].clone().map(|sample| sample.median()), [1.0, 2.0]);
    }
}
