//! Where our routing rule stands: ahead of every rule but those for the table `local`.
//!
//! The kernel asks the rules in order of their priority, those of one priority in the order they came
//! (`fib_nl_newrule`, net/core/fib_rules.c, v6.18). A pod may have rules of its own (`ip rule add from
//! 10.0.0.7 lookup 100`): an answer of the application that met such a rule first would leave past the
//! proxy.

use super::entry::{Entry, RULE_HEADER, is_our_rule};
use super::uapi::*;
use crate::netlink::attr::Attributes;

/// Where the kernel puts the first rule that names no place: right before that of the table `main`.
const BEFORE_MAIN: u32 = 32765;

/// Where a rule of ours is or should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// It stands ahead of all others.
    Held,
    /// It would at this priority. The kernel itself chooses it for a rule that names none, but adds that
    /// one twice when it is asked twice: it takes a rule for another when its priority differs.
    Free(u32),
    /// None is left ahead of a rule with priority 0.
    None,
}

/// The place of `entry` among the rules that were listed, in the kernel's order.
pub(super) fn place(entry: Entry, listed: &[Vec<u8>]) -> Place {
    let first = listed.iter().find(|found| entry.is(found) || !(is_local(found) || is_our_rule(found)));
    match first {
        Some(found) if entry.is(found) => Place::Held,
        Some(found) => priority(found).checked_sub(1).map_or(Place::None, Place::Free),
        None => Place::Free(BEFORE_MAIN),
    }
}

/// Whether the rule leads to the table `local`.
fn is_local(found: &[u8]) -> bool {
    attribute(found, FRA_TABLE) == Some(u32::from(RT_TABLE_LOCAL))
}

/// The kernel leaves a priority of 0 out.
fn priority(found: &[u8]) -> u32 {
    attribute(found, FRA_PRIORITY).unwrap_or_default()
}

fn attribute(found: &[u8], kind: u16) -> Option<u32> {
    Attributes::of(found.get(RULE_HEADER..)?).get(kind)?.ne32()
}
