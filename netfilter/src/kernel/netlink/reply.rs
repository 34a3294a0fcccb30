//! Evaluates the kernel's replies to a request. The outcome is success only when the kernel has acknowledged it.
//!
//! Pure: takes received datagrams in order and returns the outcome; `socket` receives them.

use super::attr::Attributes;
use super::message::{ERROR, HEADER, Header, Message, Messages, align};
use nix::errno::Errno;

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

impl<'b> Received<'b> {
    /// The datagram, or why none can be evaluated.
    pub(super) fn datagram(self) -> Result<&'b [u8], Unknown> {
        match self {
            Self::Datagram([]) | Self::Truncated => Err(Unknown::Unreadable),
            Self::Overrun => Err(Unknown::RepliesDropped),
            Self::Datagram(datagram) => Ok(datagram),
        }
    }
}

/// The reason for an unknown outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// The kernel neither refused nor acknowledged the request.
    #[error("the kernel did not acknowledge it")]
    NotAcknowledged,
    /// `ENOBUFS`.
    #[error("the kernel dropped replies for want of buffer space")]
    RepliesDropped,
    /// A reply that cannot be parsed.
    #[error("the kernel's reply cannot be read")]
    Unreadable,
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    /// The kernel acknowledged the request and refused nothing.
    Done,
    /// The kernel refused these messages, in the order of its replies; never empty.
    Refused(Vec<MessageRefusal>),
    /// No reply was conclusive.
    Unknown(Unknown),
}

/// The most irrelevant datagrams that are read; the kernel never sends as many.
const MAX_INCONCLUSIVE: u32 = 64;

/// The replies so far to messages of which the last requested an acknowledgement.
#[derive(Debug)]
pub(crate) struct Replies {
    last: u32,
    last_has_reply: bool,
    refusals: Vec<MessageRefusal>,
    unknown: Option<Unknown>,
    /// The number of irrelevant datagrams.
    inconclusive: u32,
}

impl Replies {
    /// No replies yet; message `last` requested an acknowledgement.
    pub(crate) fn of(last: u32) -> Self {
        Self { last, last_has_reply: false, refusals: Vec::new(), unknown: None, inconclusive: 0 }
    }

    /// Evaluates one received datagram.
    ///
    /// A refusal of any message counts: when a commit fails, the error is for the first message of the batch, while the
    /// last one is still acknowledged (`nfnetlink_rcv_batch`).
    pub(crate) fn add(&mut self, received: Received<'_>) {
        let datagram = match received.datagram() {
            Ok(datagram) => datagram,
            Err(unknown) => return self.note_inconclusive(unknown),
        };
        for message in Messages(datagram) {
            match message.ok().and_then(|message| KernelReply::read(&message)) {
                Some(reply) => {
                    self.last_has_reply |= reply.sequence == self.last;
                    self.refusals.extend(reply.refusal());
                }
                None => self.note_inconclusive(Unknown::Unreadable),
            }
        }
    }

    fn note_inconclusive(&mut self, unknown: Unknown) {
        self.unknown = Some(unknown);
        self.inconclusive += 1;
    }

    /// Reports whether no further reply is expected: the last message has a reply, or the outcome is unknown.
    pub(crate) fn is_complete(&self) -> bool {
        self.last_has_reply || self.inconclusive >= MAX_INCONCLUSIVE
    }

    /// The outcome, when no further reply is expected.
    pub(crate) fn outcome(self) -> RequestOutcome {
        match (self.refusals, self.unknown) {
            (refusals, _) if !refusals.is_empty() => RequestOutcome::Refused(refusals),
            (_, Some(unknown)) => RequestOutcome::Unknown(unknown),
            (_, None) if self.last_has_reply => RequestOutcome::Done,
            (_, None) => RequestOutcome::Unknown(Unknown::NotAcknowledged),
        }
    }
}

/// `NLM_F_CAPPED`: the reply repeats only the header of the request.
const CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`: attributes follow (`NETLINK_EXT_ACK`).
const ATTRIBUTES: u16 = 0x200;
/// `NLMSGERR_ATTR_MSG`: the kernel's error message.
const ATTR_MESSAGE: u16 = 1;
/// `NLMSGERR_ATTR_OFFS`: the offset of the refused attribute in the request, in bytes.
const ATTR_OFFSET: u16 = 2;

/// A message the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MessageRefusal {
    /// The sequence number of the refused message.
    pub(crate) sequence: u32,
    pub(crate) errno: Errno,
    /// The kernel's error message, if it sent one.
    pub(crate) kernel_message: Option<String>,
    /// The offset of the refused attribute in the request, in bytes.
    pub(crate) offset: Option<usize>,
}

/// One `NLMSG_ERROR` message: an acknowledgement, or a refusal with its reason. Layout: `include/uapi/linux/netlink.h`,
/// `struct nlmsgerr` and what follows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelReply<'b> {
    /// The sequence number of the request.
    pub(crate) sequence: u32,
    errno: i32,
    attributes: &'b [u8],
}

impl<'b> KernelReply<'b> {
    /// Reads `struct nlmsgerr` and its attributes. Returns `None` for a message of another type.
    pub(crate) fn read(message: &Message<'b>) -> Option<Self> {
        if message.header.kind != ERROR {
            return None;
        }
        let (errno, request) = message.body.split_first_chunk::<4>()?;
        // The kernel always repeats the whole header of the request (`netlink_ack`).
        let (header, length) = Header::read(request)?;
        let repeated = match message.header.flags & CAPPED {
            0 => align(length),
            _ => HEADER,
        };
        let attributes = match message.header.flags & ATTRIBUTES {
            0 => &[][..],
            _ => request.get(repeated..)?,
        };
        Some(Self { sequence: header.sequence, errno: i32::from_ne_bytes(*errno), attributes })
    }

    /// Returns the refusal, or `None` for an acknowledgement.
    pub(crate) fn refusal(self) -> Option<MessageRefusal> {
        let errno = match self.errno {
            0 => return None,
            negative => Errno::from_raw(negative.saturating_neg()),
        };
        let attributes = Attributes::of(self.attributes);
        let kernel_message =
            attributes.get(ATTR_MESSAGE).map(|words| String::from_utf8_lossy(words.text()).into_owned());
        let offset = attributes.get(ATTR_OFFSET).and_then(|offset| offset.ne32()?.try_into().ok());
        Some(MessageRefusal { sequence: self.sequence, errno, kernel_message, offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::netlink::attr::Writer;

    const LAST: u32 = 7;

    /// A datagram of `netlink_ack`: the header of the request, capped.
    fn reply(sequence: u32, errno: i32, attributes: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let request = Header { kind: 0xa06, flags: 0, sequence };
        let mut fixed = errno.to_ne_bytes().to_vec();
        fixed.extend_from_slice(&request.to_bytes());
        let mut writer = Writer::default();
        writer.message(Header { kind: ERROR, flags: CAPPED | ATTRIBUTES, sequence }, &fixed, attributes);
        writer.finish().unwrap()
    }

    fn outcome(received: &[Received<'_>]) -> RequestOutcome {
        let mut replies = Replies::of(LAST);
        for one in received {
            replies.add(*one);
        }
        replies.outcome()
    }

    fn refused(outcome: RequestOutcome) -> Vec<(u32, Errno)> {
        match outcome {
            RequestOutcome::Refused(refusals) => {
                refusals.into_iter().map(|r| (r.sequence, r.errno)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_is_done_when_the_last_message_is_acknowledged_and_nothing_refused() {
        assert_eq!(outcome(&[Received::Datagram(&reply(LAST, 0, |_| ()))]), RequestOutcome::Done);
    }

    #[test]
    fn f25_an_acknowledgement_of_another_message_is_none() {
        let early = reply(LAST - 1, 0, |_| ());
        assert_eq!(outcome(&[Received::Datagram(&early)]), RequestOutcome::Unknown(Unknown::NotAcknowledged));
        assert_eq!(outcome(&[]), RequestOutcome::Unknown(Unknown::NotAcknowledged));
    }

    #[test]
    fn f25_an_error_on_the_batch_begin_outweighs_the_last_acknowledgement() {
        let (begin, last) = (reply(0, -12, |_| ()), reply(LAST, 0, |_| ()));
        let both = outcome(&[Received::Datagram(&begin), Received::Datagram(&last)]);
        assert_eq!(refused(both), [(0, Errno::ENOMEM)]);
    }

    #[test]
    fn every_refusal_is_kept_with_its_message_also_several_in_one_datagram() {
        let mut datagram = reply(3, -95, |_| ());
        datagram.extend(reply(5, -2, |_| ()));
        let last = reply(LAST, 0, |_| ());
        let all = outcome(&[Received::Datagram(&datagram), Received::Datagram(&last)]);
        assert_eq!(refused(all), [(3, Errno::EOPNOTSUPP), (5, Errno::ENOENT)]);
    }

    #[test]
    fn f25_dropped_replies_never_count_as_done() {
        let last = reply(LAST, 0, |_| ());
        let lost = outcome(&[Received::Overrun, Received::Datagram(&last)]);
        assert_eq!(lost, RequestOutcome::Unknown(Unknown::RepliesDropped));
        let refusal = reply(2, -1, |_| ());
        assert_eq!(refused(outcome(&[Received::Overrun, Received::Datagram(&refusal)])), [(2, Errno::EPERM)]);
    }

    #[test]
    fn f25_a_reply_that_cannot_be_parsed_never_counts_as_done() {
        let last = reply(LAST, 0, |_| ());
        let other = Header { kind: 99, flags: 0, sequence: LAST }.to_bytes();
        // An acknowledgement that ends within the header of the request.
        let short = [&35_u32.to_ne_bytes(), &last[4..6], &[0, 0], &last[8..35]].concat();
        for garbled in [&[1, 2, 3][..], &[0; 40], &last[..20], &other, &short] {
            let all = outcome(&[Received::Datagram(garbled), Received::Datagram(&last)]);
            assert_eq!(all, RequestOutcome::Unknown(Unknown::Unreadable), "{garbled:?}");
        }
        let cut = outcome(&[Received::Truncated, Received::Datagram(&last)]);
        assert_eq!(cut, RequestOutcome::Unknown(Unknown::Unreadable));
    }

    #[test]
    fn f25_after_64_irrelevant_datagrams_no_more_are_read() {
        for nothing in
            [Received::Overrun, Received::Truncated, Received::Datagram(&[]), Received::Datagram(&[0; 12])]
        {
            let mut replies = Replies::of(LAST);
            let read = (0..1000).take_while(|_| {
                replies.add(nothing);
                !replies.is_complete()
            });
            assert!(read.count() < 1000, "{nothing:?}");
            assert!(matches!(replies.outcome(), RequestOutcome::Unknown(_)), "{nothing:?}");
        }
    }

    #[test]
    fn the_kernels_message_and_the_offset_are_kept() {
        let datagram = reply(3, -22, |w| {
            w.text(ATTR_MESSAGE, "chain is bound");
            w.ne32(ATTR_OFFSET, 40);
        });
        let RequestOutcome::Refused(refusals) = outcome(&[Received::Datagram(&datagram)]) else { panic!() };
        assert_eq!(refusals[0].kernel_message.as_deref(), Some("chain is bound"));
        assert_eq!(refusals[0].offset, Some(40));
    }

    #[test]
    fn attributes_are_found_behind_a_message_that_is_repeated_whole() {
        let mut request = Writer::default();
        request.message(Header { kind: 0xa06, flags: 0, sequence: LAST }, &[1, 2, 3, 4], |w| w.attr(9, &[1]));
        let mut fixed = (-17_i32).to_ne_bytes().to_vec();
        fixed.extend(request.finish().unwrap());
        let mut writer = Writer::default();
        let header = Header { kind: ERROR, flags: ATTRIBUTES, sequence: LAST };
        writer.message(header, &fixed, |w| w.text(ATTR_MESSAGE, "there already"));
        let datagram = writer.finish().unwrap();
        let RequestOutcome::Refused(refusals) = outcome(&[Received::Datagram(&datagram)]) else { panic!() };
        assert_eq!(
            (refusals[0].errno, refusals[0].kernel_message.as_deref()),
            (Errno::EEXIST, Some("there already"))
        );
    }
}
