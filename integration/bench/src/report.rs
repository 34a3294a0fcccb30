//! The results of a part: tables, and targets that are met or missed.

/// A table of measurements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its title.
    pub title: String,
    /// The names of its columns.
    pub head: Vec<String>,
    /// Its rows, with a cell for each column.
    pub rows: Vec<Vec<String>>,
}

/// The limit of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
}

/// A target and its measured value.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// What was measured.
    pub what: String,
    /// The measured value.
    pub measured: f64,
    /// Its limit.
    pub limit: Limit,
    /// The unit: `x`, `ms`.
    pub unit: &'static str,
}

impl Target {
    /// Reports whether the measured value is within the limit; NaN is not.
    pub fn is_met(&self) -> bool {
        match self.limit {
            Limit::AtMost(most) => self.measured <= most,
            Limit::AtLeast(least) => self.measured >= least,
        }
    }
}

/// The results of a part.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What was measured.
    pub tables: Vec<Table>,
    /// Its targets.
    pub targets: Vec<Target>,
}

/// Converts the cells of a row.
pub fn cells<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_at_the_limit_meets_the_target() {
        let target = |limit| Target { what: String::new(), measured: 1.6, limit, unit: "x" };
        assert!(target(Limit::AtMost(1.6)).is_met() && target(Limit::AtLeast(1.6)).is_met());
        assert!(!target(Limit::AtMost(1.5)).is_met() && !target(Limit::AtLeast(1.7)).is_met());
        let unmeasured = Target { measured: f64::NAN, ..target(Limit::AtMost(1.6)) };
        assert!(!unmeasured.is_met(), "an unmeasured target is not met");
    }
}
