//! Netlink attributes: written with lengths that are filled in afterwards, read within bounds.
//!
//! A length that is written by whoever writes the content cannot disagree with it, so nothing here
//! is computed twice. Layout: `include/uapi/linux/netlink.h`, `struct nlattr`.

use super::message::{Header, align};

/// Bits of an attribute's type that say how to read it, not what it is (`NLA_F_NESTED`, `_NET_BYTEORDER`).
const TYPE_MASK: u16 = 0x3fff;
const HEADER: usize = 4;

/// Bytes being written.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    oversized: bool,
}

impl Writer {
    /// An empty writer with room for `capacity` bytes.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { bytes: Vec::with_capacity(capacity), oversized: false }
    }

    /// What was written; `None` when a length did not fit its field, so that the bytes mean nothing.
    pub(crate) fn finish(self) -> Option<Vec<u8>> {
        (!self.oversized).then_some(self.bytes)
    }

    /// How many bytes were written.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// A whole message: netlink header, the subsystem's fixed header, then what `body` writes.
    pub(crate) fn message(&mut self, header: Header, fixed: &[u8], body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&header.to_bytes());
        self.bytes.extend_from_slice(fixed);
        self.pad();
        body(self);
        let length = u32::try_from(self.bytes.len() - start);
        self.fill_in(start, length.map(u32::to_ne_bytes).ok());
    }

    /// One attribute with these bytes.
    pub(crate) fn attr(&mut self, kind: u16, value: &[u8]) {
        self.enclose(kind, |w| w.bytes.extend_from_slice(value));
    }

    /// A text with the final NUL that `nla_strscpy` and `nft` expect.
    pub(crate) fn text(&mut self, kind: u16, value: impl AsRef<[u8]>) {
        self.enclose(kind, |w| {
            w.bytes.extend_from_slice(value.as_ref());
            w.bytes.push(0);
        });
    }

    /// A number in network byte order, as nf_tables has them.
    pub(crate) fn be32(&mut self, kind: u16, value: u32) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// A number in the machine's byte order, as rtnetlink has them.
    pub(crate) fn ne32(&mut self, kind: u16, value: u32) {
        self.attr(kind, &value.to_ne_bytes());
    }

    /// An attribute made of attributes.
    ///
    /// Without `NLA_F_NESTED`: nf_tables does not set it on the way out either, so what it gives
    /// back can be compared byte for byte (docs/RULES.md, section 5.4).
    pub(crate) fn nested(&mut self, kind: u16, content: impl FnOnce(&mut Self)) {
        self.enclose(kind, content);
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

/// An attribute that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attribute<'b> {
    /// Its type, without the flag bits.
    pub(crate) kind: u16,
    /// Its content.
    pub(crate) value: &'b [u8],
}

impl<'b> Attribute<'b> {
    /// A text, without its final NUL.
    pub(crate) fn text(&self) -> &'b [u8] {
        self.value.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// A text of whoever may write in this namespace, fit for one line of a log. What is not printable
    /// ASCII is escaped, the backslash too, so that two texts never become one.
    pub(crate) fn name(&self) -> String {
        self.text().escape_ascii().to_string()
    }

    /// A 32-bit number in network byte order; `None` when it has another length.
    pub(crate) fn be32(&self) -> Option<u32> {
        self.value.try_into().ok().map(u32::from_be_bytes)
    }

    /// A 64-bit number in network byte order; `None` when it has another length.
    pub(crate) fn be64(&self) -> Option<u64> {
        self.value.try_into().ok().map(u64::from_be_bytes)
    }

    /// A 32-bit number in the machine's byte order; `None` when it has another length.
    pub(crate) fn ne32(&self) -> Option<u32> {
        self.value.try_into().ok().map(u32::from_ne_bytes)
    }
}

/// Reads attributes one after the other; ends at the first that does not fit its surroundings.
#[derive(Debug, Clone)]
pub(crate) struct Attributes<'b>(&'b [u8]);

impl<'b> Attributes<'b> {
    /// The attributes in `bytes`.
    pub(crate) fn of(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    /// The first attribute of that type.
    pub(crate) fn get(&self, kind: u16) -> Option<Attribute<'b>> {
        self.clone().find(|attribute| attribute.kind == kind)
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
        let wanted = [24, 0, 4, 0, 8, 0, 1, 0, b'c', b'm', b'p', 0, 12, 0, 2, 0, 5, 0, 3, 0, 9, 0, 0, 0];
        assert_eq!(writer.finish().unwrap(), wanted);
    }

    #[test]
    fn what_was_written_is_read_back() {
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
    fn a09_names_that_differ_stay_different_and_drive_no_terminal() {
        let names = [&b"\xff"[..], b"\xfe", b"\\xff", b"\x1b[2J", b"a\nb", b"nat-output"];
        let read = names.map(|value| Attribute { kind: 1, value }.name());
        assert_eq!(read, [r"\xff", r"\xfe", r"\\xff", r"\x1b[2J", r"a\nb", "nat-output"]);
    }

    #[test]
    fn a_length_that_does_not_fit_sixteen_bits_is_no_result_at_all() {
        let mut writer = Writer::default();
        writer.attr(1, &[0; 65532]);
        assert!(writer.finish().is_none());
        let mut writer = Writer::default();
        writer.attr(1, &[0; 65531]);
        assert!(writer.finish().is_some());
    }

    #[test]
    fn reading_stops_at_an_attribute_that_overruns_its_surroundings() {
        for bytes in [&[][..], &[4, 0, 1], &[3, 0, 1, 0], &[0, 0, 0, 0], &[9, 0, 1, 0, 1, 1, 1, 1]] {
            assert_eq!(Attributes::of(bytes).count(), 0, "{bytes:?}");
        }
        assert_eq!(Attributes::of(&[5, 0, 1, 0, 7]).count(), 1, "padding may be missing at the end");
    }
}
