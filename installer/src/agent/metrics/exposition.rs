//! Prometheus' text format, version 0.0.4. A library would add registries and atomics for numbers that other modules
//! keep.

use crate::agent::plugin_calls::{BOUNDS, Histogram};
use std::fmt::{Display, Write as _};

#[derive(Debug, Default)]
pub(super) struct Exposition {
    text: String,
    name: &'static str,
}

/// The type of a metric family.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

type Labels<'a> = &'a [(&'a str, &'a str)];

// Writing to a String cannot fail, so the results of `write!` are ignored.
impl Exposition {
    /// Starts a family; its samples follow.
    pub(super) fn family(&mut self, name: &'static str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.name = name;
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    pub(super) fn sample(&mut self, labels: Labels<'_>, value: impl Display) {
        self.line("", labels, None, value);
    }

    /// Adds a histogram in seconds.
    pub(super) fn histogram(&mut self, labels: Labels<'_>, histogram: &Histogram) {
        let mut so_far = 0;
        for (bound, count) in BOUNDS.iter().zip(histogram.counts) {
            so_far += count;
            self.line("_bucket", labels, Some(&seconds(*bound)), so_far);
        }
        self.line("_bucket", labels, Some("+Inf"), histogram.count);
        self.line("_sum", labels, None, seconds(histogram.sum));
        self.line("_count", labels, None, histogram.count);
    }

    fn line(&mut self, suffix: &str, labels: Labels<'_>, le: Option<&str>, value: impl Display) {
        let _ = write!(self.text, "{}{suffix}", self.name);
        let all = labels.iter().copied().chain(le.map(|le| ("le", le)));
        for (n, (key, label)) in all.enumerate() {
            let open = if n == 0 { "{" } else { "," };
            let _ = write!(self.text, "{open}{key}=\"{label}\"");
        }
        let close = if labels.is_empty() && le.is_none() { "" } else { "}" };
        let _ = writeln!(self.text, "{close} {value}");
    }

    pub(super) fn text(self) -> String {
        self.text
    }
}

/// Converts microseconds to seconds, without the rounding of binary fractions.
fn seconds(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_cumulative_and_in_seconds() {
        let mut out = Exposition::default();
        out.family("x_seconds", Kind::Histogram, "Help.");
        let mut histogram = Histogram { count: 5, sum: 1_500_000, ..Histogram::default() };
        histogram.counts[0] = 2;
        histogram.counts[11] = 2;
        out.histogram(&[("verb", "ADD")], &histogram);
        let text = out.text();
        for line in [
            "# TYPE x_seconds histogram",
            "x_seconds_bucket{verb=\"ADD\",le=\"0.0005\"} 2",
            "x_seconds_bucket{verb=\"ADD\",le=\"2\"} 2",
            "x_seconds_bucket{verb=\"ADD\",le=\"10\"} 4",
            "x_seconds_bucket{verb=\"ADD\",le=\"+Inf\"} 5",
            "x_seconds_sum{verb=\"ADD\"} 1.5",
            "x_seconds_count{verb=\"ADD\"} 5",
        ] {
            assert!(text.lines().any(|there| there == line), "{line} in\n{text}");
        }
    }
}
