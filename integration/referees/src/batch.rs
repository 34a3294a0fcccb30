//! A transaction as a reference encoder wrote it: its bytes, and the object of each message.

use gybe_netfilter::nft::{Object, Start};

/// The lengths of the netlink and nfnetlink headers.
pub(crate) const HEADERS: usize = 20;
/// `NLM_F_EXCL`: refused if the object exists.
const EXCLUSIVE: u16 = 0x200;

/// Messages that the kernel carries out all or none of.
#[derive(Debug, Clone)]
pub struct Batch {
    bytes: Vec<u8>,
    /// The sequence number and the object of each message.
    objects: Vec<(u32, Object)>,
}

impl Batch {
    /// `content` names the object of each message between the begin and the end of the transaction.
    ///
    /// Neither library can say that the table must not exist yet ([`Start::Fresh`]), so that flag is added here.
    pub(crate) fn new(mut bytes: Vec<u8>, content: Vec<Object>, start: Start) -> Self {
        let offsets = message_offsets(&bytes);
        assert_eq!(offsets.len(), content.len() + 2, "each message has an object");
        let frame = || std::iter::once(Object::Transaction);
        let all = frame().chain(content).chain(frame());
        let objects: Vec<_> = offsets.iter().map(|at| sequence(&bytes[*at..])).zip(all).collect();
        let table = objects.iter().position(|(_, object)| *object == Object::Table);
        if let (Start::Fresh, Some(position)) = (start, table) {
            let flags = &mut bytes[offsets[position] + 6..][..2];
            let exclusive = u16::from_ne_bytes([flags[0], flags[1]]) | EXCLUSIVE;
            flags.copy_from_slice(&exclusive.to_ne_bytes());
        }
        Self { bytes, objects }
    }

    /// The messages, for one datagram.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The object of the message with this sequence number.
    pub(crate) fn object(&self, sequence: u32) -> Object {
        let found = self.objects.iter().find(|(number, _)| *number == sequence);
        found.map_or(Object::Transaction, |(_, object)| object.clone())
    }

    /// The sequence number of the last message before the end; both libraries have each message acknowledged.
    pub(crate) fn last(&self) -> u32 {
        self.objects[self.objects.len() - 2].0
    }
}

fn message_offsets(bytes: &[u8]) -> Vec<usize> {
    let mut offsets = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        offsets.push(at);
        let length = u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        at += usize::try_from(length).unwrap().next_multiple_of(4);
    }
    offsets
}

/// The sequence number in a message's header.
pub(crate) fn sequence(message: &[u8]) -> u32 {
    u32::from_ne_bytes(message[8..12].try_into().unwrap())
}
