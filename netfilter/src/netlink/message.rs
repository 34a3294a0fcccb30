//! Netlink messages: the header every one begins with, and a datagram cut into them.
//!
//! Layout: `include/uapi/linux/netlink.h`, `struct nlmsghdr`.

/// Attributes and messages begin at multiples of four (`NLMSG_ALIGNTO`, `NLA_ALIGNTO`).
pub(crate) const fn align(length: usize) -> usize {
    (length + 3) & !3
}

pub(crate) const HEADER: usize = 16;

/// `NLM_F_REQUEST`: somebody asks the kernel; every message of ours does.
pub(crate) const REQUEST: u16 = 0x1;
/// `NLM_F_ACK`: the kernel is to answer also when all is well.
pub(crate) const ACK: u16 = 0x4;
/// `NLM_F_DUMP_INTR`: what is being listed changed meanwhile, the list may be wrong.
pub(crate) const DUMP_INTERRUPTED: u16 = 0x10;
/// `NLM_F_DUMP`: all objects, not one.
pub(crate) const DUMP: u16 = 0x300;
/// `NLM_F_EXCL`: refuse when it is there already.
pub(crate) const EXCLUSIVE: u16 = 0x200;
/// `NLM_F_CREATE`: make it when it is not there.
pub(crate) const CREATE: u16 = 0x400;
/// `NLM_F_APPEND`: at the end.
pub(crate) const APPEND: u16 = 0x800;

/// `NLMSG_ERROR`: an answer to one message; error 0 is the acknowledgement.
pub(crate) const ERROR: u16 = 2;
/// `NLMSG_DONE`: the list is complete.
pub(crate) const DONE: u16 = 3;

/// What a message is and which one; its length is filled in by the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
}

impl Header {
    /// The header with length 0 and port 0, which means the kernel.
    pub(crate) fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[4..6].copy_from_slice(&self.kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        bytes
    }

    /// The header that `bytes` begin with, and how many bytes it says the whole message has.
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

/// A message that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message<'b> {
    pub(crate) header: Header,
    /// What follows the netlink header.
    pub(crate) body: &'b [u8],
}

/// Cuts a datagram into its messages. A remainder that is no message is `Err` and the end.
#[derive(Debug)]
pub(crate) struct Messages<'b>(pub(crate) &'b [u8]);

/// Bytes from the kernel that are no netlink message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Garbled;

impl<'b> Iterator for Messages<'b> {
    type Item = Result<Message<'b>, Garbled>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let message = self.cut();
        if message.is_none() {
            self.0 = &[];
        }
        Some(message.ok_or(Garbled))
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
    use crate::netlink::attr::Writer;

    #[test]
    fn a_datagram_of_two_messages_is_cut_in_two() {
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
    fn what_is_no_message_is_said_to_be_garbled_and_ends_the_datagram() {
        let mut long = [0; 16];
        long[0] = 17;
        for bytes in [&[1, 2, 3][..], &[0; 16], &long] {
            assert_eq!(Messages(bytes).collect::<Vec<_>>(), [Err(Garbled)], "{bytes:?}");
        }
    }
}
