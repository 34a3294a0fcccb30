//! Time as Go writes it: `5s`, `1m30s`, `1.5s`, `500ms`.

use std::time::Duration;

/// Nobody means to wait longer; and the clock is never asked for what it has not.
const LONGEST: Duration = Duration::from_secs(3600);

/// Reads numbers and their units, one after the other; no sign, since no wait is negative.
pub(super) fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| c.is_ascii_digit() || c == '.')?;
        let (unit, after) = split(after, |c| !c.is_ascii_digit() && c != '.')?;
        let seconds = number.parse::<f64>().ok()? * seconds(unit)?;
        sum = sum.checked_add(Duration::try_from_secs_f64(seconds).ok()?)?;
        rest = after;
    }
    (!text.is_empty() && sum <= LONGEST).then_some(sum)
}

/// As many characters as belong together, one at least, and the rest.
fn split(text: &str, belongs: impl Fn(char) -> bool) -> Option<(&str, &str)> {
    let end = text.find(|c| !belongs(c)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

fn seconds(unit: &str) -> Option<f64> {
    match unit {
        "ns" => Some(1e-9),
        "us" | "µs" | "μs" => Some(1e-6),
        "ms" => Some(1e-3),
        "s" => Some(1.0),
        "m" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_read_as_go_writes_it() {
        for (text, milliseconds) in [
            ("5s", Some(5000)),
            ("1m30s", Some(90_000)),
            ("1.5s", Some(1500)),
            (".5s", Some(500)),
            ("500ms", Some(500)),
            ("0", Some(0)),
            ("1h", Some(3_600_000)),
            ("1h1s", None),
            ("", None),
            ("5", None),
            ("-5s", None),
            ("s", None),
            ("5 s", None),
            ("1.2.3s", None),
            ("5d", None),
            ("999999999999999999h", None),
        ] {
            assert_eq!(parse(text).map(|t| t.as_millis()), milliseconds, "{text}");
        }
    }
}
