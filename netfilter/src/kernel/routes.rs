//! The addresses, routing rules and routes that a redirection needs in addition to its packet rules.
//!
//! IPv6 has one loopback address where IPv4 has a network, so Gybe adds the proxy's passthrough source `::6` to `lo`.
//! TPROXY marks packets, and a routing rule with a table of one local route delivers marked packets to this host.
//! Both have no effect without the packet rules. `entry` encodes entries, `rtnetlink` is the socket. `link` configures
//! the namespaces that Gybe creates. `routing` reads what all rules and routes decide, and the policies of IPsec.

mod entry;
mod error;
mod link;
mod routing;
mod rtnetlink;
mod uapi;

pub use entry::RoutingEntry;
pub use error::RoutesError;
pub(crate) use error::has_ipv6_on_loopback;
pub(crate) use link::parse_addresses;
pub use link::{Address, Link, NextHop, VethEnd, addresses};
pub use routing::{Route, RouteQuery};
pub(crate) use routing::{Routing, ipsec_policies};
pub use rtnetlink::Rtnetlink;

use crate::kernel::netlink::message::{CREATE, EXCLUSIVE, REPLACE};
use crate::model::policy::ambient::{ORIGINAL_SOURCE_MARK, ORIGINAL_SOURCE_TABLE};
use crate::model::policy::{AmbientPolicy, Families, Inbound, MaskedMark, Mode, RedirectPolicy};
use crate::model::ruleset::Family;
use entry::{RoutingList, RulePriority, rule_priority};
use nix::errno::Errno;
use rtnetlink::{Addition, ListedEntry};
use std::fmt;

/// The entries that a policy needs, in the order of their creation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routes {
    entries: Vec<RoutingEntry>,
    ipv6: Ipv6Entries,
}

/// What a namespace with IPv6 disabled means for entries of IPv6.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Ipv6Entries {
    /// Adding them fails, and so does the redirection.
    #[default]
    Needed,
    /// They are not needed there.
    NeededIfEnabled,
}

impl Routes {
    /// The entries that `policy` needs (docs/RULES.md, section 2); none for most IPv4 policies.
    pub fn of(policy: &RedirectPolicy) -> Self {
        let mut entries = Vec::new();
        if policy.families == Families::V4AndV6 {
            entries.push(RoutingEntry::PassthroughAddress);
        }
        if let Mode::Tproxy { mark, route_table: table } = policy.mode
            && policy.inbound != Inbound::Only(Default::default())
        {
            entries.extend(delivery(policy.families, mark.into(), table));
        }
        Self { entries, ipv6: Ipv6Entries::Needed }
    }

    /// The entries that an ambient `policy` needs: those that deliver the application's packets to ztunnel. A
    /// namespace whose `lo` has IPv6 disabled needs none of IPv6, as with istio-cni.
    pub fn of_ambient(policy: &AmbientPolicy) -> Self {
        let entries = delivery(policy.families, ORIGINAL_SOURCE_MARK, ORIGINAL_SOURCE_TABLE).collect();
        Self { entries, ipv6: Ipv6Entries::NeededIfEnabled }
    }

    /// The entries that are needed in the calling thread's namespace.
    fn needed(&self) -> Result<Vec<RoutingEntry>, RoutesError> {
        let leaves_ipv6_out = self.ipv6 == Ipv6Entries::NeededIfEnabled && !has_ipv6_on_loopback()?;
        Ok(self.entries.iter().copied().filter(|entry| !(leaves_ipv6_out && entry.is_ipv6())).collect())
    }

    /// Reports whether no entry is needed, and so no socket.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Reports whether the address `::6` on `lo` is needed.
    pub fn needs_passthrough_address(&self) -> bool {
        self.entries.contains(&RoutingEntry::PassthroughAddress)
    }

    /// Adds the missing entries. Idempotent.
    ///
    /// # Errors
    /// When an entry is missing afterwards.
    pub fn apply(&self, rtnetlink: &mut Rtnetlink) -> Result<(), RoutesError> {
        let mut one_exists = false;
        let additions = self.additions(rtnetlink)?;
        for (entry, errno) in rtnetlink.add(&additions)? {
            match errno {
                Errno::EEXIST => one_exists = true,
                source => return Err(RoutesError::refused(entry, source)),
            }
        }
        // The kernel returns EEXIST also for a route with another target.
        let missing = if one_exists { self.missing(rtnetlink)? } else { Vec::new() };
        missing.first().map_or(Ok(()), |entry| Err(RoutesError::Occupied { entry: *entry }))
    }

    /// The entries to add, rules with their priority. Concurrent calls choose the same priority, and the kernel refuses
    /// the second rule.
    fn additions(&self, rtnetlink: &mut Rtnetlink) -> Result<Vec<Addition>, RoutesError> {
        let mut additions = Vec::new();
        for entry in self.needed()? {
            let addition = match entry {
                RoutingEntry::MarkRule { family, .. } => {
                    match rule_priority(entry, &rtnetlink.list(RoutingList::Rules(family))?) {
                        RulePriority::Present => continue,
                        RulePriority::Free(priority) => Addition { entry, priority },
                        RulePriority::None => return Err(RoutesError::NoPriority { entry }),
                    }
                }
                RoutingEntry::PassthroughAddress | RoutingEntry::LocalRoute { .. } => {
                    Addition { entry, priority: 0 }
                }
            };
            additions.push(addition);
        }
        Ok(additions)
    }

    /// Returns the entries that are missing, or rules that another rule precedes.
    ///
    /// # Errors
    /// When the kernel does not list its entries.
    pub fn missing(&self, rtnetlink: &mut Rtnetlink) -> Result<Vec<RoutingEntry>, RoutesError> {
        let mut missing = Vec::new();
        let mut read: Vec<(RoutingList, Vec<Vec<u8>>)> = Vec::new();
        for entry in &self.needed()? {
            let list = RoutingList::holding(*entry);
            if !read.iter().any(|(other, _)| *other == list) {
                read.push((list, rtnetlink.list(list)?));
            }
            let listed =
                read.iter().find(|(other, _)| *other == list).map_or(&[][..], |(_, entries)| entries);
            let is_present = match entry {
                RoutingEntry::MarkRule { .. } => rule_priority(*entry, listed) == RulePriority::Present,
                _ => listed.iter().any(|found| entry.is(found)),
            };
            if !is_present {
                missing.push(*entry);
            }
        }
        Ok(missing)
    }

    /// Returns Gybe's entries that the policy does not need: those of an earlier policy.
    ///
    /// # Errors
    /// When the kernel does not list its entries.
    pub fn extra(&self, rtnetlink: &mut Rtnetlink) -> Result<Vec<Stray>, RoutesError> {
        Ok(self.superfluous(rtnetlink)?.iter().map(Stray::of).collect())
    }

    /// Removes the entries of [`Routes::extra`]. Call this after the packet rules that needed them are gone.
    ///
    /// # Errors
    /// When one of them may still be there.
    pub fn remove_extra(&self, rtnetlink: &mut Rtnetlink) -> Result<(), RoutesError> {
        let superfluous = self.superfluous(rtnetlink)?;
        rtnetlink.delete(&superfluous)
    }

    /// Makes the entries that deliver the application's packets to ztunnel Gybe's where another program added them, and
    /// removes those that the policy does not need. Packets are delivered all the time.
    ///
    /// # Errors
    /// When an entry of the other program may still be there. None is missing then.
    pub(crate) fn take_over_ambient(&self, rtnetlink: &mut Rtnetlink) -> Result<(), RoutesError> {
        let needed = self.needed()?;
        for entry in delivery(Families::V4AndV6, ORIGINAL_SOURCE_MARK, ORIGINAL_SOURCE_TABLE) {
            let Owners { ours, theirs } = Owners::of(entry, rtnetlink)?;
            let Some(first) = theirs.first() else { continue };
            if needed.contains(&entry) && ours.is_empty() {
                // A route is replaced by one; rules with one priority would be the same to the kernel.
                let (flags, priority) = match first.list {
                    RoutingList::Rules(_) => {
                        let before = entry::priority(&first.bytes).checked_sub(1);
                        (EXCLUSIVE, before.ok_or(RoutesError::NoPriority { entry })?)
                    }
                    RoutingList::Routes(_) | RoutingList::Addresses => (REPLACE, 0),
                };
                let refused = rtnetlink.add_with(CREATE | flags, &[Addition { entry, priority }])?;
                if let Some((entry, source)) = refused.into_iter().next() {
                    return Err(RoutesError::refused(entry, source));
                }
            }
            rtnetlink.delete(&theirs)?;
        }
        Ok(())
    }

    fn superfluous(&self, rtnetlink: &mut Rtnetlink) -> Result<Vec<ListedEntry>, RoutesError> {
        let mut all = ours(rtnetlink)?;
        // Of a rule that exists twice the first is evaluated: an earlier version of Gybe added the other.
        let mut kept = Vec::new();
        all.retain(|found| {
            let desired = self.entries.iter().find(|entry| entry.is(&found.bytes) && !kept.contains(*entry));
            kept.extend(desired);
            desired.is_none()
        });
        Ok(all)
    }
}

/// The entries that deliver packets with `mark` to the namespace itself.
fn delivery(families: Families, mark: MaskedMark, table: u32) -> impl Iterator<Item = RoutingEntry> {
    let families: &[Family] = match families {
        Families::V4Only => &[Family::V4],
        Families::V4AndV6 => &Family::ALL,
    };
    families.iter().copied().flat_map(move |family| {
        [RoutingEntry::LocalRoute { family, table }, RoutingEntry::MarkRule { family, mark, table }]
    })
}

/// An entry of Gybe that should not be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stray {
    /// An entry of a known form.
    Known(RoutingEntry),
    /// An entry with Gybe's number of origin in this list.
    Unknown(&'static str),
}

impl Stray {
    fn of(ListedEntry { list, bytes }: &ListedEntry) -> Self {
        RoutingEntry::read(*list, bytes).map_or(Self::Unknown(list.name()), Self::Known)
    }
}

impl fmt::Display for Stray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(entry) => entry.fmt(f),
            Self::Unknown(list) => write!(f, "an unknown entry of Gybe among the {list}"),
        }
    }
}

/// Removes all entries with Gybe's number of origin.
///
/// # Errors
/// When an entry of Gybe may still be there.
pub fn remove(rtnetlink: &mut Rtnetlink) -> Result<(), RoutesError> {
    let ours = ours(rtnetlink)?;
    rtnetlink.delete(&ours)
}

/// Reports whether another program has added each entry of Gybe that delivers the application's packets to ztunnel, too,
/// so that Gybe's may be removed.
///
/// # Errors
/// When the kernel does not list its entries.
pub fn has_another_ambient_delivery(rtnetlink: &mut Rtnetlink) -> Result<bool, RoutesError> {
    for entry in delivery(Families::V4AndV6, ORIGINAL_SOURCE_MARK, ORIGINAL_SOURCE_TABLE) {
        let Owners { ours, theirs } = Owners::of(entry, rtnetlink)?;
        if theirs.is_empty() && !ours.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The listed entries of one form, by the programs that added them.
struct Owners {
    ours: Vec<ListedEntry>,
    theirs: Vec<ListedEntry>,
}

impl Owners {
    fn of(entry: RoutingEntry, rtnetlink: &mut Rtnetlink) -> Result<Self, RoutesError> {
        let list = RoutingList::holding(entry);
        let is_ours = |found: &ListedEntry| match list {
            RoutingList::Rules(_) => entry::is_our_rule(&found.bytes),
            RoutingList::Routes(_) | RoutingList::Addresses => entry::is_our_route(&found.bytes),
        };
        let found = rtnetlink.list(list)?.into_iter().filter(|found| entry.is(found));
        let (ours, theirs) = found.map(|bytes| ListedEntry { list, bytes }).partition(is_ours);
        Ok(Self { ours, theirs })
    }
}

/// All entries with Gybe's number of origin.
fn ours(rtnetlink: &mut Rtnetlink) -> Result<Vec<ListedEntry>, RoutesError> {
    let mut ours = Vec::new();
    for list in RoutingList::ALL {
        let entries = rtnetlink.list(list)?;
        // A kernel that lists no origins of addresses does not show who added `::6` to `lo`. Only meshes use that
        // address, and Gybe promises to leave nothing behind.
        let has_origins = entries.iter().any(|entry| entry::has_origin(entry));
        let found = entries.into_iter().filter(|entry| match list {
            RoutingList::Addresses => entry::is_our_address(entry, has_origins),
            RoutingList::Rules(_) => entry::is_our_rule(entry),
            RoutingList::Routes(_) => entry::is_our_route(entry),
        });
        ours.extend(found.map(|bytes| ListedEntry { list, bytes }));
    }
    Ok(ours)
}

#[cfg(test)]
mod tests;
