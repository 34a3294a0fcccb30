//! The properties of a packet in the bytes of a register: nft loads neighbouring fields with one expression.

use super::values::Property;
use crate::inspect::live::rules::expr::LoadSource;
use crate::inspect::live::rules::{Component, Field};
use crate::kernel::uapi::{NFT_PAYLOAD_NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER};
use crate::model::ruleset::TableFamily;

/// Bytes of a loaded value that are bytes of a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PropertyPart {
    pub(super) property: Property,
    /// The first of them in the loaded value.
    at: usize,
    /// The first of them in the property.
    skip: usize,
    length: usize,
}

impl PropertyPart {
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

/// The position of a property in its header.
#[derive(Clone, Copy)]
struct HeaderField {
    property: Property,
    offset: usize,
}

impl HeaderField {
    const fn at(offset: usize, property: Property) -> Self {
        Self { property, offset }
    }
}

const V4: [HeaderField; 2] =
    [HeaderField::at(12, Property::SourceV4), HeaderField::at(16, Property::DestinationV4)];
const V6: [HeaderField; 2] =
    [HeaderField::at(8, Property::SourceV6), HeaderField::at(24, Property::DestinationV6)];
const PORTS: [HeaderField; 2] =
    [HeaderField::at(0, Property::SourcePort), HeaderField::at(2, Property::DestinationPort)];

/// The parts of what was loaded; none when none of it is a property.
pub(super) fn parts(component: &Component, family: TableFamily) -> Vec<PropertyPart> {
    if let LoadSource::Payload { base, offset, length } = component.source {
        let Ok(offset) = usize::try_from(offset) else { return Vec::new() };
        let fields = match base {
            NFT_PAYLOAD_NETWORK_HEADER => network_header(offset, length, family),
            NFT_PAYLOAD_TRANSPORT_HEADER => PORTS.to_vec(),
            _ => Vec::new(),
        };
        return fields.iter().filter_map(|field| overlap(offset, length, *field)).collect();
    }
    // A reply has source and destination of the first packet exchanged.
    match component.field {
        Field::Source | Field::Destination if component.length > 4 || family == TableFamily::Ip6 => {
            vec![PropertyPart::whole(Property::SourceV6), PropertyPart::whole(Property::DestinationV6)]
        }
        Field::Source | Field::Destination => {
            vec![PropertyPart::whole(Property::SourceV4), PropertyPart::whole(Property::DestinationV4)]
        }
        Field::SourcePort | Field::DestinationPort => {
            vec![PropertyPart::whole(Property::SourcePort), PropertyPart::whole(Property::DestinationPort)]
        }
        Field::Uid => vec![PropertyPart::whole(Property::Uid)],
        Field::Gid => vec![PropertyPart::whole(Property::Gid)],
        Field::Mark | Field::ConnectionMark => vec![PropertyPart::whole(Property::Mark)],
        _ => Vec::new(),
    }
}

/// The fields of a load from the network header: those of both IP versions, when neither the table nor the loads that
/// nft usually writes determine the version.
fn network_header(offset: usize, length: usize, family: TableFamily) -> Vec<HeaderField> {
    match (family, offset, length) {
        (TableFamily::Ip, ..) | (_, 12, 1..=4 | 8) | (_, 16, 1..=4) if family != TableFamily::Ip6 => {
            V4.to_vec()
        }
        (TableFamily::Ip6, ..) | (_, 8, 5..=16 | 32) | (_, 24, _) => V6.to_vec(),
        _ => [V4, V6].concat(),
    }
}

/// The part of `field` in a load of `length` bytes at `offset` of the header.
fn overlap(offset: usize, length: usize, field: HeaderField) -> Option<PropertyPart> {
    let HeaderField { property, offset: start } = field;
    let (first, end) = (offset.max(start), offset.saturating_add(length).min(start + property.length()));
    let length = end.checked_sub(first).filter(|length| *length > 0)?;
    Some(PropertyPart { property, at: first - offset, skip: first - start, length })
}
