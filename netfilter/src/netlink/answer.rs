//! The kernel's answer to one message: an acknowledgement, or a refusal with its reason.
//!
//! Layout: `include/uapi/linux/netlink.h`, `struct nlmsgerr` and what follows it.

use super::attr::Attributes;
use super::message::{ERROR, HEADER, Header, Message, align};
use nix::errno::Errno;

/// `NLM_F_CAPPED`: the answer repeats only the header of what was asked.
pub(super) const CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`: attributes follow (`NETLINK_EXT_ACK`).
pub(super) const ATTRIBUTES: u16 = 0x200;
/// `NLMSGERR_ATTR_MSG`, the kernel's own words.
pub(super) const ATTR_WORDS: u16 = 1;
/// `NLMSGERR_ATTR_OFFS`, where in the message the attribute stands that it did not like.
pub(super) const ATTR_OFFSET: u16 = 2;

/// A message the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Which message.
    pub(crate) sequence: u32,
    /// Why.
    pub(crate) errno: Errno,
    /// The kernel's own words, when it has any.
    pub(crate) said: Option<String>,
    /// Where in the message the attribute stands that it did not like.
    pub(crate) offset: Option<usize>,
}

/// One `NLMSG_ERROR` message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer<'b> {
    /// Which message is answered.
    pub(crate) sequence: u32,
    errno: i32,
    attributes: &'b [u8],
}

impl<'b> Answer<'b> {
    /// Reads `struct nlmsgerr` and what follows it; `None` when the message is something else.
    pub(crate) fn read(message: &Message<'b>) -> Option<Self> {
        if message.header.kind != ERROR {
            return None;
        }
        let (errno, asked) = message.body.split_first_chunk::<4>()?;
        // The header of what was asked is always there, and whole (`netlink_ack`).
        let (header, length) = Header::read(asked)?;
        let repeated = match message.header.flags & CAPPED {
            0 => align(length),
            _ => HEADER,
        };
        let attributes = match message.header.flags & ATTRIBUTES {
            0 => &[][..],
            _ => asked.get(repeated..)?,
        };
        Some(Self { sequence: header.sequence, errno: i32::from_ne_bytes(*errno), attributes })
    }

    /// The refusal, unless it is an acknowledgement.
    pub(crate) fn refusal(self) -> Option<Refusal> {
        let errno = match self.errno {
            0 => return None,
            negative => Errno::from_raw(negative.saturating_neg()),
        };
        let attributes = Attributes::of(self.attributes);
        let said = attributes.get(ATTR_WORDS).map(|words| String::from_utf8_lossy(words.text()).into_owned());
        let offset = attributes.get(ATTR_OFFSET).and_then(|offset| offset.ne32()?.try_into().ok());
        Some(Refusal { sequence: self.sequence, errno, said, offset })
    }
}
