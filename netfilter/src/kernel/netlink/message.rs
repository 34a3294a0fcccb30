//! Netlink messages: their header, and the split of a datagram into messages.
//!
//! Layout: `include/uapi/linux/netlink.h`, `struct nlmsghdr`.

/// Attributes and messages begin at multiples of four (`NLMSG_ALIGNTO`, `NLA_ALIGNTO`).
pub(crate) const fn align(length: usize) -> usize {
    (length + 3) & !3
}

pub(crate) const HEADER: usize = 16;

/// `NLM_F_REQUEST`: set on every message to the kernel.
pub(crate) const REQUEST: u16 = 0x1;
/// `NLM_F_ACK`: requests an acknowledgement also on success.
pub(crate) const ACK: u16 = 0x4;
/// `NLM_F_DUMP_INTR`: the objects changed during the dump, so the list may be inconsistent.
pub(crate) const DUMP_INTERRUPTED: u16 = 0x10;
/// `NLM_F_DUMP`: requests all objects instead of one.
pub(crate) const DUMP: u16 = 0x300;
/// `NLM_F_EXCL`: fails if the object exists.
pub(crate) const EXCLUSIVE: u16 = 0x200;
/// `NLM_F_REPLACE`: replaces the object if it exists.
pub(crate) const REPLACE: u16 = 0x100;
/// `NLM_F_CREATE`: creates the object if it does not exist.
pub(crate) const CREATE: u16 = 0x400;
/// `NLM_F_APPEND`: adds the object at the end of its list.
pub(crate) const APPEND: u16 = 0x800;

/// `NLMSG_ERROR`: the reply to one message; error number 0 is the acknowledgement.
pub(crate) const ERROR: u16 = 2;
/// `NLMSG_DONE`: the list is complete.
pub(crate) const DONE: u16 = 3;

/// The netlink header without its length, which the writer fills in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
}

impl Header {
    /// Returns the header with length 0 and with port 0, the kernel's.
    pub(crate) fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[4..6].copy_from_slice(&self.kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        bytes
    }

    /// Reads the header at the start of `bytes`. Returns it with the message length, in bytes, that it states.
    pub(super) fn read(bytes: &[u8]) -> Option<(Self, usize)> {
        let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, ..] = *bytes.first_chunk::<HEADER>()?;
        let header = Self {
            kind: u16::from_ne_bytes([k0, k1]),
            flags: u16::from_ne_bytes([f0, f1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
        };
        Some((header, usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).ok()?))
    }
}

/// A received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message<'b> {
    pub(crate) header: Header,
    /// The bytes after the netlink header.
    pub(crate) body: &'b [u8],
}

/// Iterates over the messages of a datagram. A remainder that is not a message yields `Err` and ends the iteration.
#[derive(Debug)]
pub(crate) struct Messages<'b>(pub(crate) &'b [u8]);

/// The bytes are not a netlink message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotAMessage;

impl<'b> Iterator for Messages<'b> {
    type Item = Result<Message<'b>, NotAMessage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let message = self.cut();
        if message.is_none() {
            self.0 = &[];
        }
        Some(message.ok_or(NotAMessage))
    }
}

impl<'b> Messages<'b> {
    fn cut(&mut self) -> Option<Message<'b>> {
        let (header, length) = Header::read(self.0)?;
        let body = self.0.get(HEADER..length)?;
        self.0 = self.0.get(align(length)..).unwrap_or_default();
        Some(Message { header, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::netlink::attr::Writer;

    #[test]
    fn a_datagram_is_split_into_its_messages() {
        let (first, second) =
            (Header { kind: 2, flags: 5, sequence: 9 }, Header { kind: 3, flags: 0, sequence: 10 });
        let mut writer = Writer::default();
        writer.message(first, &[1, 2], |w| w.attr(1, &[7]));
        writer.message(second, &[], |_| ());
        let bytes = writer.finish().unwrap();
        let messages: Vec<_> = Messages(&bytes).map(Result::unwrap).collect();
        assert_eq!(messages[0].header, first);
        assert_eq!(messages[0].body, [1, 2, 0, 0, 5, 0, 1, 0, 7, 0, 0, 0]);
        assert_eq!(messages[1], Message { header: second, body: &[] });
        assert_eq!(messages.len(), 2);
    }

    #[test]
    fn bytes_that_are_not_a_message_are_garbled_and_end_the_iteration() {
        let mut long = [0; 16];
        long[0] = 17;
        for bytes in [&[1, 2, 3][..], &[0; 16], &long] {
            assert_eq!(Messages(bytes).collect::<Vec<_>>(), [Err(NotAMessage)], "{bytes:?}");
        }
    }
}
