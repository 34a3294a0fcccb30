//! Extensions of iptables (xtables): matches and targets as the kernel stores them, decoded.
//!
//! The same bytes are in the compat expressions of iptables-nft over nf_tables and in the tables of
//! iptables-legacy; [`legacy`] reads the latter. Decoding is pure and stays within the
//! bytes: an extension without a reader, or one that is shorter than its structure, is `Unknown` with its name.
//! Everything is displayed as `iptables-save` prints it.
//!
//! Structures: include/uapi/linux/netfilter/x_tables.h and xt_*.h, netfilter_ipv4/ip*.h,
//! netfilter_ipv6/ip6*.h, v6.18.

mod conntrack;
pub mod effect;
mod fields;
pub mod legacy;
mod matches;
mod nat;
mod targets;

pub use conntrack::{Conntrack, ConntrackTest, States};
pub(crate) use fields::colon;
pub use fields::{PortEnd, PortTest};
pub use matches::{
    AddressTypes, IcmpTest, IdTest, IpRange, MarkTest, Multiport, OwnerTest, SocketTest, TcpFlags, TcpTest,
    TypeTest, UdpTest, XtMatch, decode_match,
};
pub use nat::NatRange;
pub use targets::{ConnectionMarkChange, Tracking, XtTarget, decode_target};

#[cfg(test)]
mod tests;
