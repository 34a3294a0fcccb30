//! Fields of the kernel's structures, read from bytes that may be too short.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::model::ruleset::{Family, Is};

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
