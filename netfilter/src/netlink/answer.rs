//! The kernel's reply to one message (`NLMSG_ERROR`): an acknowledgement, or a refusal with its reason.
//!
//! Layout: `include/uapi/linux/netlink.h`, `struct nlmsgerr` and what follows it.

use super::attr::Attributes;
use super::message::{ERROR, HEADER, Header, Message, align};
use nix::errno::Errno;

/// `NLM_F_CAPPED`: the reply repeats only the header of the request.
pub(super) const CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`: attributes follow (`NETLINK_EXT_ACK`).
pub(super) const ATTRIBUTES: u16 = 0x200;
/// `NLMSGERR_ATTR_MSG`: the kernel's error message.
pub(super) const ATTR_MESSAGE: u16 = 1;
/// `NLMSGERR_ATTR_OFFS`: the offset of the refused attribute in the request, in bytes.
pub(super) const ATTR_OFFSET: u16 = 2;

/// A message the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The sequence number of the refused message.
    pub(crate) sequence: u32,
    pub(crate) errno: Errno,
    /// The kernel's error message, if it sent one.
    pub(crate) said: Option<String>,
    /// The offset of the refused attribute in the request, in bytes.
    pub(crate) offset: Option<usize>,
}

/// One `NLMSG_ERROR` message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer<'b> {
    /// The sequence number of the request.
    pub(crate) sequence: u32,
    errno: i32,
    attributes: &'b [u8],
}

impl<'b> Answer<'b> {
    /// Reads `struct nlmsgerr` and its attributes. Returns `None` for a message of another type.
    pub(crate) fn read(message: &Message<'b>) -> Option<Self> {
        if message.header.kind != ERROR {
            return None;
        }
        let (errno, asked) = message.body.split_first_chunk::<4>()?;
        // The kernel always repeats the whole header of the request (`netlink_ack`).
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

    /// Returns the refusal, or `None` for an acknowledgement.
    pub(crate) fn refusal(self) -> Option<Refusal> {
        let errno = match self.errno {
            0 => return None,
            negative => Errno::from_raw(negative.saturating_neg()),
        };
        let attributes = Attributes::of(self.attributes);
        let said =
            attributes.get(ATTR_MESSAGE).map(|words| String::from_utf8_lossy(words.text()).into_owned());
        let offset = attributes.get(ATTR_OFFSET).and_then(|offset| offset.ne32()?.try_into().ok());
        Some(Refusal { sequence: self.sequence, errno, said, offset })
    }
}
