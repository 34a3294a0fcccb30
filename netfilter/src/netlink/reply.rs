//! Evaluates the kernel's replies to a request. The outcome is success only when the kernel has acknowledged it.
//!
//! Pure: takes received datagrams in order and returns the outcome; `socket` receives them.

use super::answer::{Answer, Refusal};
use super::message::Messages;

/// The result of one receive call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received<'b> {
    /// A whole datagram.
    Datagram(&'b [u8]),
    /// A datagram longer than the buffer.
    Truncated,
    /// `ENOBUFS`: the kernel dropped replies (`netlink_overrun`).
    Overrun,
}

/// The reason for an unknown outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// The kernel neither refused nor acknowledged the request.
    #[error("the kernel did not acknowledge it")]
    NotAcknowledged,
    /// `ENOBUFS`.
    #[error("the kernel dropped answers for want of buffer space")]
    AnswersDropped,
    /// A reply that cannot be parsed.
    #[error("the kernel's answer cannot be read")]
    Unreadable,
    /// More replies than are read.
    #[error("the kernel lists more than 64 MiB")]
    TooMuch,
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The kernel acknowledged the request and refused nothing.
    Done,
    /// The kernel refused these messages, in the order of its replies; never empty.
    Refused(Vec<Refusal>),
    /// No reply was conclusive.
    Unknown(Unknown),
}

/// The most irrelevant datagrams that are read; the kernel never sends as many.
const STRANGE: u32 = 64;

/// The replies so far to messages of which the last requested an acknowledgement.
#[derive(Debug)]
pub(crate) struct Account {
    last: u32,
    answered: bool,
    refusals: Vec<Refusal>,
    unknown: Option<Unknown>,
    /// The number of irrelevant datagrams.
    strange: u32,
}

impl Account {
    /// An account without replies; message `last` requested an acknowledgement.
    pub(crate) fn of(last: u32) -> Self {
        Self { last, answered: false, refusals: Vec::new(), unknown: None, strange: 0 }
    }

    /// Evaluates one received datagram.
    ///
    /// A refusal of any message counts: when a commit fails, the error is for the first message of the batch, while the
    /// last one is still acknowledged (`nfnetlink_rcv_batch`).
    pub(crate) fn note(&mut self, received: Received<'_>) {
        let datagram = match received {
            Received::Datagram([]) | Received::Truncated => return self.says_nothing(Unknown::Unreadable),
            Received::Overrun => return self.says_nothing(Unknown::AnswersDropped),
            Received::Datagram(datagram) => datagram,
        };
        for message in Messages(datagram) {
            match message.ok().and_then(|message| Answer::read(&message)) {
                Some(answer) => {
                    self.answered |= answer.sequence == self.last;
                    self.refusals.extend(answer.refusal());
                }
                None => self.says_nothing(Unknown::Unreadable),
            }
        }
    }

    fn says_nothing(&mut self, unknown: Unknown) {
        self.unknown = Some(unknown);
        self.strange += 1;
    }

    /// Reports whether no further reply is expected: the last message has a reply, or the outcome is unknown.
    pub(crate) fn is_settled(&self) -> bool {
        self.answered || self.strange >= STRANGE
    }

    /// The outcome, when no further reply is expected.
    pub(crate) fn outcome(self) -> Outcome {
        match (self.refusals, self.unknown) {
            (refusals, _) if !refusals.is_empty() => Outcome::Refused(refusals),
            (_, Some(unknown)) => Outcome::Unknown(unknown),
            (_, None) if self.answered => Outcome::Done,
            (_, None) => Outcome::Unknown(Unknown::NotAcknowledged),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::answer::{ATTR_MESSAGE, ATTR_OFFSET, ATTRIBUTES, CAPPED};
    use crate::netlink::attr::Writer;
    use crate::netlink::message::{ERROR, Header};
    use nix::errno::Errno;

    const LAST: u32 = 7;

    /// A datagram of `netlink_ack`: the header of the request, capped.
    fn answer(sequence: u32, errno: i32, attributes: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let asked = Header { kind: 0xa06, flags: 0, sequence };
        let mut fixed = errno.to_ne_bytes().to_vec();
        fixed.extend_from_slice(&asked.to_bytes());
        let mut writer = Writer::default();
        writer.message(Header { kind: ERROR, flags: CAPPED | ATTRIBUTES, sequence }, &fixed, attributes);
        writer.finish().unwrap()
    }

    fn outcome(received: &[Received<'_>]) -> Outcome {
        let mut account = Account::of(LAST);
        for one in received {
            account.note(*one);
        }
        account.outcome()
    }

    fn refused(outcome: Outcome) -> Vec<(u32, Errno)> {
        match outcome {
            Outcome::Refused(refusals) => refusals.into_iter().map(|r| (r.sequence, r.errno)).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_is_done_when_the_last_message_is_acknowledged_and_nothing_refused() {
        assert_eq!(outcome(&[Received::Datagram(&answer(LAST, 0, |_| ()))]), Outcome::Done);
    }

    #[test]
    fn f25_an_acknowledgement_of_another_message_is_none() {
        let early = answer(LAST - 1, 0, |_| ());
        assert_eq!(outcome(&[Received::Datagram(&early)]), Outcome::Unknown(Unknown::NotAcknowledged));
        assert_eq!(outcome(&[]), Outcome::Unknown(Unknown::NotAcknowledged));
    }

    #[test]
    fn f25_an_error_on_the_batch_begin_outweighs_the_last_acknowledgement() {
        let (begin, last) = (answer(0, -12, |_| ()), answer(LAST, 0, |_| ()));
        let both = outcome(&[Received::Datagram(&begin), Received::Datagram(&last)]);
        assert_eq!(refused(both), [(0, Errno::ENOMEM)]);
    }

    #[test]
    fn every_refusal_is_kept_with_its_message_also_several_in_one_datagram() {
        let mut datagram = answer(3, -95, |_| ());
        datagram.extend(answer(5, -2, |_| ()));
        let last = answer(LAST, 0, |_| ());
        let all = outcome(&[Received::Datagram(&datagram), Received::Datagram(&last)]);
        assert_eq!(refused(all), [(3, Errno::EOPNOTSUPP), (5, Errno::ENOENT)]);
    }

    #[test]
    fn f25_dropped_answers_never_count_as_done() {
        let last = answer(LAST, 0, |_| ());
        let lost = outcome(&[Received::Overrun, Received::Datagram(&last)]);
        assert_eq!(lost, Outcome::Unknown(Unknown::AnswersDropped));
        let refusal = answer(2, -1, |_| ());
        assert_eq!(refused(outcome(&[Received::Overrun, Received::Datagram(&refusal)])), [(2, Errno::EPERM)]);
    }

    #[test]
    fn f25_an_answer_that_cannot_be_read_never_counts_as_done() {
        let last = answer(LAST, 0, |_| ());
        let other = Header { kind: 99, flags: 0, sequence: LAST }.to_bytes();
        // An acknowledgement that ends within the header of the request.
        let short = [&35_u32.to_ne_bytes(), &last[4..6], &[0, 0], &last[8..35]].concat();
        for garbled in [&[1, 2, 3][..], &[0; 40], &last[..20], &other, &short] {
            let all = outcome(&[Received::Datagram(garbled), Received::Datagram(&last)]);
            assert_eq!(all, Outcome::Unknown(Unknown::Unreadable), "{garbled:?}");
        }
        let cut = outcome(&[Received::Truncated, Received::Datagram(&last)]);
        assert_eq!(cut, Outcome::Unknown(Unknown::Unreadable));
    }

    #[test]
    fn f25_who_hears_nothing_but_nonsense_stops_listening() {
        for nothing in
            [Received::Overrun, Received::Truncated, Received::Datagram(&[]), Received::Datagram(&[0; 12])]
        {
            let mut account = Account::of(LAST);
            let heard = (0..1000).take_while(|_| {
                account.note(nothing);
                !account.is_settled()
            });
            assert!(heard.count() < 1000, "{nothing:?}");
            assert!(matches!(account.outcome(), Outcome::Unknown(_)), "{nothing:?}");
        }
    }

    #[test]
    fn the_kernels_own_words_and_the_offset_are_kept() {
        let datagram = answer(3, -22, |w| {
            w.text(ATTR_MESSAGE, "chain is bound");
            w.ne32(ATTR_OFFSET, 40);
        });
        let Outcome::Refused(refusals) = outcome(&[Received::Datagram(&datagram)]) else { panic!() };
        assert_eq!(refusals[0].said.as_deref(), Some("chain is bound"));
        assert_eq!(refusals[0].offset, Some(40));
    }

    #[test]
    fn attributes_are_found_behind_a_message_that_is_repeated_whole() {
        let mut asked = Writer::default();
        asked.message(Header { kind: 0xa06, flags: 0, sequence: LAST }, &[1, 2, 3, 4], |w| w.attr(9, &[1]));
        let mut fixed = (-17_i32).to_ne_bytes().to_vec();
        fixed.extend(asked.finish().unwrap());
        let mut writer = Writer::default();
        let header = Header { kind: ERROR, flags: ATTRIBUTES, sequence: LAST };
        writer.message(header, &fixed, |w| w.text(ATTR_MESSAGE, "there already"));
        let datagram = writer.finish().unwrap();
        let Outcome::Refused(refusals) = outcome(&[Received::Datagram(&datagram)]) else { panic!() };
        assert_eq!((refusals[0].errno, refusals[0].said.as_deref()), (Errno::EEXIST, Some("there already")));
    }
}
