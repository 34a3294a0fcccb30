//! A list of the kernel's, collected from datagrams: whole, or the reason why it is not.
//!
//! Pure: takes what was received. What the entries mean is in `found`.

use crate::netlink::message::{DONE, DUMP_INTERRUPTED, ERROR, Message, Messages};
use crate::netlink::reply::{Answer, Received, Unknown};
use crate::nft::batch::GENERIC;
use nix::errno::Errno;

/// What one request for a list brought.
#[derive(Debug)]
pub(super) struct List {
    /// The attributes of each entry.
    pub(super) entries: Vec<Vec<u8>>,
    sequence: u32,
    generation: Option<[u8; 2]>,
    end: Option<Listed>,
    changed: bool,
}

/// How a request for a list ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listed {
    /// All there is, of one generation.
    Whole,
    /// Something changed while it was listed, or since the list before.
    Changed,
    /// The kernel would not list it.
    Refused(Errno),
    /// No telling whether it is all.
    Unknown(Unknown),
}

impl List {
    /// Nothing received yet of the answer to `sequence`. `generation` is that of earlier lists.
    pub(super) fn of(sequence: u32, generation: Option<[u8; 2]>) -> Self {
        Self { entries: Vec::new(), sequence, generation, end: None, changed: false }
    }

    /// Has the end been reached?
    pub(super) fn is_complete(&self) -> bool {
        self.end.is_some()
    }

    /// The generation of its entries, or of the lists before it when it has none.
    pub(super) fn generation(&self) -> Option<[u8; 2]> {
        self.generation
    }

    /// How it ended, when nothing more is to come.
    pub(super) fn outcome(&self) -> Listed {
        match self.end {
            Some(Listed::Whole) if self.changed => Listed::Changed,
            Some(end) => end,
            None => Listed::Unknown(Unknown::NotAcknowledged),
        }
    }

    /// Takes note of one thing received.
    pub(super) fn note(&mut self, received: Received<'_>) {
        let datagram = match received {
            Received::Datagram(datagram) => datagram,
            Received::Truncated => return self.end(Listed::Unknown(Unknown::Unreadable)),
            Received::Overrun => return self.end(Listed::Unknown(Unknown::AnswersDropped)),
        };
        for message in Messages(datagram) {
            match message {
                Ok(message) if message.header.sequence == self.sequence => self.message(&message),
                // The rest of an earlier answer.
                Ok(_) => {}
                Err(_) => self.end(Listed::Unknown(Unknown::Unreadable)),
            }
        }
    }

    fn message(&mut self, message: &Message<'_>) {
        self.changed |= message.header.flags & DUMP_INTERRUPTED != 0;
        match message.header.kind {
            DONE => self.end(done(message.body)),
            ERROR => {
                let refusal = Answer::read(message).and_then(Answer::refusal);
                let unreadable = Listed::Unknown(Unknown::Unreadable);
                self.end(refusal.map_or(unreadable, |refusal| Listed::Refused(refusal.errno)));
            }
            _ => self.entry(message.body),
        }
    }

    /// Every entry bears the lower bits of its generation (`nfnl_msg_put`, `res_id`).
    fn entry(&mut self, body: &[u8]) {
        let Some((&[_, _, high, low], attributes)) = body.split_first_chunk::<GENERIC>() else {
            return self.end(Listed::Unknown(Unknown::Unreadable));
        };
        self.changed |= self.generation.replace([high, low]).is_some_and(|before| before != [high, low]);
        self.entries.push(attributes.to_vec());
    }

    /// The first end counts: what is lost stays lost when the list goes on.
    fn end(&mut self, end: Listed) {
        self.end.get_or_insert(end);
    }
}

/// A list that failed half-way says so in its last message (`netlink_dump_done`).
fn done(body: &[u8]) -> Listed {
    let errno = body.first_chunk::<4>().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    match errno {
        0.. => Listed::Whole,
        failed if failed == -(Errno::EINTR as i32) => Listed::Changed,
        failed => Listed::Refused(Errno::from_raw(failed.saturating_neg())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attr::Writer;
    use crate::netlink::message::Header;

    const SEQUENCE: u32 = 3;

    fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.message(Header { kind, flags, sequence: SEQUENCE }, body, |_| ());
        writer.finish().unwrap()
    }

    fn entry(generation: u8) -> Vec<u8> {
        message(0xa06, 0, &[1, 0, 0, generation, 4, 0, 1, 0])
    }

    fn outcome(datagrams: &[Vec<u8>]) -> Listed {
        let mut list = List::of(SEQUENCE, Some([0, 7]));
        for datagram in datagrams {
            list.note(Received::Datagram(datagram));
        }
        list.outcome()
    }

    #[test]
    fn a_list_is_whole_when_it_ended_in_the_generation_it_began_in() {
        assert_eq!(outcome(&[entry(7), entry(7), message(DONE, 0, &[0; 4])]), Listed::Whole);
        assert_eq!(outcome(&[message(DONE, 0, &[0; 4])]), Listed::Whole, "an empty one");
    }

    #[test]
    fn f25_a_list_without_its_end_is_no_list() {
        assert_eq!(outcome(&[entry(7)]), Listed::Unknown(Unknown::NotAcknowledged));
        assert_eq!(outcome(&[entry(7)[..18].to_vec()]), Listed::Unknown(Unknown::Unreadable));
    }

    #[test]
    fn f25_a_change_while_it_is_read_is_noticed() {
        let done = || message(DONE, 0, &[0; 4]);
        assert_eq!(outcome(&[entry(7), entry(8), done()]), Listed::Changed, "between entries");
        assert_eq!(outcome(&[entry(8), done()]), Listed::Changed, "since the list before");
        assert_eq!(outcome(&[entry(7), message(DONE, DUMP_INTERRUPTED, &[0; 4])]), Listed::Changed);
        assert_eq!(outcome(&[entry(7), message(DONE, 0, &(-4_i32).to_ne_bytes())]), Listed::Changed);
    }

    #[test]
    fn f25_dropped_entries_spoil_the_list_even_when_its_end_arrives() {
        let mut list = List::of(SEQUENCE, None);
        list.note(Received::Overrun);
        list.note(Received::Datagram(&message(DONE, 0, &[0; 4])));
        assert_eq!(list.outcome(), Listed::Unknown(Unknown::AnswersDropped));
    }

    #[test]
    fn a_refusal_is_told_from_an_empty_list() {
        let mut body = (-2_i32).to_ne_bytes().to_vec();
        body.extend([0; 16]);
        assert_eq!(outcome(&[message(ERROR, 0, &body)]), Listed::Refused(Errno::ENOENT));
    }
}
