//! The routing socket: one for listing addresses, adding and removing, so that an ADD opens one.

use super::entry::{Entry, number};
use super::error::RoutesError;
use super::uapi::*;
use crate::netlink::answer::Refusal;
use crate::netlink::attr::Writer;
use crate::netlink::list::Listed;
use crate::netlink::message::{ACK, CREATE, DUMP, EXCLUSIVE, Header, REQUEST};
use crate::netlink::reply::Outcome;
use crate::netlink::socket::Socket;
use crate::ruleset::Family;
use nix::errno::Errno;
use nix::sys::socket::SockProtocol;

/// How often a list that changed while it was read is read again.
const ATTEMPTS: u32 = 5;

/// Routing of the network namespace the calling thread was in when it was opened.
#[derive(Debug)]
pub struct Rtnetlink {
    socket: Socket,
    sequence: u32,
}

/// An entry to add.
#[derive(Debug, Clone, Copy)]
pub(super) struct Addition {
    pub entry: Entry,
    /// A rule's place; it says nothing of other entries.
    pub priority: u32,
}

/// What the kernel lists at one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    Addresses,
    Rules(Family),
    Routes(Family),
}

impl List {
    pub(super) const ALL: [Self; 5] = [
        // Rules first: without their table they would do nothing, without them the table does nothing.
        Self::Rules(Family::V4),
        Self::Rules(Family::V6),
        Self::Routes(Family::V4),
        Self::Routes(Family::V6),
        Self::Addresses,
    ];

    /// The list in which that entry is found.
    pub(super) fn holding(entry: Entry) -> Self {
        match entry {
            Entry::PassthroughAddress => Self::Addresses,
            Entry::MarkRule { family, .. } => Self::Rules(family),
            Entry::LocalRoute { family, .. } => Self::Routes(family),
        }
    }

    /// What people call what is in it.
    pub(super) fn name(self) -> &'static str {
        self.request().0
    }

    /// Its name, the message that asks for it, that request's fixed header and its family.
    fn request(self) -> (&'static str, u16, usize, u8) {
        match self {
            Self::Addresses => ("addresses", RTM_GETADDR, 8, AF_INET6),
            Self::Rules(family) => ("routing rules", RTM_GETRULE, 12, number(family)),
            Self::Routes(family) => ("routes", RTM_GETROUTE, 12, number(family)),
        }
    }

    fn deletion(self) -> u16 {
        match self {
            Self::Addresses => RTM_DELADDR,
            Self::Rules(_) => RTM_DELRULE,
            Self::Routes(_) => RTM_DELROUTE,
        }
    }
}

impl Rtnetlink {
    /// Opens it.
    ///
    /// # Errors
    /// When the kernel gives no socket.
    pub fn open() -> Result<Self, RoutesError> {
        Ok(Self { socket: Socket::open(SockProtocol::NetlinkRoute)?, sequence: 0 })
    }

    /// Adds entries in order, in one datagram; those that were refused come back, with the reason.
    pub(super) fn add(&mut self, additions: &[Addition]) -> Result<Vec<(Entry, Errno)>, RoutesError> {
        let first = self.sequence + 1;
        let messages = additions.iter().map(|Addition { entry, priority }| {
            let flags = CREATE | EXCLUSIVE;
            let body = |w: &mut Writer| entry.attributes(*priority, w);
            (entry.new_message(), flags, entry.header(), body)
        });
        let refusals = self.transact(messages.collect())?;
        let added = |sequence: u32| additions.get(usize::try_from(sequence.checked_sub(first)?).ok()?);
        let entry = |sequence: u32| added(sequence).map(|addition| addition.entry);
        Ok(refusals.iter().filter_map(|r| Some((entry(r.sequence)?, r.errno))).collect())
    }

    /// Deletes what was listed, each by its own description. What is gone already is success.
    pub(super) fn delete(&mut self, listed: &[(List, Vec<u8>)]) -> Result<(), RoutesError> {
        let first = self.sequence + 1;
        // The description is taken over whole, fixed header and attributes, as iproute2 flushes.
        let nothing = |_: &mut Writer| ();
        let messages = listed.iter().map(|(list, entry)| (list.deletion(), 0, entry.clone(), nothing));
        for Refusal { sequence, errno: source, .. } in self.transact(messages.collect())? {
            let index = sequence.checked_sub(first).and_then(|index| usize::try_from(index).ok());
            let what =
                index.and_then(|index| listed.get(index)).map_or("entries", |(list, _)| list.request().0);
            if !matches!(source, Errno::ENOENT | Errno::ESRCH | Errno::EADDRNOTAVAIL) {
                return Err(RoutesError::Remove { what, source });
            }
        }
        Ok(())
    }

    /// All entries of a list: fixed header and attributes of each. None of a family that is not there.
    pub(super) fn list(&mut self, list: List) -> Result<Vec<Vec<u8>>, RoutesError> {
        let (what, kind, header, family) = list.request();
        let entries = self.ask(what, kind, &[&[family], &vec![0; header - 1][..]].concat())?;
        // Asked about a family it does not know, the kernel may list another.
        Ok(entries.into_iter().filter(|entry| entry.first() == Some(&family)).collect())
    }

    /// Asks for a list of whatever kind.
    pub(crate) fn ask(
        &mut self,
        what: &'static str,
        kind: u16,
        fixed: &[u8],
    ) -> Result<Vec<Vec<u8>>, RoutesError> {
        for _ in 0..ATTEMPTS {
            self.sequence += 1;
            let mut writer = Writer::with_capacity(64);
            let header = Header { kind, flags: REQUEST | DUMP, sequence: self.sequence };
            writer.message(header, fixed, |_| ());
            match self.socket.list(&writer.finish().unwrap_or_default(), self.sequence)? {
                Listed::Whole(entries) => return Ok(entries),
                Listed::Refused(Errno::EAFNOSUPPORT | Errno::EOPNOTSUPP) => return Ok(Vec::new()),
                Listed::Refused(source) => return Err(RoutesError::List { what, source }),
                Listed::Unknown(source) => return Err(RoutesError::Unsettled { source }),
                Listed::Changed => {}
            }
        }
        Err(RoutesError::Restless { what, attempts: ATTEMPTS })
    }

    /// Sends messages as one datagram; rtnetlink carries out each by itself, in order.
    pub(super) fn transact<B: FnOnce(&mut Writer)>(
        &mut self,
        messages: Vec<(u16, u16, Vec<u8>, B)>,
    ) -> Result<Vec<Refusal>, RoutesError> {
        let mut left = messages.len();
        if left == 0 {
            return Ok(Vec::new());
        }
        let mut writer = Writer::with_capacity(128 * left);
        for (kind, flags, fixed, body) in messages {
            self.sequence += 1;
            left -= 1;
            let flags = REQUEST | flags | if left == 0 { ACK } else { 0 };
            writer.message(Header { kind, flags, sequence: self.sequence }, &fixed, body);
        }
        match self.socket.transact(&writer.finish().unwrap_or_default(), self.sequence)? {
            Outcome::Done => Ok(Vec::new()),
            Outcome::Refused(refusals) => Ok(refusals),
            Outcome::Unknown(source) => Err(RoutesError::Unsettled { source }),
        }
    }
}
