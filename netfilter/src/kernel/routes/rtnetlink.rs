//! The routing socket: lists, adds and removes entries, so that an ADD opens one socket.

use super::entry::{RoutingEntry, RoutingList};
use super::error::RoutesError;
use crate::kernel::netlink::attr::Writer;
use crate::kernel::netlink::list::{Limit, Listed};
use crate::kernel::netlink::message::{ACK, CREATE, DUMP, EXCLUSIVE, Header, REQUEST};
use crate::kernel::netlink::reply::{MessageRefusal, RequestOutcome};
use crate::kernel::netlink::socket::Socket;
use nix::errno::Errno;
use nix::sys::socket::SockProtocol;

/// How many entries of a list are read where the caller has no limit of its own: a process in the namespace may add as
/// many as it likes.
const MOST: usize = 100_000;

/// How often a list that changed while it was read is read again.
const ATTEMPTS: u32 = 5;

/// A routing socket of the network namespace in which the calling thread opened it.
#[derive(Debug)]
pub struct Rtnetlink {
    socket: Socket,
    sequence: u32,
}

/// An entry to add.
#[derive(Debug, Clone, Copy)]
pub(super) struct Addition {
    pub entry: RoutingEntry,
    /// The priority of a rule; without effect on other entries.
    pub priority: u32,
}

/// A listed entry: its fixed header and attributes.
#[derive(Debug)]
pub(super) struct ListedEntry {
    pub list: RoutingList,
    pub bytes: Vec<u8>,
}

/// A request to change something.
pub(super) struct ChangeRequest<B> {
    pub kind: u16,
    pub flags: u16,
    /// The fixed header of its entry.
    pub header: Vec<u8>,
    /// Writes the attributes.
    pub attributes: B,
}

impl Rtnetlink {
    /// Opens a socket.
    ///
    /// # Errors
    /// When the kernel refuses the socket.
    pub fn open() -> Result<Self, RoutesError> {
        Ok(Self { socket: Socket::open(SockProtocol::NetlinkRoute)?, sequence: 0 })
    }

    /// Adds entries in order, in one datagram. Returns the refused entries with the errno.
    pub(super) fn add(&mut self, additions: &[Addition]) -> Result<Vec<(RoutingEntry, Errno)>, RoutesError> {
        self.add_with(CREATE | EXCLUSIVE, additions)
    }

    /// [`Rtnetlink::add`] with these flags.
    pub(super) fn add_with(
        &mut self,
        flags: u16,
        additions: &[Addition],
    ) -> Result<Vec<(RoutingEntry, Errno)>, RoutesError> {
        let first = self.sequence + 1;
        let messages = additions.iter().map(|Addition { entry, priority }| {
            let attributes = |w: &mut Writer| entry.attributes(*priority, w);
            ChangeRequest { kind: entry.new_message(), flags, header: entry.header(), attributes }
        });
        let refusals = self.transact(messages.collect())?;
        let added = |sequence: u32| additions.get(usize::try_from(sequence.checked_sub(first)?).ok()?);
        let entry = |sequence: u32| added(sequence).map(|addition| addition.entry);
        Ok(refusals.iter().filter_map(|r| Some((entry(r.sequence)?, r.errno))).collect())
    }

    /// Deletes listed entries, each by its own description. Entries that are gone already are no error.
    pub(super) fn delete(&mut self, listed: &[ListedEntry]) -> Result<(), RoutesError> {
        let first = self.sequence + 1;
        // The whole description, fixed header and attributes, as iproute2 does for a flush.
        let messages = listed.iter().map(|ListedEntry { list, bytes }| ChangeRequest {
            kind: list.deletion(),
            flags: 0,
            header: bytes.clone(),
            attributes: |_: &mut Writer| (),
        });
        for MessageRefusal { sequence, errno: source, .. } in self.transact(messages.collect())? {
            let index = sequence.checked_sub(first).and_then(|index| usize::try_from(index).ok());
            let what = index.and_then(|index| listed.get(index)).map_or("entries", |entry| entry.list.name());
            if !matches!(source, Errno::ENOENT | Errno::ESRCH | Errno::EADDRNOTAVAIL) {
                return Err(RoutesError::Remove { what, source });
            }
        }
        Ok(())
    }

    /// All entries of a list, each with fixed header and attributes; none of a family that the kernel lacks.
    pub(super) fn list(&mut self, list: RoutingList) -> Result<Vec<Vec<u8>>, RoutesError> {
        self.list_up_to(list, MOST)
    }

    /// The same, with a limit.
    pub(super) fn list_up_to(&mut self, list: RoutingList, most: usize) -> Result<Vec<Vec<u8>>, RoutesError> {
        let (what, kind, header, family) = list.request();
        let fixed = [&[family], &vec![0; header - 1][..]].concat();
        let entries = match self.request_list(what, kind, &fixed, most) {
            Err(RoutesError::List { source: Errno::EAFNOSUPPORT | Errno::EOPNOTSUPP, .. }) => Vec::new(),
            outcome => outcome?,
        };
        // For an unknown family the kernel may list another one.
        Ok(entries.into_iter().filter(|entry| entry.first() == Some(&family)).collect())
    }

    pub(super) fn next_sequence(&mut self) -> u32 {
        self.sequence += 1;
        self.sequence
    }

    /// Sends one request and collects the reply.
    pub(super) fn request(&mut self, request: &[u8], sequence: u32) -> Result<Listed, RoutesError> {
        Ok(self.socket.list(request, sequence, Limit::entries(MOST))?)
    }

    /// Requests a list of any kind, with at most so many entries.
    pub(crate) fn request_list(
        &mut self,
        what: &'static str,
        kind: u16,
        fixed: &[u8],
        most: usize,
    ) -> Result<Vec<Vec<u8>>, RoutesError> {
        for _ in 0..ATTEMPTS {
            self.sequence += 1;
            let mut writer = Writer::with_capacity(64);
            let header = Header { kind, flags: REQUEST | DUMP, sequence: self.sequence };
            writer.message(header, fixed, |_| ());
            let request = writer.finish().unwrap_or_default();
            match self.socket.list(&request, self.sequence, Limit::entries(most))? {
                Listed::Whole(entries) => return Ok(entries),
                Listed::Refused(source) => return Err(RoutesError::List { what, source }),
                Listed::TooLarge => return Err(RoutesError::TooLarge { what, most }),
                Listed::Unknown(source) => return Err(RoutesError::OutcomeUnknown(source)),
                Listed::Changed => {}
            }
        }
        Err(RoutesError::KeptChanging { what, attempts: ATTEMPTS })
    }

    /// Sends messages as one datagram; rtnetlink carries them out one by one, in order.
    pub(super) fn transact<B: FnOnce(&mut Writer)>(
        &mut self,
        messages: Vec<ChangeRequest<B>>,
    ) -> Result<Vec<MessageRefusal>, RoutesError> {
        let mut left = messages.len();
        if left == 0 {
            return Ok(Vec::new());
        }
        let mut writer = Writer::with_capacity(128 * left);
        for ChangeRequest { kind, flags, header, attributes } in messages {
            self.sequence += 1;
            left -= 1;
            let flags = REQUEST | flags | if left == 0 { ACK } else { 0 };
            writer.message(Header { kind, flags, sequence: self.sequence }, &header, attributes);
        }
        match self.socket.transact(&writer.finish().unwrap_or_default(), self.sequence)? {
            RequestOutcome::Done => Ok(Vec::new()),
            RequestOutcome::Refused(refusals) => Ok(refusals),
            RequestOutcome::Unknown(source) => Err(RoutesError::OutcomeUnknown(source)),
        }
    }
}
