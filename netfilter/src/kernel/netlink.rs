//! Netlink as a transport: messages and attributes as bytes, one socket type, and what replies mean.
//!
//! Knows neither nftables nor routes. `nft` and `routes` put their own messages into it.

pub(crate) mod attr;
pub(crate) mod list;
pub(crate) mod message;
pub(crate) mod reply;
pub(crate) mod socket;
