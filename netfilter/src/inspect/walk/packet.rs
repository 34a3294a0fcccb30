//! The packet of a walk with the properties that rules test, and its entry of connection tracking.

use super::bits::Bits;
use crate::inspect::live::rules::NamespaceRules;
use crate::inspect::live::rules::expr::LoadSource;
use crate::kernel::netlink::attr::octets;
use crate::kernel::uapi::*;
use crate::model::packet::{Direction, Owner, Packet};
use crate::model::policy::InterfaceName;
use crate::model::ruleset::{Family, Transport};
use std::net::SocketAddr;

/// An interface at a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HookInterface {
    /// The packet has none at this hook.
    None,
    Name(String),
    Unknown,
}

impl HookInterface {
    pub(super) fn loopback() -> Self {
        Self::Name("lo".to_owned())
    }
}

/// The relation of the packet to its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PacketTracking {
    NotYet,
    Untracked,
    Invalid,
    /// Part of the connection, in the direction of its first packet.
    Original,
    Reply,
}

/// The packet.
#[derive(Debug, Clone)]
pub(super) struct CurrentPacket {
    pub(super) protocol: Transport,
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) arrives: HookInterface,
    pub(super) leaves: HookInterface,
    pub(super) mark: u32,
    pub(super) owner: Option<Owner>,
    /// TCP flags, and which of them are known.
    pub(super) flags: [u8; 2],
    pub(super) tracking: PacketTracking,
    /// The zone that was chosen before tracking.
    pub(super) zone: Option<Zone>,
    pub(super) intercepted: Option<u16>,
}

/// A zone of connection tracking.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Zone {
    pub(super) id: u16,
    /// The one direction whose packets have it (`IP_CT_DIR_*`); `None` for both.
    pub(super) direction: Option<u8>,
    /// Its id is the packet's mark when the packet is tracked.
    pub(super) is_by_mark: bool,
}

impl Zone {
    /// The id for packets of one direction (`nf_ct_zone_id`, include/net/netfilter/nf_conntrack_zones.h, v6.18).
    pub(super) fn of(self, direction: u8) -> u16 {
        if self.direction.is_none_or(|own| own == direction) { self.id } else { 0 }
    }
}

/// `IP_CT_DIR_ORIGINAL` and `IP_CT_DIR_REPLY`.
pub(super) const ORIGINAL: u8 = 0;
pub(super) const REPLY: u8 = 1;

/// A loaded value.
pub(super) struct Loaded {
    pub(super) bits: Bits,
    /// The kernel may end the rule instead (`NFT_BREAK`), by facts that are not known.
    pub(super) may_end: bool,
}

/// Addresses and ports of one direction.
pub(super) type Tuple = (SocketAddr, SocketAddr);

/// An entry of connection tracking.
#[derive(Debug, Clone)]
pub(super) struct ConntrackEntry {
    pub(super) original: Tuple,
    pub(super) reply: Tuple,
    pub(super) zone: Zone,
    pub(super) mark: u32,
    /// The translation of the destination and of the source.
    pub(super) destination: TranslationHalf,
    pub(super) source: TranslationHalf,
    /// The first packet has passed.
    pub(super) is_known: bool,
}

/// One half of a translation.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TranslationHalf {
    pub(super) is_decided: bool,
    pub(super) is_done: bool,
}

impl ConntrackEntry {
    pub(super) fn new(source: SocketAddr, destination: SocketAddr, zone: Zone, mark: u32) -> Self {
        Self {
            original: (source, destination),
            reply: (destination, source),
            zone,
            mark,
            destination: TranslationHalf::default(),
            source: TranslationHalf::default(),
            is_known: false,
        }
    }
}

/// `NF_CT_STATE_BIT` of `IP_CT_NEW` and of `IP_CT_UNTRACKED` (nf_conntrack_common.h).
const NEW: u32 = 1 << 3;
const UNTRACKED: u32 = 1 << 6;

impl CurrentPacket {
    /// A packet in the direction of `packet`, before its first hook.
    pub(super) fn of(packet: &Packet, flags: [u8; 2]) -> Self {
        let name = |by: &InterfaceName| HookInterface::Name(by.as_str().to_owned());
        let (arrives, leaves) = match &packet.direction {
            Direction::Arrives { by } => (name(by), HookInterface::None),
            Direction::Leaves { by } => (HookInterface::None, name(by)),
        };
        Self {
            protocol: packet.protocol,
            source: packet.source,
            destination: packet.destination,
            arrives,
            leaves,
            mark: packet.mark,
            owner: packet.owner,
            flags,
            tracking: PacketTracking::NotYet,
            zone: None,
            intercepted: None,
        }
    }

    /// The interface that the packet left by.
    pub(super) fn left_by(&self, first: &Packet) -> HookInterface {
        match (&self.leaves, &first.direction) {
            (HookInterface::None, Direction::Leaves { by }) => HookInterface::Name(by.as_str().to_owned()),
            (leaves, _) => leaves.clone(),
        }
    }

    pub(super) fn family(&self) -> Family {
        Family::of(self.destination.ip())
    }

    /// `NF_CT_STATE_BIT` (include/uapi/linux/netfilter/nf_conntrack_common.h).
    pub(super) fn state(&self, entry: Option<&ConntrackEntry>) -> u32 {
        match (self.tracking, entry) {
            (PacketTracking::Untracked, _) => UNTRACKED,
            (PacketTracking::Original, Some(entry)) if !entry.is_known => NEW,
            (PacketTracking::Original | PacketTracking::Reply, Some(_)) => 1 << 1,
            // A template is attached.
            (PacketTracking::NotYet, _) if self.zone.is_some() => NEW,
            _ => 1,
        }
    }

    /// Loads a value; `None` where the kernel ends the rule (`NFT_BREAK`).
    pub(super) fn load(
        &self,
        source: &LoadSource,
        entry: Option<&ConntrackEntry>,
        ns: &NamespaceRules,
    ) -> Option<Loaded> {
        let known = |bits| Loaded { bits, may_end: false };
        let other = |length| Some(Loaded { bits: Bits::unknown(length), may_end: true });
        match source {
            LoadSource::Meta(key) => match self.meta(*key, ns)? {
                Some(bits) => Some(known(bits)),
                None => other(16),
            },
            LoadSource::Ct(NFT_CT_HELPER, _) => other(16),
            LoadSource::Ct(key, direction) => self.connection(*key, *direction, entry).map(known),
            LoadSource::Payload { base, offset, length } => match self.header(*base) {
                Some((header, _)) => {
                    let offset = usize::try_from(*offset).ok()?;
                    let may_end = offset.saturating_add(*length) > header.value.len();
                    Some(Loaded { bits: header.slice(offset, *length), may_end })
                }
                None => other(*length),
            },
            LoadSource::Other(_, length) => other(*length),
        }
    }

    /// Reports whether the headers are the same, apart from fields that route no packet, after these bytes were written;
    /// false also when that is not known.
    pub(super) fn survives(&self, base: u32, offset: u32, written: &Bits) -> bool {
        let (Some((header, free)), Ok(offset)) = (self.header(base), usize::try_from(offset)) else {
            return false;
        };
        let mut bytes = written.value.iter().zip(&written.known).enumerate();
        bytes.all(|(at, (value, known))| {
            let of = |bytes: &[u8]| bytes.get(offset.saturating_add(at)).copied();
            let free = of(free).unwrap_or_default();
            let before = of(&header.value).zip(of(&header.known));
            before.is_some_and(|(before, was_known)| {
                // What is not free is known, before and after, and the same.
                (known & was_known) | free == 0xff && (value ^ before) & !free == 0
            })
        })
    }

    /// The header at this base, and its bits that route no packet; `None` for one that the walk does not have.
    fn header(&self, base: u32) -> Option<(Bits, &'static [u8])> {
        /// Class of service, identification, the flag "do not fragment", time to live.
        static FREE_V4: [u8; 9] = [0, 0xff, 0, 0, 0xff, 0xff, 0x40, 0, 0xff];
        /// Traffic class, flow label. Not the hop limit: hosts ignore neighbour discovery with another one than 255
        /// (RFC 4861, section 7.1), and such a rule may apply to it, too.
        static FREE_V6: [u8; 4] = [0x0f, 0xff, 0xff, 0xff];
        match base {
            NFT_PAYLOAD_NETWORK_HEADER => match self.family() {
                Family::V4 => Some((self.network_header(), &FREE_V4)),
                Family::V6 => Some((self.network_header(), &FREE_V6)),
            },
            NFT_PAYLOAD_TRANSPORT_HEADER => Some((self.transport_header(), &[])),
            _ => None,
        }
    }

    /// The outer `None` where the kernel ends the rule, the inner one for a value that is not known.
    fn meta(&self, key: u32, ns: &NamespaceRules) -> Option<Option<Bits>> {
        Some(Some(match key {
            NFT_META_MARK => Bits::known(self.mark.to_ne_bytes()),
            NFT_META_PROTOCOL if self.family() == Family::V4 => Bits::known([0x08, 0x00]),
            NFT_META_PROTOCOL => Bits::known([0x86, 0xdd]),
            NFT_META_NFPROTO => Bits::known([self.family().number()]),
            NFT_META_L4PROTO => Bits::known([self.protocol.number()]),
            NFT_META_IIFNAME => name(&self.arrives),
            NFT_META_OIFNAME => name(&self.leaves),
            NFT_META_IIF => index(&self.arrives, ns),
            NFT_META_OIF => index(&self.leaves, ns),
            NFT_META_SKUID => Bits::known(self.owner?.uid.to_ne_bytes()),
            NFT_META_SKGID => Bits::known(self.owner?.gid.to_ne_bytes()),
            _ => return Some(None),
        }))
    }

    fn connection(&self, key: u32, direction: Option<u8>, entry: Option<&ConntrackEntry>) -> Option<Bits> {
        if key == NFT_CT_STATE {
            return Some(Bits::known(self.state(entry).to_ne_bytes()));
        }
        let entry =
            entry.filter(|_| matches!(self.tracking, PacketTracking::Original | PacketTracking::Reply))?;
        let (source, destination) = if direction == Some(1) { entry.reply } else { entry.original };
        Some(match key {
            NFT_CT_MARK => Bits::known(entry.mark.to_ne_bytes()),
            NFT_CT_DIRECTION => Bits::known([u8::from(self.tracking == PacketTracking::Reply)]),
            NFT_CT_ZONE => {
                Bits::known(direction.map_or(entry.zone.id, |one| entry.zone.of(one)).to_ne_bytes())
            }
            NFT_CT_STATUS => {
                // IPS_SRC_NAT and IPS_DST_NAT; the other bits are unknown.
                let set = |on: bool, bits: u32| if on { bits } else { 0 };
                let value = set(entry.source.is_done, 1 << 4) | set(entry.destination.is_done, 1 << 5);
                let known: u32 = 1 << 4 | 1 << 5;
                Bits { value: value.to_ne_bytes().to_vec(), known: known.to_ne_bytes().to_vec() }
            }
            7 => Bits::known([self.family().number()]),
            10 => Bits::known([self.protocol.number()]),
            // `nft_ct_get_eval` ends the rule for a connection of the other IP version.
            19 | 20 if self.family() == Family::V6 => return None,
            21 | 22 if self.family() == Family::V4 => return None,
            8 | 19 | 21 => Bits::known(octets(source.ip())),
            9 | 20 | 22 => Bits::known(octets(destination.ip())),
            11 => Bits::known(source.port().to_be_bytes()),
            12 => Bits::known(destination.port().to_be_bytes()),
            _ => Bits::unknown(16),
        })
    }

    /// The sender chooses lengths, identification, time to live and class of service: these bits are unknown.
    fn network_header(&self) -> Bits {
        let (source, destination) = (octets(self.source.ip()), octets(self.destination.ip()));
        let mut header = match self.family() {
            Family::V4 => {
                let mut header = Bits::unknown(12);
                header.put(0, &[0x45]);
                header.put(9, &[self.protocol.number()]);
                // No fragment; of the flags only "do not fragment" is unknown.
                header.set(6, 0, 0xbf);
                header.set(7, 0, 0xff);
                header
            }
            Family::V6 => {
                let mut header = Bits::unknown(8);
                header.set(0, 0x60, 0xf0);
                header.put(6, &[self.protocol.number()]);
                header
            }
        };
        for address in [source, destination] {
            header.known.extend(vec![0xff; address.len()]);
            header.value.extend(address);
        }
        header
    }

    fn transport_header(&self) -> Bits {
        let mut header = Bits::unknown(20);
        header.put(0, &self.source.port().to_be_bytes());
        header.put(2, &self.destination.port().to_be_bytes());
        if self.protocol == Transport::Tcp {
            let [flags, known] = self.flags;
            header.set(13, flags, known);
        }
        header
    }
}

fn name(by: &HookInterface) -> Bits {
    match by {
        HookInterface::Unknown => Bits::unknown(16),
        HookInterface::None => Bits::known([0; 16]),
        HookInterface::Name(name) => {
            let mut padded = name.as_bytes().to_vec();
            padded.resize(16, 0);
            Bits::known(padded)
        }
    }
}

fn index(by: &HookInterface, ns: &NamespaceRules) -> Bits {
    match by {
        HookInterface::None => Bits::known([0; 4]),
        HookInterface::Name(name) => {
            ns.interface(name).map_or_else(|| Bits::unknown(4), |it| Bits::known(it.index.to_ne_bytes()))
        }
        HookInterface::Unknown => Bits::unknown(4),
    }
}
