//! What a part found: tables for people, and targets that are met or missed.

/// A table of measurements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// What it is about.
    pub title: String,
    /// Its columns.
    pub head: Vec<String>,
    /// Its rows, as many cells each as there are columns.
    pub rows: Vec<Vec<String>>,
}

/// What a measurement may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
}

/// A promise and what was measured of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// What is promised.
    pub what: String,
    /// What was measured.
    pub measured: f64,
    /// What it may be.
    pub limit: Limit,
    /// What is counted: `x`, `ms`.
    pub unit: &'static str,
}

impl Target {
    /// Was it kept?
    pub fn is_redirected(&self) -> bool {
        match self.limit {
            Limit::AtMost(most) => self.measured <= most,
            Limit::AtLeast(least) => self.measured >= least,
        }
    }
}

/// All that a part found.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What was measured.
    pub tables: Vec<Table>,
    /// What was promised of it.
    pub targets: Vec<Target>,
}

/// Cells of a row or a head.
pub fn cells<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_itself_still_meets_its_target() {
        let target = |limit| Target { what: String::new(), measured: 1.6, limit, unit: "x" };
        assert!(target(Limit::AtMost(1.6)).is_redirected() && target(Limit::AtLeast(1.6)).is_redirected());
        assert!(!target(Limit::AtMost(1.5)).is_redirected() && !target(Limit::AtLeast(1.7)).is_redirected());
        let nothing = Target { measured: f64::NAN, ..target(Limit::AtMost(1.6)) };
        assert!(!nothing.is_redirected(), "what could not be measured is not met");
    }
}
