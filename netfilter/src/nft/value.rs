//! Register values, for comparisons and as the keys of sets.
//!
//! Addresses and ports are in network byte order, ids and marks in host byte order.

use crate::kernel::netlink::attr::octets;
use crate::kernel::uapi::{IFNAMSIZ, NFT_CMP_EQ, NFT_CMP_NEQ, NFT_LOOKUP_F_INV};
use crate::model::policy::InterfaceName;
use crate::model::ruleset::{Is, Networks};
use ipnet::IpNet;

/// Returns the operator of a comparison with a single value.
pub(super) fn equality(is: Is) -> u32 {
    match is {
        Is::In => NFT_CMP_EQ,
        Is::NotIn => NFT_CMP_NEQ,
    }
}

/// Returns the flags of a lookup in a set.
pub(super) fn inversion(is: Is) -> u32 {
    match is {
        Is::In => 0,
        Is::NotIn => NFT_LOOKUP_F_INV,
    }
}

/// Returns the interface name padded with zeros to `IFNAMSIZ` bytes.
pub(super) fn interface(name: &InterfaceName) -> [u8; IFNAMSIZ] {
    let mut padded = [0; IFNAMSIZ];
    // A name has at most 15 bytes, so nothing is truncated.
    for (to, from) in padded.iter_mut().zip(name.as_str().bytes()) {
        *to = from;
    }
    padded
}

/// The address and mask of a network, and the length of its prefix in bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) address: Vec<u8>,
    pub(super) mask: Vec<u8>,
    pub(super) length: u8,
}

impl Prefix {
    /// Returns the first network of the list; callers use it for lists of one network.
    pub(super) fn only(nets: &Networks) -> Option<Self> {
        let net = match nets {
            Networks::V4(nets) => nets.first().copied().map(IpNet::V4),
            Networks::V6(nets) => nets.first().copied().map(IpNet::V6),
        }?;
        Some(Self { address: octets(net.network()), mask: octets(net.netmask()), length: net.prefix_len() })
    }
}
