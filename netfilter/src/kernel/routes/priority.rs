//! The priority of Gybe's routing rule: before every rule except those for table `local`.
//!
//! The kernel evaluates rules by priority, and rules of one priority in the order of their creation
//! (`fib_nl_newrule`, net/core/fib_rules.c, v6.18). A pod may have rules of its own (`ip rule add from 10.0.0.7 lookup
//! 100`): a reply of the application that matched such a rule first would bypass the proxy.

use super::entry::{RULE_HEADER, RoutingEntry, is_our_rule};
use super::uapi::*;
use crate::kernel::netlink::attr::Attributes;

/// The priority that the kernel gives the first rule without one: right before the rule of table `main`.
const BEFORE_MAIN: u32 = 32765;

/// The offset of the action in `struct fib_rule_hdr`.
const ACTION: usize = 7;

/// The position of Gybe's rule among the listed rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RulePriority {
    /// The rule is there, before all others.
    Present,
    /// The rule must be added with this priority. The kernel would choose the same for a rule without priority, but
    /// would add such a rule again at every request, because rules with different priorities differ.
    Free(u32),
    /// No priority is left before a rule with priority 0.
    None,
}

/// Determines the priority of `entry` among the listed rules, which are in the kernel's order.
pub(super) fn rule_priority(entry: RoutingEntry, listed: &[Vec<u8>]) -> RulePriority {
    let first = listed.iter().find(|found| entry.is(found) || !(is_local(found) || is_our_rule(found)));
    match first {
        Some(found) if entry.is(found) => RulePriority::Present,
        Some(found) => priority(found).checked_sub(1).map_or(RulePriority::None, RulePriority::Free),
        None => RulePriority::Free(BEFORE_MAIN),
    }
}

/// Reports whether the rule looks up table `local`.
pub(super) fn is_local(found: &[u8]) -> bool {
    found.get(ACTION) == Some(&FR_ACT_TO_TBL)
        && attribute(found, FRA_TABLE) == Some(u32::from(RT_TABLE_LOCAL))
}

/// The priority of a listed rule; the kernel omits 0.
pub(super) fn priority(found: &[u8]) -> u32 {
    attribute(found, FRA_PRIORITY).unwrap_or_default()
}

pub(super) fn attribute(found: &[u8], kind: u16) -> Option<u32> {
    Attributes::of(found.get(RULE_HEADER..)?).get(kind)?.ne32()
}
