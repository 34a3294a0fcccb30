//! The properties of a packet in the bytes of a register: nft loads neighbouring fields with one expression.

use super::values::Property;
use crate::live::rules::expr::Source;
use crate::live::rules::{Component, Field, TableFamily};
use crate::nft::uapi::{NFT_PAYLOAD_NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER};

/// Bytes of a loaded value that are bytes of a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) property: Property,
    /// The first of them in the loaded value.
    at: usize,
    /// The first of them in the property.
    skip: usize,
    length: usize,
}

impl Part {
    fn whole(property: Property) -> Self {
        Self { property, at: 0, skip: 0, length: property.length() }
    }

    /// The property's number with only this part's bits of `bytes`; `None` when `bytes` end before it.
    pub(super) fn read(&self, bytes: &[u8], is_little: bool) -> Option<u128> {
        let all: Vec<u8> = bytes.iter().skip(self.at).take(self.length).copied().collect();
        let shift = 8 * (self.property.length() - self.skip - all.len());
        let add = |number: u128, byte: &u8| number << 8 | u128::from(*byte);
        let number = match is_little {
            false => all.iter().fold(0, add),
            true => all.iter().rev().fold(0, add),
        };
        (!all.is_empty()).then(|| if is_little { number } else { number << shift })
    }
}

/// A property, the byte of the header it begins at, and its bytes.
type Place = (Property, usize, usize);

const V4: [Place; 2] = [(Property::SourceV4, 12, 4), (Property::DestinationV4, 16, 4)];
const V6: [Place; 2] = [(Property::SourceV6, 8, 16), (Property::DestinationV6, 24, 16)];
const PORTS: [Place; 2] = [(Property::SourcePort, 0, 2), (Property::DestinationPort, 2, 2)];

/// The parts of what was loaded; none when none of it is a property.
pub(super) fn parts(component: &Component, family: TableFamily) -> Vec<Part> {
    if let Source::Payload { base, offset, length } = component.source {
        let Ok(offset) = usize::try_from(offset) else { return Vec::new() };
        let places = match base {
            NFT_PAYLOAD_NETWORK_HEADER => network_header(offset, length, family),
            NFT_PAYLOAD_TRANSPORT_HEADER => PORTS.to_vec(),
            _ => Vec::new(),
        };
        return places.iter().filter_map(|place| overlap(offset, length, *place)).collect();
    }
    // A reply has source and destination of the first packet exchanged.
    let addresses = |is_v6: bool| match is_v6 {
        false => vec![Part::whole(Property::SourceV4), Part::whole(Property::DestinationV4)],
        true => vec![Part::whole(Property::SourceV6), Part::whole(Property::DestinationV6)],
    };
    match component.field {
        Field::Source | Field::Destination => addresses(component.length > 4 || family == TableFamily::Ip6),
        Field::SourcePort | Field::DestinationPort => {
            vec![Part::whole(Property::SourcePort), Part::whole(Property::DestinationPort)]
        }
        Field::Uid => vec![Part::whole(Property::Uid)],
        Field::Gid => vec![Part::whole(Property::Gid)],
        Field::Mark | Field::ConnectionMark => vec![Part::whole(Property::Mark)],
        _ => Vec::new(),
    }
}

/// The fields of both IP versions, where neither the table nor nft's usual loads say which is meant.
fn network_header(offset: usize, length: usize, family: TableFamily) -> Vec<Place> {
    match (family, offset, length) {
        (TableFamily::Ip, ..) | (_, 12, 1..=4 | 8) | (_, 16, 1..=4) if family != TableFamily::Ip6 => {
            V4.to_vec()
        }
        (TableFamily::Ip6, ..) | (_, 8, 5..=16 | 32) | (_, 24, _) => V6.to_vec(),
        _ => [V4, V6].concat(),
    }
}

fn overlap(offset: usize, length: usize, (property, start, size): Place) -> Option<Part> {
    let (first, end) = (offset.max(start), (offset.saturating_add(length)).min(start + size));
    let length = end.checked_sub(first).filter(|length| *length > 0)?;
    Some(Part { property, at: first - offset, skip: first - start, length })
}
