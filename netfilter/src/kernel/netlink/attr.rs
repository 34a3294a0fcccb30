//! A writer and a bounds-checked reader of netlink attributes.
//!
//! The writer fills in each length after the content, so a length always agrees with its content. Layout:
//! `include/uapi/linux/netlink.h`, `struct nlattr`.

use super::message::{Header, align};
use std::net::IpAddr;

/// The bits of `nla_type` that hold the type (`NLA_TYPE_MASK`); the others are flags (`NLA_F_NESTED`,
/// `NLA_F_NET_BYTEORDER`).
const TYPE_MASK: u16 = 0x3fff;
/// The bytes of an attribute before its value.
pub(crate) const HEADER: usize = 4;

/// A buffer of netlink messages and attributes.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    oversized: bool,
}

impl Writer {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { bytes: Vec::with_capacity(capacity), oversized: false }
    }

    /// Returns the bytes, or `None` when a length did not fit its field, which makes them invalid.
    pub(crate) fn finish(self) -> Option<Vec<u8>> {
        (!self.oversized).then_some(self.bytes)
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Writes a message: the netlink header, the subsystem's fixed header, then `body`.
    pub(crate) fn message(&mut self, header: Header, fixed: &[u8], body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&header.to_bytes());
        self.bytes.extend_from_slice(fixed);
        self.pad();
        body(self);
        let length = u32::try_from(self.bytes.len() - start);
        self.fill_in(start, length.map(u32::to_ne_bytes).ok());
    }

    /// Writes one attribute.
    pub(crate) fn attr(&mut self, kind: u16, value: &[u8]) {
        self.enclose(kind, |w| w.raw(value));
    }

    /// Writes a string with the final NUL that `nla_strscpy` and `nft` expect.
    pub(crate) fn text(&mut self, kind: u16, value: impl AsRef<[u8]>) {
        self.enclose(kind, |w| {
            w.raw(value.as_ref());
            w.bytes.push(0);
        });
    }

    /// Writes a number in network byte order, which nf_tables uses.
    pub(crate) fn be32(&mut self, kind: u16, value: u32) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// Writes a number in host byte order, which rtnetlink uses.
    pub(crate) fn ne32(&mut self, kind: u16, value: u32) {
        self.attr(kind, &value.to_ne_bytes());
    }

    /// Writes a nested attribute.
    ///
    /// Without `NLA_F_NESTED`: nf_tables does not set it in dumps either, so dumped bytes equal the written ones
    /// (docs/RULES.md, section 5.4).
    pub(crate) fn nested(&mut self, kind: u16, content: impl FnOnce(&mut Self)) {
        self.enclose(kind, content);
    }

    /// Writes bytes as they are: the fixed header at the start of a nested attribute.
    ///
    /// Byte by byte: most values have four bytes, and a call of musl's `memcpy` takes 40 ns on x86-64.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.reserve(bytes.len());
        for byte in bytes {
            self.bytes.push(*byte);
        }
    }

    fn enclose(&mut self, kind: u16, content: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0, 0]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        content(self);
        let length = u16::try_from(self.bytes.len() - start);
        self.fill_in(start, length.map(u16::to_ne_bytes).ok());
        self.pad();
    }

    fn fill_in<const N: usize>(&mut self, at: usize, length: Option<[u8; N]>) {
        match (length, self.bytes.get_mut(at..at + N)) {
            (Some(length), Some(field)) => field.copy_from_slice(&length),
            _ => self.oversized = true,
        }
    }

    fn pad(&mut self) {
        self.bytes.resize(align(self.bytes.len()), 0);
    }
}

/// A received attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attribute<'b> {
    /// The type, without the flag bits.
    pub(crate) kind: u16,
    pub(crate) value: &'b [u8],
}

impl<'b> Attribute<'b> {
    /// The string, without its final NUL.
    pub(crate) fn text(&self) -> &'b [u8] {
        self.value.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// The string escaped for one line of a log: any process with privileges in this namespace may have chosen it.
    /// Escapes the backslash and all that is not printable ASCII, so that different strings stay different.
    pub(crate) fn name(&self) -> String {
        self.text().escape_ascii().to_string()
    }

    /// Returns the 32-bit number in network byte order, or `None` when the length is not 4 bytes.
    pub(crate) fn be32(&self) -> Option<u32> {
        self.value.try_into().ok().map(u32::from_be_bytes)
    }

    /// Returns the 64-bit number in network byte order, or `None` when the length is not 8 bytes.
    pub(crate) fn be64(&self) -> Option<u64> {
        self.value.try_into().ok().map(u64::from_be_bytes)
    }

    /// Returns the 32-bit number in host byte order, or `None` when the length is not 4 bytes.
    pub(crate) fn ne32(&self) -> Option<u32> {
        self.value.try_into().ok().map(u32::from_ne_bytes)
    }
}

/// The bytes of an address, as attributes and headers have it.
pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The address with these bytes.
pub(crate) fn address(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(octets).ok()?)),
        _ => Some(IpAddr::from(<[u8; 16]>::try_from(octets).ok()?)),
    }
}

/// Iterates over attributes; ends at the first whose length exceeds the remaining bytes.
#[derive(Debug, Clone)]
pub(crate) struct Attributes<'b>(&'b [u8]);

impl<'b> Attributes<'b> {
    pub(crate) fn of(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the first attribute of this type.
    pub(crate) fn get(&self, kind: u16) -> Option<Attribute<'b>> {
        self.clone().find(|attribute| attribute.kind == kind)
    }

    /// The attributes in the first attribute of this type; none where it is absent.
    pub(crate) fn nested(&self, kind: u16) -> Self {
        Self(self.get(kind).map_or(&[], |attribute| attribute.value))
    }

    pub(crate) fn be32(&self, kind: u16) -> Option<u32> {
        self.get(kind)?.be32()
    }

    pub(crate) fn be64(&self, kind: u16) -> Option<u64> {
        self.get(kind)?.be64()
    }

    pub(crate) fn ne32(&self, kind: u16) -> Option<u32> {
        self.get(kind)?.ne32()
    }

    pub(crate) fn name(&self, kind: u16) -> Option<String> {
        self.get(kind).map(|name| name.name())
    }
}

impl<'b> Iterator for Attributes<'b> {
    type Item = Attribute<'b>;

    fn next(&mut self) -> Option<Self::Item> {
        let (length, rest) = self.0.split_first_chunk::<2>()?;
        let (kind, _) = rest.split_first_chunk::<2>()?;
        let length = usize::from(u16::from_ne_bytes(*length));
        let value = self.0.get(HEADER..length)?;
        self.0 = self.0.get(align(length)..).unwrap_or_default();
        Some(Attribute { kind: u16::from_ne_bytes(*kind) & TYPE_MASK, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_filled_in_and_contents_padded() {
        let mut writer = Writer::default();
        writer.nested(4, |w| {
            w.text(1, "cmp");
            w.nested(2, |w| w.attr(3, &[9]));
        });
        // nla(20){4}: nla(8){1} "cmp\0"; nla(12){2}: nla(5){3} 09 + 3 bytes of padding
        let expected = [24, 0, 4, 0, 8, 0, 1, 0, b'c', b'm', b'p', 0, 12, 0, 2, 0, 5, 0, 3, 0, 9, 0, 0, 0];
        assert_eq!(writer.finish().unwrap(), expected);
    }

    #[test]
    fn written_attributes_are_read_back() {
        let mut writer = Writer::default();
        writer.be32(1, 7);
        writer.text(2, "gybe");
        writer.nested(3, |w| w.ne32(1, 8));
        let bytes = writer.finish().unwrap();
        let attributes = Attributes::of(&bytes);
        assert_eq!(attributes.get(1).unwrap().be32(), Some(7));
        assert_eq!(attributes.get(2).unwrap().text(), b"gybe");
        assert_eq!(Attributes::of(attributes.get(3).unwrap().value).get(1).unwrap().ne32(), Some(8));
        assert_eq!(attributes.count(), 3);
    }

    #[test]
    fn a09_escaped_names_stay_different_and_contain_no_terminal_sequence() {
        let names = [&b"\xff"[..], b"\xfe", b"\\xff", b"\x1b[2J", b"a\nb", b"nat-output"];
        let read = names.map(|value| Attribute { kind: 1, value }.name());
        assert_eq!(read, [r"\xff", r"\xfe", r"\\xff", r"\x1b[2J", r"a\nb", "nat-output"]);
    }

    #[test]
    fn an_attribute_longer_than_65535_bytes_makes_the_writer_return_none() {
        let mut writer = Writer::default();
        writer.attr(1, &[0; 65532]);
        assert!(writer.finish().is_none());
        let mut writer = Writer::default();
        writer.attr(1, &[0; 65531]);
        assert!(writer.finish().is_some());
    }

    #[test]
    fn reading_stops_at_an_attribute_longer_than_the_remaining_bytes() {
        for bytes in [&[][..], &[4, 0, 1], &[3, 0, 1, 0], &[0, 0, 0, 0], &[9, 0, 1, 0, 1, 1, 1, 1]] {
            assert_eq!(Attributes::of(bytes).count(), 0, "{bytes:?}");
        }
        assert_eq!(Attributes::of(&[5, 0, 1, 0, 7]).count(), 1, "padding may be missing at the end");
    }
}
