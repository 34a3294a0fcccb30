//! Tests of ports.

use super::fields::{Fields, not};
use crate::model::policy::PortRange;
use crate::model::ruleset::Is;

/// The port of a packet that is tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortEnd {
    /// The source port.
    Source,
    /// The destination port.
    Destination,
    /// Either of them.
    Either,
}

/// A test of one port; all ports and [`Is::In`] when the rule has no such test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortTest {
    /// Inside the range or outside.
    pub is: Is,
    /// The range.
    pub range: PortRange,
}

impl PortTest {
    /// Reports whether a packet with this port passes.
    pub fn applies(self, port: u16) -> bool {
        let (first, last) = self.range.bounds();
        (first <= port && port <= last) == (self.is == Is::In)
    }

    pub(super) fn read(fields: Fields<'_>, at: usize, is: Is) -> Option<Self> {
        Some(Self { is, range: PortRange::new(fields.u16(at)?, fields.u16(at + 2)?)? })
    }

    /// The option; none for a test that every packet passes.
    pub(super) fn option(self, option: &str) -> Option<String> {
        let is_asked = self.range.bounds() != (0, u16::MAX);
        is_asked.then(|| format!("{}{option} {}", not(self.is), colon(self.range)))
    }
}

/// A range as matches print it: `80` or `80:90`.
pub(super) fn colon(range: PortRange) -> String {
    match range.bounds() {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}:{last}"),
    }
}
