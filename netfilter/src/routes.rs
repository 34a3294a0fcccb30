//! Addresses, routing rules and routes that a redirect needs beside its packet rules.
//!
//! Two needs. IPv6 has one loopback address where IPv4 has a whole network, so the proxy's
//! passthrough source `::6` is added to `lo`. TPROXY marks packets, and a routing rule with a table
//! of one local route delivers what is marked to this host. Harmless without the packet rules.
//!
//! How an entry looks on the wire is in `entry`, the socket in `rtnetlink`.

mod address;
mod entry;
mod error;
mod loopback;
mod place;
mod rtnetlink;
mod uapi;

pub(crate) use address::read_all as addresses_in;
pub use address::{Address, addresses};
pub use entry::Entry;
pub use error::RoutesError;
pub use rtnetlink::Rtnetlink;

use crate::policy::{Families, Inbound, Mode, RedirectPolicy};
use crate::ruleset::Family;
use nix::errno::Errno;
use place::{Place, place};
use rtnetlink::{Addition, List};
use std::fmt;

/// What must be there, in the order it is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routes {
    entries: Vec<Entry>,
}

impl Routes {
    /// What `policy` needs (docs/RULES.md, section 2). Nothing, for most policies on IPv4.
    pub fn wanted(policy: &RedirectPolicy) -> Self {
        let families: &[Family] = match policy.families {
            Families::V4Only => &[Family::V4],
            Families::V4AndV6 => &[Family::V4, Family::V6],
        };
        let mut entries = Vec::new();
        if policy.families == Families::V4AndV6 {
            entries.push(Entry::PassthroughAddress);
        }
        if let Mode::Tproxy { mark, route_table: table } = policy.mode
            && policy.inbound != Inbound::Only(Default::default())
        {
            for family in families.iter().copied() {
                entries.push(Entry::LocalRoute { family, table });
                entries.push(Entry::MarkRule { family, mark, table });
            }
        }
        Self { entries }
    }

    /// Is nothing needed, so that no socket is?
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Is `::6` on `lo` needed, where IPv6 has but one address?
    pub fn needs_passthrough_address(&self) -> bool {
        self.entries.contains(&Entry::PassthroughAddress)
    }

    /// Adds what is not there. Twice is the same as once.
    ///
    /// # Errors
    /// When something of it is not there afterwards.
    pub fn apply(&self, rtnetlink: &mut Rtnetlink) -> Result<(), RoutesError> {
        let mut there_already = false;
        let additions = self.additions(rtnetlink)?;
        for (entry, answer) in rtnetlink.add(&additions)? {
            match answer {
                Errno::EEXIST => there_already = true,
                source => return Err(RoutesError::refused(entry, source)),
            }
        }
        // A route to elsewhere also counts as being there.
        let missing = if there_already { self.missing(rtnetlink)? } else { Vec::new() };
        missing.first().map_or(Ok(()), |entry| Err(RoutesError::Occupied { entry: *entry }))
    }

    /// What is to be asked for, rules with their place. Of two calls at once both choose the same place, and
    /// the kernel refuses the second rule.
    fn additions(&self, rtnetlink: &mut Rtnetlink) -> Result<Vec<Addition>, RoutesError> {
        let mut additions = Vec::new();
        for entry in self.entries.iter().copied() {
            let addition = match entry {
                Entry::MarkRule { family, .. } => match place(entry, &rtnetlink.list(List::Rules(family))?) {
                    Place::Held => continue,
                    Place::Free(priority) => Addition { entry, priority },
                    Place::None => return Err(RoutesError::NoPlace { entry }),
                },
                Entry::PassthroughAddress | Entry::LocalRoute { .. } => Addition { entry, priority: 0 },
            };
            additions.push(addition);
        }
        Ok(additions)
    }

    /// What of it is not there, or not in its place.
    ///
    /// # Errors
    /// When the kernel does not list what is there.
    pub fn missing(&self, rtnetlink: &mut Rtnetlink) -> Result<Vec<Entry>, RoutesError> {
        let mut missing = Vec::new();
        let mut read: Vec<(List, Vec<Vec<u8>>)> = Vec::new();
        for entry in &self.entries {
            let list = List::holding(*entry);
            if !read.iter().any(|(other, _)| *other == list) {
                read.push((list, rtnetlink.list(list)?));
            }
            let listed =
                read.iter().find(|(other, _)| *other == list).map_or(&[][..], |(_, entries)| entries);
            let stands = match entry {
                Entry::MarkRule { .. } => place(*entry, listed) == Place::Held,
                _ => listed.iter().any(|found| entry.is(found)),
            };
            if !stands {
                missing.push(*entry);
            }
        }
        Ok(missing)
    }

    /// What of ours is there beside it: what an earlier policy needed.
    ///
    /// # Errors
    /// When the kernel does not list what is there.
    pub fn extra(&self, rtnetlink: &mut Rtnetlink) -> Result<Vec<Stray>, RoutesError> {
        Ok(self.beside(rtnetlink)?.iter().map(|(list, entry)| Stray::of(*list, entry)).collect())
    }

    /// Removes it. Comes after the packet rules that needed it are gone.
    ///
    /// # Errors
    /// When something of it may still be there.
    pub fn remove_extra(&self, rtnetlink: &mut Rtnetlink) -> Result<(), RoutesError> {
        let beside = self.beside(rtnetlink)?;
        rtnetlink.delete(&beside)
    }

    fn beside(&self, rtnetlink: &mut Rtnetlink) -> Result<Vec<(List, Vec<u8>)>, RoutesError> {
        let mut all = ours(rtnetlink)?;
        // Of a rule that is there twice the first decides: the other stands where an earlier version put it.
        let mut kept = Vec::new();
        all.retain(|(_, found)| {
            let wanted = self.entries.iter().find(|entry| entry.is(found) && !kept.contains(*entry));
            kept.extend(wanted);
            wanted.is_none()
        });
        Ok(all)
    }
}

/// Something of ours that is there and should not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stray {
    /// As we write it.
    Known(Entry),
    /// It bears our mark of origin, and is in this list.
    Unknown(&'static str),
}

impl Stray {
    fn of(list: List, found: &[u8]) -> Self {
        Entry::read(list, found).map_or(Self::Unknown(list.name()), Self::Known)
    }
}

impl fmt::Display for Stray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(entry) => entry.fmt(f),
            Self::Unknown(list) => write!(f, "something of ours among the {list}"),
        }
    }
}

/// Removes everything that bears our mark of origin, and nothing else.
///
/// # Errors
/// When something of ours may still be there.
pub fn remove(rtnetlink: &mut Rtnetlink) -> Result<(), RoutesError> {
    let ours = ours(rtnetlink)?;
    rtnetlink.delete(&ours)
}

/// Everything that bears our mark of origin.
fn ours(rtnetlink: &mut Rtnetlink) -> Result<Vec<(List, Vec<u8>)>, RoutesError> {
    let mut ours = Vec::new();
    for list in List::ALL {
        let entries = rtnetlink.list(list)?;
        // A kernel that names no address's origin cannot say whose this one is; nobody but a mesh
        // has an address `::6` on `lo`, and what we promise is that nothing of ours stays.
        let origins_told = entries.iter().any(|entry| entry::names_origin(entry));
        let found = entries.into_iter().filter(|entry| match list {
            List::Addresses => entry::is_our_address(entry, origins_told),
            List::Rules(_) => entry::is_our_rule(entry),
            List::Routes(_) => entry::is_our_route(entry),
        });
        ours.extend(found.map(|entry| (list, entry)));
    }
    Ok(ours)
}
