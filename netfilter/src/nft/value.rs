//! How values look in a register: in a comparison, and as the key of a set.
//!
//! Addresses and ports are in network byte order, ids and marks in the machine's.

use super::uapi::{IFNAMSIZ, NFPROTO_IPV4, NFPROTO_IPV6, NFT_CMP_EQ, NFT_CMP_NEQ, NFT_LOOKUP_F_INV};
use crate::policy::InterfaceName;
use crate::ruleset::{Family, Is, Networks};

/// The family as nf_tables numbers it.
pub(super) fn nfproto(family: Family) -> u8 {
    match family {
        Family::V4 => NFPROTO_IPV4,
        Family::V6 => NFPROTO_IPV6,
    }
}

/// The comparison for being the one value, or not.
pub(super) fn equality(is: Is) -> u32 {
    match is {
        Is::In => NFT_CMP_EQ,
        Is::NotIn => NFT_CMP_NEQ,
    }
}

/// The lookup flags for being in the set, or not.
pub(super) fn inversion(is: Is) -> u32 {
    match is {
        Is::In => 0,
        Is::NotIn => NFT_LOOKUP_F_INV,
    }
}

/// An interface name, padded.
pub(super) fn interface(name: &InterfaceName) -> [u8; IFNAMSIZ] {
    let mut padded = [0; IFNAMSIZ];
    // A name has at most 15 bytes, so none is cut off.
    for (to, from) in padded.iter_mut().zip(name.as_str().bytes()) {
        *to = from;
    }
    padded
}

/// A network as its address and mask, and how many of the mask's bits are set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) address: Vec<u8>,
    pub(super) mask: Vec<u8>,
    pub(super) length: u8,
}

impl Prefix {
    /// The only network of a list that has one.
    pub(super) fn only(nets: &Networks) -> Option<Self> {
        match nets {
            Networks::V4(nets) => nets.first().map(|net| Self {
                address: net.network().octets().to_vec(),
                mask: net.netmask().octets().to_vec(),
                length: net.prefix_len(),
            }),
            Networks::V6(nets) => nets.first().map(|net| Self {
                address: net.network().octets().to_vec(),
                mask: net.netmask().octets().to_vec(),
                length: net.prefix_len(),
            }),
        }
    }
}
