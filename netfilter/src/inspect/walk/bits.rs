//! Values with a mask of the bits that are known, and the registers of a rule.

use crate::inspect::live::rules::expr::REGISTERS_END;
use crate::kernel::uapi::{NFT_CMP_GTE, NFT_CMP_LTE, NFT_CMP_NEQ};
use std::cmp::Ordering;

/// `None`: true or false, depending on unknown bits.
pub(super) type Truth = Option<bool>;

/// Bytes, and which of their bits are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bits {
    pub(super) value: Vec<u8>,
    pub(super) known: Vec<u8>,
}

impl Bits {
    pub(super) fn known(value: impl Into<Vec<u8>>) -> Self {
        let value = value.into();
        Self { known: vec![0xff; value.len()], value }
    }

    pub(super) fn unknown(length: usize) -> Self {
        Self { value: vec![0; length], known: vec![0; length] }
    }

    /// Sets one byte, if it is there, and which of its bits are known.
    pub(super) fn set(&mut self, at: usize, value: u8, known: u8) {
        if let (Some(to), Some(is)) = (self.value.get_mut(at), self.known.get_mut(at)) {
            (*to, *is) = (value, known);
        }
    }

    /// Sets bytes that are known.
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        (at..).zip(bytes).for_each(|(at, byte)| self.set(at, *byte, 0xff));
    }

    /// The bytes, when every bit is known.
    pub(super) fn whole(&self) -> Option<&[u8]> {
        self.known.iter().all(|known| *known == 0xff).then_some(self.value.as_slice())
    }

    /// The first `length` bytes from `offset`; what is beyond the end is unknown.
    pub(super) fn slice(&self, offset: usize, length: usize) -> Self {
        let cut = |bytes: &[u8]| {
            let mut cut: Vec<u8> = bytes.iter().skip(offset).take(length).copied().collect();
            cut.resize(length, 0);
            cut
        };
        Self { value: cut(&self.value), known: cut(&self.known) }
    }

    pub(super) fn equals(&self, other: &[u8]) -> Truth {
        let compared = self.value.iter().zip(&self.known).zip(other);
        let differs = compared.clone().any(|((value, known), other)| (value ^ other) & known != 0);
        match (differs, self.whole()) {
            (true, _) => Some(false),
            (false, Some(_)) => Some(true),
            (false, None) => None,
        }
    }

    /// Compares as `memcmp` does; unknown when a bit is.
    fn order(&self, other: &[u8]) -> Option<Ordering> {
        self.whole().map(|value| value.cmp(other))
    }

    pub(super) fn compare(&self, op: u32, other: &[u8]) -> Truth {
        match op {
            NFT_CMP_NEQ => self.equals(other).map(|equal| !equal),
            2 => self.order(other).map(Ordering::is_lt),
            NFT_CMP_LTE => self.order(other).map(Ordering::is_le),
            4 => self.order(other).map(Ordering::is_gt),
            NFT_CMP_GTE => self.order(other).map(Ordering::is_ge),
            _ => self.equals(other),
        }
    }

    pub(super) fn between(&self, first: &[u8], last: &[u8]) -> Truth {
        let value = self.whole()?;
        Some(first <= value && value <= last)
    }

    pub(super) fn masked(&self, mask: &[u8], xor: &[u8]) -> Self {
        let zip = |bytes: &[u8]| bytes.iter().copied().zip(mask.iter().copied()).collect::<Vec<_>>();
        let value = zip(&self.value).into_iter().zip(xor).map(|((value, mask), xor)| (value & mask) ^ xor);
        // A bit that the mask clears is known.
        let known = zip(&self.known).into_iter().map(|(known, mask)| known | !mask);
        Self { value: value.collect(), known: known.collect() }
    }

    pub(super) fn swapped(&self, size: usize) -> Self {
        let turn =
            |bytes: &[u8]| bytes.chunks(size.max(1)).flat_map(|part| part.iter().rev().copied()).collect();
        Self { value: turn(&self.value), known: turn(&self.known) }
    }
}

/// The registers of a rule, unknown until a statement loads them.
#[derive(Debug, Clone)]
pub(super) struct Registers(Bits);

impl Default for Registers {
    fn default() -> Self {
        Self(Bits::unknown(REGISTERS_END))
    }
}

impl Registers {
    /// Fills the last register of 4 bytes with zeros, as the kernel does.
    pub(super) fn put(&mut self, at: usize, bits: &Bits) {
        let length = bits.value.len().next_multiple_of(4);
        for index in 0..length {
            match (bits.value.get(index), bits.known.get(index)) {
                (Some(value), Some(known)) => self.0.set(at + index, *value, *known),
                _ => self.0.set(at + index, 0, 0xff),
            }
        }
    }

    pub(super) fn get(&self, at: usize, length: usize) -> Bits {
        self.0.slice(at, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_bits_are_neither_equal_nor_different() {
        let half = Bits { value: vec![6, 0], known: vec![0xff, 0] };
        assert_eq!(half.equals(&[6, 0]), None);
        assert_eq!(half.equals(&[7, 0]), Some(false), "one known byte differs");
        assert_eq!(half.masked(&[0xff, 0], &[0, 0]).equals(&[6, 0]), Some(true), "the mask makes it known");
        assert_eq!(half.compare(NFT_CMP_GTE, &[1, 0]), None);
        assert_eq!(Bits::known([0, 80]).compare(NFT_CMP_LTE, &[0, 80]), Some(true));
    }

    #[test]
    fn a_register_that_was_not_filled_to_its_end_ends_in_zeros() {
        let mut registers = Registers::default();
        registers.put(4, &Bits::known([1]));
        assert_eq!(registers.get(4, 4).whole(), Some(&[1, 0, 0, 0][..]));
        assert_eq!(registers.get(0, 4).whole(), None);
        registers.put(60, &Bits::known([1; 16]));
        assert_eq!(registers.get(60, 4).whole(), Some(&[1; 4][..]), "what has no room is left out");
    }
}
