//! Sets of ports, sorted and merged, so that sets with the same ports are equal.

use std::fmt;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Ports from first to last, both included, 0..=65535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortRange {
    first: u16,
    last: u16,
}

/// The error of parsing a port or a range of ports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// Not a decimal number up to 65535.
    #[error("{0:?} is not a port: a whole number from 0 to 65535, or a range like 8000-8100")]
    NotAPort(String),
    /// iptables and istio-iptables read `010` as 8, and the injector's validation reads it as 10.
    #[error("{0:?} has a leading zero, which iptables takes for octal; write the decimal number without it")]
    LeadingZero(String),
    /// The last port of the range is smaller than its first.
    #[error("port range {0:?} is reversed: the smaller port comes first")]
    Reversed(String),
}

impl PortRange {
    /// The ports from `first` to `last`; `None` when `last` is smaller than `first`.
    pub fn new(first: u16, last: u16) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// First and last port.
    pub fn bounds(self) -> (u16, u16) {
        (self.first, self.last)
    }
}

/// Parses one port, 0 to 65535.
///
/// # Errors
/// When the text is not a decimal number up to 65535, or has a leading zero.
pub fn port(text: &str) -> Result<u16, PortError> {
    let port = decimal(text).and_then(|number| u16::try_from(number).ok());
    port.ok_or_else(|| match has_leading_zero(text) {
        true => PortError::LeadingZero(brief(text)),
        false => PortError::NotAPort(brief(text)),
    })
}

/// Parses digits: no sign, no white space, no other base, and no leading zero, which iptables takes for octal. `None`
/// also for a number larger than `u32::MAX`.
pub fn decimal(text: &str) -> Option<u32> {
    if is_digits(text) && !has_leading_zero(text) { text.parse().ok() } else { None }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn has_leading_zero(text: &str) -> bool {
    is_digits(text) && text.len() > 1 && text.starts_with('0')
}

fn brief(text: &str) -> String {
    text.chars().take(64).collect()
}

impl FromStr for PortRange {
    type Err = PortError;

    /// Reads `80` or `8000-8100`: decimal digits only, no sign, no white space.
    fn from_str(text: &str) -> Result<Self, PortError> {
        let Some((first, last)) = text.split_once('-') else {
            return port(text).map(|port| Self { first: port, last: port });
        };
        // The fault names the range.
        let whole = |fault| match fault {
            PortError::LeadingZero(_) => PortError::LeadingZero(brief(text)),
            _ => PortError::NotAPort(brief(text)),
        };
        let (first, last) = (port(first).map_err(whole)?, port(last).map_err(whole)?);
        Self::new(first, last).ok_or_else(|| PortError::Reversed(text.to_owned()))
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

/// A set of ports, stored as ascending ranges that neither overlap nor touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortSet(Vec<PortRange>);

impl PortSet {
    /// The ranges, ascending; none overlaps or touches another.
    pub fn ranges(&self) -> &[PortRange] {
        &self.0
    }

    /// Reports whether the set contains no port.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reports whether the set contains `port`, in time logarithmic in the number of ranges.
    pub fn contains(&self, port: u16) -> bool {
        let after = self.0.partition_point(|range| range.first <= port);
        after.checked_sub(1).and_then(|i| self.0.get(i)).is_some_and(|range| port <= range.last)
    }

    /// Returns the set without `port`.
    #[must_use]
    pub fn without(&self, port: NonZeroU16) -> Self {
        let port = port.get();
        self.0
            .iter()
            .flat_map(|range| {
                let below =
                    port.checked_sub(1).and_then(|end| PortRange::new(range.first, range.last.min(end)));
                let above =
                    port.checked_add(1).and_then(|start| PortRange::new(range.first.max(start), range.last));
                [below, above]
            })
            .flatten()
            .collect()
    }
}

impl FromIterator<PortRange> for PortSet {
    fn from_iter<I: IntoIterator<Item = PortRange>>(ranges: I) -> Self {
        let mut sorted: Vec<PortRange> = ranges.into_iter().collect();
        sorted.sort_unstable();
        let mut merged: Vec<PortRange> = Vec::with_capacity(sorted.len());
        for range in sorted {
            match merged.last_mut() {
                Some(last) if range.first <= last.last.saturating_add(1) => {
                    last.last = last.last.max(range.last);
                }
                _ => merged.push(range),
            }
        }
        Self(merged)
    }
}

impl FromIterator<u16> for PortSet {
    fn from_iter<I: IntoIterator<Item = u16>>(ports: I) -> Self {
        ports.into_iter().map(|port| PortRange { first: port, last: port }).collect()
    }
}

impl From<RangeInclusive<u16>> for PortSet {
    fn from(range: RangeInclusive<u16>) -> Self {
        PortRange::new(*range.start(), *range.end()).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> PortSet {
        text.split(',').filter(|t| !t.is_empty()).map(|t| t.parse::<PortRange>().unwrap()).collect()
    }

    #[test]
    fn sets_with_the_same_ports_are_equal() {
        for (left, right) in [
            ("80,81,82", "80-82"),
            ("82,80,81,81", "80-82"),
            ("1-10,5-20", "1-20"),
            ("0-65535", "0-40000,40001-65535"),
        ] {
            assert_eq!(set(left), set(right), "{left} and {right}");
        }
        assert_ne!(set("80,82"), set("80-82"));
    }

    #[test]
    fn contains_agrees_with_the_list_for_every_port() {
        let ports = set("0,22,80-90,65535");
        for port in 0..=u16::MAX {
            assert_eq!(ports.contains(port), matches!(port, 0 | 22 | 80..=90 | 65535), "port {port}");
        }
    }

    #[test]
    fn without_removes_exactly_one_port() {
        for (from, port, left) in [
            ("80", 80, ""),
            ("80-82", 81, "80,82"),
            ("80-82", 80, "81-82"),
            ("1-65535", 65535, "1-65534"),
            ("7", 9, "7"),
        ] {
            assert_eq!(set(from).without(NonZeroU16::new(port).unwrap()), set(left), "{from} without {port}");
        }
    }

    #[test]
    fn invalid_ports_and_ranges_are_refused() {
        for text in [
            "", " 80", "80 ", "+80", "-80", "70000", "80-", "-", "0x50", "8 0", "80\n", "٨٠", "90-80",
            "1-2-3", "05000", "00", "1-010",
        ] {
            assert!(text.parse::<PortRange>().is_err(), "{text:?}");
        }
    }
}
