//! Collects the reply to a dump request from datagrams, and reports whether it is complete.
//!
//! Pure: takes received datagrams. Callers parse the entries.

use super::message::{DONE, DUMP_INTERRUPTED, ERROR, Message, Messages};
use super::reply::{KernelReply, Received, Unknown};
use nix::errno::Errno;

/// The most that is received of one list: any process that may write rules determines its length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    /// Bytes of all entries.
    pub(crate) bytes: usize,
    /// Objects in all entries.
    pub(crate) objects: usize,
    /// Returns the number of objects in one entry.
    pub(crate) count: fn(&[u8]) -> usize,
}

impl Limit {
    /// The bytes of a list for which the caller has no limit of its own.
    pub(crate) const BYTES: usize = 16 << 20;

    /// A limit of entries.
    pub(crate) const fn entries(objects: usize) -> Self {
        Self { bytes: Self::BYTES, objects, count: |_| 1 }
    }
}

/// The reply to one dump request, as far as received.
#[derive(Debug)]
pub(crate) struct List {
    sequence: u32,
    limit: Limit,
    entries: Vec<Vec<u8>>,
    bytes: usize,
    objects: usize,
    /// The end, once received; an error is the result of a list that is not whole.
    end: Option<Result<(), Listed>>,
    changed: bool,
}

/// The result of a dump request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Listed {
    /// All entries: the bytes after the netlink header of each message.
    Whole(Vec<Vec<u8>>),
    /// The objects changed during the dump (`NLM_F_DUMP_INTR`), so the list may be inconsistent.
    Changed,
    /// The kernel refused the request.
    Refused(Errno),
    /// The list is larger than the limit. The rest was not received, so the socket can take no other request.
    TooLarge,
    /// The list may be incomplete.
    Unknown(Unknown),
}

impl List {
    /// An empty list for the reply to `sequence`.
    pub(crate) fn of(sequence: u32, limit: Limit) -> Self {
        Self { sequence, limit, entries: Vec::new(), bytes: 0, objects: 0, end: None, changed: false }
    }

    /// Reports whether the end has been received.
    pub(crate) fn is_complete(&self) -> bool {
        self.end.is_some()
    }

    /// Returns the result, after the last datagram.
    pub(crate) fn outcome(self) -> Listed {
        match self.end {
            Some(Ok(())) if self.changed => Listed::Changed,
            Some(Ok(())) => Listed::Whole(self.entries),
            Some(Err(failed)) => failed,
            None => Listed::Unknown(Unknown::NotAcknowledged),
        }
    }

    /// Adds the result of one receive call.
    pub(crate) fn add(&mut self, received: Received<'_>) {
        let datagram = match received.datagram() {
            Ok(datagram) => datagram,
            Err(unknown) => return self.end(Err(Listed::Unknown(unknown))),
        };
        for message in Messages(datagram) {
            match message {
                Ok(message) if message.header.sequence == self.sequence => self.message(&message),
                // The rest of an earlier reply.
                Ok(_) => {}
                Err(_) => self.end(Err(Listed::Unknown(Unknown::Unreadable))),
            }
        }
    }

    fn message(&mut self, message: &Message<'_>) {
        self.changed |= message.header.flags & DUMP_INTERRUPTED != 0;
        match message.header.kind {
            DONE => self.done(message.body),
            ERROR => {
                self.end(match KernelReply::read(message).map(KernelReply::refusal) {
                    Some(Some(refusal)) => Err(Listed::Refused(refusal.errno)),
                    // The acknowledgement of a request for one entry.
                    Some(None) => Ok(()),
                    None => Err(Listed::Unknown(Unknown::Unreadable)),
                });
            }
            _ => {
                self.bytes = self.bytes.saturating_add(message.body.len());
                self.objects = self.objects.saturating_add((self.limit.count)(message.body));
                match self.bytes > self.limit.bytes || self.objects > self.limit.objects {
                    true => self.end(Err(Listed::TooLarge)),
                    false => self.entries.push(message.body.to_vec()),
                }
            }
        }
    }

    /// Reads the error number in the last message, with which the kernel reports a dump that failed half-way
    /// (`netlink_dump_done`).
    fn done(&mut self, body: &[u8]) {
        match body.first_chunk::<4>().map_or(0, |bytes| i32::from_ne_bytes(*bytes)) {
            0.. => self.end(Ok(())),
            failed => self.end(Err(Listed::Refused(Errno::from_raw(failed.saturating_neg())))),
        }
    }

    /// Records the first end only: entries that are lost stay lost when further ones arrive.
    fn end(&mut self, end: Result<(), Listed>) {
        self.end.get_or_insert(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::netlink::attr::Writer;
    use crate::kernel::netlink::message::Header;

    const SEQUENCE: u32 = 3;
    const LIMIT: Limit = Limit::entries(100);

    fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.message(Header { kind, flags, sequence: SEQUENCE }, body, |_| ());
        writer.finish().unwrap()
    }

    fn entry() -> Vec<u8> {
        message(0xa06, 0, &[1, 0, 0, 7])
    }

    fn outcome(datagrams: &[Vec<u8>]) -> Listed {
        let mut list = List::of(SEQUENCE, LIMIT);
        for datagram in datagrams {
            list.add(Received::Datagram(datagram));
        }
        list.outcome()
    }

    #[test]
    fn a_list_is_whole_when_its_end_arrived() {
        let done = || message(DONE, 0, &[0; 4]);
        assert_eq!(outcome(&[[entry(), entry()].concat(), done()]), Listed::Whole(vec![vec![1, 0, 0, 7]; 2]));
        assert_eq!(outcome(&[done()]), Listed::Whole(vec![]), "an empty one");
    }

    /// The end of a list that is too large arrives only where the limit is not exceeded.
    #[test]
    fn a_list_ends_at_the_first_entry_beyond_the_limit() {
        // Each entry has four bytes; a third of them counts for itself and two more.
        fn three(_: &[u8]) -> usize {
            3
        }
        let most = Limit { bytes: usize::MAX, objects: usize::MAX, count: three };
        for (limit, entries, is_whole) in [
            (Limit { bytes: 8, ..most }, 2, true),
            (Limit { bytes: 8, ..most }, 3, false),
            (Limit { bytes: 7, ..most }, 2, false),
            (Limit { objects: 6, ..most }, 2, true),
            (Limit { objects: 5, ..most }, 2, false),
            (Limit { objects: 6, ..most }, 3, false),
            (Limit::entries(2), 2, true),
            (Limit::entries(2), 3, false),
            (Limit::entries(0), 0, true),
        ] {
            let mut list = List::of(SEQUENCE, limit);
            for _ in 0..entries {
                assert!(!list.is_complete(), "{limit:?}");
                list.add(Received::Datagram(&entry()));
            }
            assert_eq!(list.is_complete(), !is_whole, "{limit:?}");
            list.add(Received::Datagram(&message(DONE, 0, &[0; 4])));
            let whole = Listed::Whole(vec![vec![1, 0, 0, 7]; entries]);
            assert_eq!(list.outcome(), if is_whole { whole } else { Listed::TooLarge }, "{limit:?}");
        }
    }

    #[test]
    fn f25_a_list_without_its_end_has_an_unknown_outcome() {
        assert_eq!(outcome(&[entry()]), Listed::Unknown(Unknown::NotAcknowledged));
        assert_eq!(outcome(&[entry()[..18].to_vec()]), Listed::Unknown(Unknown::Unreadable));
    }

    #[test]
    fn f25_an_interrupted_list_is_reported_as_changed() {
        assert_eq!(outcome(&[entry(), message(DONE, DUMP_INTERRUPTED, &[0; 4])]), Listed::Changed);
        let interrupted = message(0xa06, DUMP_INTERRUPTED, &[1, 0, 0, 7]);
        assert_eq!(outcome(&[interrupted, message(DONE, 0, &[0; 4])]), Listed::Changed);
    }

    #[test]
    fn f25_dropped_entries_make_the_outcome_unknown_even_when_the_end_arrives() {
        let mut list = List::of(SEQUENCE, LIMIT);
        list.add(Received::Overrun);
        list.add(Received::Datagram(&message(DONE, 0, &[0; 4])));
        assert_eq!(list.outcome(), Listed::Unknown(Unknown::RepliesDropped));
    }

    #[test]
    fn f25_an_empty_datagram_ends_the_list_as_unreadable() {
        let mut list = List::of(SEQUENCE, LIMIT);
        list.add(Received::Datagram(&[]));
        assert!(list.is_complete());
        assert_eq!(list.outcome(), Listed::Unknown(Unknown::Unreadable));
    }

    #[test]
    fn the_rest_of_an_earlier_reply_is_ignored() {
        let mut list = List::of(SEQUENCE + 1, LIMIT);
        list.add(Received::Datagram(&entry()));
        assert!(!list.is_complete());
        assert_eq!(list.outcome(), Listed::Unknown(Unknown::NotAcknowledged));
    }

    #[test]
    fn a_refusal_differs_from_an_empty_list() {
        let mut body = (-2_i32).to_ne_bytes().to_vec();
        body.extend([0; 16]);
        assert_eq!(outcome(&[message(ERROR, 0, &body)]), Listed::Refused(Errno::ENOENT));
        let half = message(DONE, 0, &(-105_i32).to_ne_bytes());
        assert_eq!(outcome(&[entry(), half]), Listed::Refused(Errno::ENOBUFS));
    }
}
