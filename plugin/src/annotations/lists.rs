//! Parsers of comma-separated lists of ports, networks and interfaces.
//!
//! Istio checks the trimmed items and then uses the raw text (CVE-2026-23766). Here each item is parsed
//! into a type, and the text is not used again.

use gybe_netfilter::model::policy::{CidrSet, InterfaceName, PortError, PortRange, PortSet, network};
use std::collections::BTreeSet;

/// Why an annotation's value is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ValueError {
    /// Not a mode.
    #[error("{0:?} is not REDIRECT, TPROXY or NONE")]
    Mode(String),
    /// Not a port.
    #[error("{0:?} is not a port: 0 to 65535, or a range like 8000-8100")]
    Port(String),
    /// A number with a leading zero, or a range of ports that ends before it begins.
    #[error(transparent)]
    Ports(PortError),
    /// `*` where a list is required.
    #[error("\"*\" is not allowed here: list the ports, like 80,443 or 8000-8100")]
    EveryPort,
    /// Not a network.
    #[error("{0:?} is not a network with its prefix length, like 10.0.0.0/8 or fd00::/8")]
    Network(String),
    /// Not an interface.
    #[error("{0:?} is not an interface: 1 to 15 of letters, digits, '_', '-', '.', a letter first")]
    Interface(String),
    /// An empty item.
    #[error("an item is missing beside a comma")]
    Empty,
    /// Too many intervals.
    #[error("{intervals} items, where at most {max} are allowed (the operator's max_intervals)")]
    TooMany {
        /// The intervals in the list, adjacent ones merged.
        intervals: usize,
        /// The configured `max_intervals`.
        max: usize,
    },
}

impl ValueError {
    pub(super) fn mode(value: &str) -> Self {
        Self::Mode(short(value))
    }
}

/// Parses ports and ranges of ports.
pub(super) fn ports(value: &str, max: usize) -> Result<PortSet, ValueError> {
    let set: PortSet = items(value)
        .map(|item| {
            // The longest range has 11 bytes; a longer item is not valid.
            let fits = item.len() <= 32;
            let range =
                if fits { item.parse::<PortRange>() } else { Err(PortError::NotAPort(String::new())) };
            range.map_err(|error| match error {
                PortError::NotAPort(_) if item == "*" => ValueError::EveryPort,
                PortError::NotAPort(_) => invalid(item, ValueError::Port),
                other => ValueError::Ports(other),
            })
        })
        .collect::<Result<_, _>>()?;
    bounded(set.ranges().len(), max, set)
}

/// Parses networks of either family. Host bits are ignored, the prefix length is required.
pub(super) fn networks(value: &str, max: usize) -> Result<CidrSet, ValueError> {
    let set: CidrSet = items(value)
        .map(|item| network(item).map_err(|_| invalid(item, ValueError::Network)))
        .collect::<Result<_, _>>()?;
    bounded(set.v4().len() + set.v6().len(), max, set)
}

/// Parses names of interfaces.
pub(super) fn interfaces(value: &str, max: usize) -> Result<BTreeSet<InterfaceName>, ValueError> {
    let set: BTreeSet<_> = items(value)
        .map(|item| InterfaceName::parse(item).map_err(|_| invalid(item, ValueError::Interface)))
        .collect::<Result<_, _>>()?;
    bounded(set.len(), max, set)
}

/// Splits a list. White space around the list is ignored (YAML's `|` adds a line feed), and blanks around an
/// item; a line feed inside is refused, as in `80\n,81`.
fn items(value: &str) -> impl Iterator<Item = &str> {
    let value = value.trim();
    value.split(',').filter(move |_| !value.is_empty()).map(|item| item.trim_matches([' ', '\t']))
}

fn invalid(item: &str, error: fn(String) -> ValueError) -> ValueError {
    if item.is_empty() { ValueError::Empty } else { error(short(item)) }
}

fn bounded<T>(intervals: usize, max: usize, set: T) -> Result<T, ValueError> {
    if intervals <= max { Ok(set) } else { Err(ValueError::TooMany { intervals, max }) }
}

/// Truncates to 40 characters as printed: an escaped one takes up to ten.
fn short(text: &str) -> String {
    let mut printed = 0;
    let fits = |letter: &char| {
        printed += letter.escape_debug().count();
        printed <= 40
    };
    let short: String = text.chars().take_while(fits).collect();
    if short.len() == text.len() { short } else { short + "…" }
}
