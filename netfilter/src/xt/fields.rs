//! Fields of the kernel's structures, read from bytes that may be too short, and the tests of ports, which several
//! structures have.

use crate::model::policy::PortRange;
use crate::model::ruleset::{Family, Is};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The bytes of one structure. Numbers are in the machine's byte order unless their name says otherwise.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..)?.first_chunk().copied()
    }

    pub(super) fn u8(self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    pub(super) fn u16(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_ne_bytes)
    }

    pub(super) fn be16(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_be_bytes)
    }

    pub(super) fn u32(self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_ne_bytes)
    }

    pub(super) fn bytes(self, at: usize, length: usize) -> Option<&'a [u8]> {
        self.0.get(at..)?.get(..length)
    }

    /// `union nf_inet_addr`: an IPv4 address is in its first four bytes.
    pub(super) fn address(self, at: usize, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.array::<4>(at).map(|octets| Ipv4Addr::from(octets).into()),
            Family::V6 => self.array::<16>(at).map(|octets| Ipv6Addr::from(octets).into()),
        }
    }

    /// Text that ends at its first NUL or with the field.
    pub(super) fn text(self, at: usize, length: usize) -> Option<String> {
        self.bytes(at, length).map(printable)
    }
}

/// The sense of a test, which `bit` of `flags` inverts.
pub(super) fn is(flags: u32, bit: u32) -> Is {
    if flags & bit == 0 { Is::In } else { Is::NotIn }
}

/// Text that other programs chose, safe to print: bytes that are not printable ASCII are escaped as `\xNN`.
pub(super) fn printable(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    text.iter().fold(String::new(), |mut printed, byte| {
        match byte {
            b' '..=b'~' => printed.push(char::from(*byte)),
            _ => printed.push_str(&format!("\\x{byte:02x}")),
        }
        printed
    })
}

/// A name as one word, escaped as [`crate::kernel::netlink::attr::Attribute::name`] escapes, so that different names stay
/// different and one name is the same word everywhere.
pub(super) fn word(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    text.escape_ascii().to_string().replace(' ', "\\x20")
}

/// As `xtables_save_string` quotes (libxtables/xtables.c, iptables 1.8.9).
pub(super) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    let escaped = text.chars().flat_map(|c| {
        let escape = matches!(c, '"' | '\\' | '\'').then_some('\\');
        escape.into_iter().chain([c])
    });
    format!("\"{}\"", escaped.collect::<String>())
}

/// `! ` before an option that is inverted.
pub(super) fn not(is: Is) -> &'static str {
    match is {
        Is::In => "",
        Is::NotIn => "! ",
    }
}

/// The port of a packet that is tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortEnd {
    /// The source port.
    Source,
    /// The destination port.
    Destination,
    /// Either of them.
    Either,
}

/// A test of one port; all ports and [`Is::In`] when the rule has no such test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortTest {
    /// Inside the range or outside.
    pub is: Is,
    /// The range.
    pub range: PortRange,
}

impl PortTest {
    /// Reports whether a packet with this port passes.
    pub fn applies(self, port: u16) -> bool {
        let (first, last) = self.range.bounds();
        (first <= port && port <= last) == (self.is == Is::In)
    }

    pub(super) fn read(fields: Fields<'_>, at: usize, is: Is) -> Option<Self> {
        Some(Self { is, range: PortRange::new(fields.u16(at)?, fields.u16(at + 2)?)? })
    }

    /// The option; none for a test that every packet passes.
    pub(super) fn option(self, option: &str) -> Option<String> {
        let is_asked = self.range.bounds() != (0, u16::MAX);
        is_asked.then(|| format!("{}{option} {}", not(self.is), colon(self.range)))
    }
}

/// A range as iptables prints it: `80` or `80:90`.
pub(crate) fn colon(range: PortRange) -> String {
    match range.bounds() {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}:{last}"),
    }
}
