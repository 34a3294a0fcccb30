//! Repeated measurements of one thing: its middle, and how far apart they lie.

use std::fmt;

/// Measurements, ascending. Never empty.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample(Vec<f64>);

impl Sample {
    /// Takes measurements in any order; `None` when there is none.
    pub fn of(measurements: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = measurements.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        (!sorted.is_empty()).then_some(Self(sorted))
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
        self.0.get((self.0.len() - 1) * quarter / 4).copied().unwrap_or(f64::NAN)
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = self.quartiles();
        let places = if self.median() < 10.0 { 2 } else { usize::from(self.median() < 1000.0) };
        write!(f, "{:.places$} ({low:.places$} - {high:.places$})", self.median())
    }
}

/// Measures several things in turn, `rounds` times, and gives a sample for each, in their order.
///
/// # Errors
/// The first that a measurement had.
pub fn in_turn<T, E>(
    rounds: usize,
    things: &[T],
    mut measure: impl FnMut(&T) -> Result<f64, E>,
) -> Result<Vec<Sample>, E> {
    let mut measured: Vec<Vec<f64>> = things.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds.max(1) {
        for (thing, measured) in things.iter().zip(&mut measured) {
            measured.push(measure(thing)?);
        }
    }
    Ok(measured.into_iter().filter_map(Sample::of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_quarters_are_those_of_the_sorted_measurements() {
        let sample = Sample::of([5.0, 1.0, 4.0, 2.0, 3.0]).unwrap();
        assert_eq!((sample.median(), sample.quartiles()), (3.0, (2.0, 4.0)));
        assert_eq!(Sample::of([]), None);
        assert_eq!(Sample::of([7.0]).unwrap().quartiles(), (7.0, 7.0));
    }
}
