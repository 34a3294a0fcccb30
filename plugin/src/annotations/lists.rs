//! One comma list of ports, networks or interfaces: text in, a set out, the offending item named.
//!
//! Istio checks the trimmed items and then uses the raw text (CVE-2026-23766). Here each item is
//! parsed to a type and the text is gone.

use gybe_netfilter::policy::{CidrSet, InterfaceName, PortError, PortRange, PortSet};
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// What is wrong with a value, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    /// No mode.
    #[error("{0:?} is not REDIRECT, TPROXY or NONE")]
    Mode(String),
    /// No port.
    #[error("{0:?} is not a port: 0 to 65535, or a range like 8000-8100")]
    Port(String),
    /// A range of ports that ends before it begins.
    #[error("port range {0:?} is reversed: the smaller port comes first")]
    ReversedRange(String),
    /// Everything, where that cannot be meant.
    #[error("\"*\" is not allowed here: list the ports, like 80,443 or 8000-8100")]
    EveryPort,
    /// No network.
    #[error("{0:?} is not a network with its prefix length, like 10.0.0.0/8 or fd00::/8")]
    Network(String),
    /// No interface.
    #[error("{0:?} is not an interface: 1 to 15 of letters, digits, '_', '-', '.', a letter first")]
    Interface(String),
    /// Nothing between two commas.
    #[error("an item is missing beside a comma")]
    Empty,
    /// More than anybody can mean.
    #[error("{intervals} items, where at most {most} are allowed (the operator's max_intervals)")]
    TooMany {
        /// What the list comes to, neighbours merged.
        intervals: usize,
        /// What the operator allows.
        most: usize,
    },
}

impl Fault {
    pub(super) fn mode(word: &str) -> Self {
        Self::Mode(short(word))
    }
}

/// Ports and ranges of ports.
pub(super) fn ports(value: &str, most: usize) -> Result<PortSet, Fault> {
    let set: PortSet = items(value)
        .map(|item| {
            // The longest range is 11 bytes; what is longer is leading zeros at best.
            let fits = item.len() <= 32;
            let range =
                if fits { item.parse::<PortRange>() } else { Err(PortError::NotAPort(String::new())) };
            range.map_err(|why| match why {
                PortError::Reversed(range) => Fault::ReversedRange(range),
                PortError::NotAPort(_) if item == "*" => Fault::EveryPort,
                PortError::NotAPort(_) => refused(item, Fault::Port),
            })
        })
        .collect::<Result<_, _>>()?;
    bounded(set.ranges().len(), most, set)
}

/// Networks of either family. Bits behind the prefix do not matter, the prefix length must be there.
pub(super) fn networks(value: &str, most: usize) -> Result<CidrSet, Fault> {
    let set: CidrSet = items(value)
        .map(|item| network(item).ok_or_else(|| refused(item, Fault::Network)))
        .collect::<Result<_, _>>()?;
    bounded(set.v4().len() + set.v6().len(), most, set)
}

/// Names of interfaces.
pub(super) fn interfaces(value: &str, most: usize) -> Result<BTreeSet<InterfaceName>, Fault> {
    let set: BTreeSet<_> = items(value)
        .map(|item| InterfaceName::parse(item).map_err(|_| refused(item, Fault::Interface)))
        .collect::<Result<_, _>>()?;
    bounded(set.len(), most, set)
}

fn network(item: &str) -> Option<IpNet> {
    let (address, length) = item.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    // Go takes neither `/+8` nor `/08`, Rust's numbers take both.
    let plain = length.bytes().all(|b| b.is_ascii_digit()) && (length == "0" || !length.starts_with('0'));
    let length = if plain { length.parse().ok()? } else { return None };
    IpNet::new(address, length).ok()
}

/// White space around the list is nobody's fault (YAML's `|` leaves a newline); inside it only
/// blanks are, so that `80\n,81` is refused.
fn items(value: &str) -> impl Iterator<Item = &str> {
    let value = value.trim();
    value.split(',').filter(move |_| !value.is_empty()).map(|item| item.trim_matches([' ', '\t']))
}

fn refused(item: &str, fault: fn(String) -> Fault) -> Fault {
    if item.is_empty() { Fault::Empty } else { fault(short(item)) }
}

fn bounded<T>(intervals: usize, most: usize, set: T) -> Result<T, Fault> {
    if intervals <= most { Ok(set) } else { Err(Fault::TooMany { intervals, most }) }
}

/// At most 40 characters as they are printed: one that is escaped takes up to ten.
fn short(text: &str) -> String {
    let mut printed = 0;
    let fits = |letter: &char| {
        printed += letter.escape_debug().count();
        printed <= 40
    };
    let cut: String = text.chars().take_while(fits).collect();
    if cut.len() == text.len() { cut } else { cut + "…" }
}
