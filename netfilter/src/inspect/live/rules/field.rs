//! The fields of a packet that a rule compares: tracks which fields its statements load into registers.

use super::expr::{Expr, LoadSource};
use crate::kernel::uapi::*;
use std::fmt;

/// A property of a packet that rules compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Field {
    Mark,
    ConnectionMark,
    ConnectionState,
    InInterface,
    OutInterface,
    Uid,
    Gid,
    Family,
    Protocol,
    Source,
    Destination,
    SourcePort,
    DestinationPort,
    /// Another property, by its name.
    Other(String),
}

/// Bytes of a register that come from a field.
#[derive(Debug, Clone)]
pub(crate) struct Component {
    pub(crate) field: Field,
    pub(crate) source: LoadSource,
    /// The number of loaded bytes.
    pub(crate) length: usize,
    /// The bits that are compared; `None` for all.
    pub(crate) mask: Option<Vec<u8>>,
    /// The bytes were reversed.
    pub(crate) is_swapped: bool,
    /// The field's value is in the machine's byte order.
    pub(crate) is_host_order: bool,
    /// Bits were inverted: no mask describes the value.
    pub(crate) is_inverted: bool,
}

/// The fields and constants in the registers of a rule.
#[derive(Debug, Default)]
pub(crate) struct LoadedFields {
    fields: Vec<(usize, Component)>,
    constants: Vec<(usize, Vec<u8>)>,
}

impl LoadedFields {
    /// Records what an expression loads into registers.
    pub(crate) fn track(&mut self, expr: &Expr) {
        match expr {
            Expr::Load { source, to } => self.load(source, *to),
            Expr::Value { to, value } => {
                self.forget(*to);
                self.constants.push((*to, value.clone()));
            }
            Expr::Bitwise { from, to, mask, xor } => self.change(*from, *to, |component| {
                let before = component.mask.take();
                let bits = |(at, bits): (usize, &u8)| match &before {
                    Some(before) => bits & before.get(at).unwrap_or(&0),
                    None => *bits,
                };
                component.mask = Some(mask.iter().enumerate().map(bits).collect());
                component.is_inverted |= xor.iter().any(|bits| *bits != 0);
            }),
            Expr::ByteOrder { from, to, .. } => self.change(*from, *to, |component| {
                component.is_swapped = !component.is_swapped;
            }),
            Expr::Lookup { to: Some(to), .. } => self.forget(*to),
            _ => {}
        }
    }

    fn load(&mut self, source: &LoadSource, to: usize) {
        self.forget(to);
        let (field, length, is_host_order) = field(source);
        let component = Component {
            field,
            source: source.clone(),
            length,
            mask: None,
            is_swapped: false,
            is_host_order,
            is_inverted: false,
        };
        self.fields.push((to, component));
    }

    fn change(&mut self, from: usize, to: usize, change: impl FnOnce(&mut Component)) {
        let component = self.field(from).cloned();
        self.forget(to);
        if let Some(mut component) = component {
            change(&mut component);
            self.fields.push((to, component));
        }
    }

    fn forget(&mut self, at: usize) {
        self.fields.retain(|(other, _)| *other != at);
        self.constants.retain(|(other, _)| *other != at);
    }

    /// The field that begins at this register.
    pub(crate) fn field(&self, at: usize) -> Option<&Component> {
        self.fields.iter().find(|(other, _)| *other == at).map(|(_, component)| component)
    }

    /// The parts of a key of that length, each with its own length; every part begins at a register of
    /// 4 bytes. A part without a known field takes the rest of the key.
    pub(crate) fn key(
        &self,
        at: usize,
        key_length: usize,
        parts: &[usize],
    ) -> Vec<(usize, Option<&Component>)> {
        let (mut at, mut left) = (at, key_length);
        let mut key = Vec::new();
        while left > 0 {
            let field = self.field(at);
            let known = parts.get(key.len()).copied();
            let length = known.or_else(|| field.map(|field| field.length)).unwrap_or(left).clamp(1, left);
            key.push((length, field));
            let taken = length.next_multiple_of(4);
            at += taken;
            left = left.saturating_sub(taken);
        }
        key
    }

    /// The constant that begins at this register.
    pub(crate) fn constant(&self, at: usize) -> Option<&[u8]> {
        self.constants.iter().find(|(other, _)| *other == at).map(|(_, value)| value.as_slice())
    }
}

/// The field, the number of its bytes, and whether they are in the machine's byte order.
fn field(source: &LoadSource) -> (Field, usize, bool) {
    let other = |name: String, length| (Field::Other(name), length, false);
    match source {
        LoadSource::Meta(key) => match *key {
            NFT_META_MARK => (Field::Mark, 4, true),
            NFT_META_IIFNAME => (Field::InInterface, 16, true),
            NFT_META_OIFNAME => (Field::OutInterface, 16, true),
            NFT_META_SKUID => (Field::Uid, 4, true),
            NFT_META_SKGID => (Field::Gid, 4, true),
            NFT_META_NFPROTO => (Field::Family, 1, false),
            NFT_META_L4PROTO => (Field::Protocol, 1, false),
            NFT_META_IIF => other("iif".to_owned(), 4),
            NFT_META_OIF => other("oif".to_owned(), 4),
            key => other(format!("meta {key}"), 4),
        },
        LoadSource::Ct(NFT_CT_MARK, _) => (Field::ConnectionMark, 4, true),
        LoadSource::Ct(NFT_CT_STATE, _) => (Field::ConnectionState, 4, true),
        LoadSource::Ct(key, _) => match *key {
            8 | 19 => (Field::Source, 4, false),
            21 => (Field::Source, 16, false),
            9 | 20 => (Field::Destination, 4, false),
            22 => (Field::Destination, 16, false),
            11 => (Field::SourcePort, 2, false),
            12 => (Field::DestinationPort, 2, false),
            key => other(format!("ct {key}"), 4),
        },
        LoadSource::Payload { base: NFT_PAYLOAD_NETWORK_HEADER, offset, length } => {
            match (*offset, *length) {
                (12, 1..=4) | (8, 5..=16) => (Field::Source, *length, false),
                (16, 1..=4) | (24, 1..=16) => (Field::Destination, *length, false),
                (9, 1) | (6, 1) => (Field::Protocol, 1, false),
                (offset, length) => other(format!("@nh,{},{}", offset * 8, length * 8), length),
            }
        }
        LoadSource::Payload { base: NFT_PAYLOAD_TRANSPORT_HEADER, offset, length } => {
            match (*offset, *length) {
                (0, 2) => (Field::SourcePort, 2, false),
                (2, 2) => (Field::DestinationPort, 2, false),
                (offset, length) => other(format!("@th,{},{}", offset * 8, length * 8), length),
            }
        }
        LoadSource::Payload { base, offset, length } => {
            other(format!("@{base},{},{}", offset * 8, length * 8), *length)
        }
        LoadSource::Other(name, length) => other(name.clone(), *length),
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mark => "meta mark",
            Self::ConnectionMark => "ct mark",
            Self::ConnectionState => "ct state",
            Self::InInterface => "iifname",
            Self::OutInterface => "oifname",
            Self::Uid => "skuid",
            Self::Gid => "skgid",
            Self::Family => "meta nfproto",
            Self::Protocol => "meta l4proto",
            Self::Source => "saddr",
            Self::Destination => "daddr",
            Self::SourcePort => "sport",
            Self::DestinationPort => "dport",
            Self::Other(name) => name,
        })
    }
}
