//! Netlink dumps of the kernel's nf_tables objects, transported by mnl.

use gybe_referees::expressions::TABLE;
use mnl::{Bus, Socket};

/// `NFNL_SUBSYS_NFTABLES`, the high byte of a message's type.
const NFTABLES: u16 = 10 << 8;
const NFPROTO_INET: u8 = 1;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const REQUEST_DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// The lengths of the netlink and nfnetlink headers.
const HEADERS: usize = 20;

/// A request for all objects of one kind.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DumpRequest<'a> {
    Tables,
    Chains,
    Rules,
    /// Sets without their elements.
    Sets,
    /// The elements of the set with that name.
    ElementsOf(&'a str),
}

impl DumpRequest<'_> {
    fn message(self) -> Vec<u8> {
        let (kind, attributes) = match self {
            Self::Tables => (1_u16, Vec::new()),
            Self::Chains => (4, Vec::new()),
            Self::Rules => (7, Vec::new()),
            Self::Sets => (10, Vec::new()),
            Self::ElementsOf(set) => (13, [string(1, TABLE), string(2, set)].concat()),
        };
        let length = u32::try_from(HEADERS + attributes.len()).unwrap();
        let mut message = length.to_ne_bytes().to_vec();
        message.extend((NFTABLES | kind).to_ne_bytes());
        message.extend(REQUEST_DUMP.to_ne_bytes());
        message.extend([0; 8]);
        message.extend([NFPROTO_INET, 0, 0, 0]);
        message.extend(attributes);
        message
    }
}

/// Encodes an attribute that is a C string.
fn string(kind: u16, value: &str) -> Vec<u8> {
    let length = u16::try_from(4 + value.len() + 1).unwrap();
    let mut attribute = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    attribute.extend(value.as_bytes());
    attribute.push(0);
    attribute.resize(attribute.len().next_multiple_of(4), 0);
    attribute
}

/// Returns the objects in the namespace of this thread, in the kernel's order.
pub(crate) fn dump(request: DumpRequest<'_>) -> Vec<Message> {
    let kernel = Socket::new(Bus::Netfilter).unwrap();
    kernel.send(&request.message()).unwrap();
    let mut buffer = vec![0_u8; (1 << 16) + 4];
    let aligned = buffer.as_ptr().align_offset(4);
    let mut messages = Vec::new();
    loop {
        for bytes in kernel.recv(&mut buffer[aligned..]).unwrap() {
            let message = Message { bytes: bytes.unwrap().to_vec() };
            match message.kind() {
                NLMSG_DONE => return messages,
                NLMSG_ERROR => panic!("the kernel refuses {request:?}: {message:?}"),
                _ => messages.push(message),
            }
        }
    }
}

/// The message of one object.
#[derive(Debug)]
pub(crate) struct Message {
    /// The message with its headers.
    pub bytes: Vec<u8>,
}

impl Message {
    fn kind(&self) -> u16 {
        u16::from_ne_bytes([self.bytes[4], self.bytes[5]])
    }

    /// Returns number and content of each attribute.
    pub(crate) fn attributes(&self) -> Vec<(u16, Vec<u8>)> {
        Self::parse_attributes(&self.bytes[HEADERS..])
    }

    /// Parses nested attributes.
    pub(crate) fn parse_attributes(mut rest: &[u8]) -> Vec<(u16, Vec<u8>)> {
        let mut attributes = Vec::new();
        while let [a, b, c, d, ..] = *rest {
            let length = usize::from(u16::from_ne_bytes([a, b]));
            attributes.push((u16::from_ne_bytes([c, d]) & 0x3fff, rest[4..length].to_vec()));
            rest = &rest[length.next_multiple_of(4).min(rest.len())..];
        }
        attributes
    }

    /// Returns all other attributes.
    pub(crate) fn without(&self, these: &[u16]) -> Vec<(u16, Vec<u8>)> {
        self.attributes().into_iter().filter(|(kind, _)| !these.contains(kind)).collect()
    }

    /// Returns an attribute that is a C string.
    pub(crate) fn text(&self, kind: u16) -> String {
        let (_, mut value) = self.attributes().into_iter().find(|(number, _)| *number == kind).unwrap();
        value.pop();
        String::from_utf8(value).unwrap()
    }
}
