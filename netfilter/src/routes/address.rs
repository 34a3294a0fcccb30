//! The addresses of a namespace's interfaces, in the kernel's order. The caller depends on the order: the first address
//! that is neither loopback nor link-local decides which families are redirected (docs/ISTIO.md, section 2.5).

use super::entry::ADDRESS_HEADER;
use super::error::RoutesError;
use super::rtnetlink::Rtnetlink;
use super::uapi::*;
use crate::netlink::attr::Attributes;
use std::net::IpAddr;

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The interface's index; `lo` has 1.
    pub index: u32,
    /// The address.
    pub ip: IpAddr,
    /// The prefix length in bits.
    pub prefix: u8,
}

/// The addresses of the calling thread's namespace.
///
/// # Errors
/// When the kernel does not list them.
pub fn addresses() -> Result<Vec<Address>, RoutesError> {
    Rtnetlink::open()?.addresses()
}

impl Rtnetlink {
    /// The addresses of all interfaces, both families, in the kernel's order.
    ///
    /// # Errors
    /// When the kernel does not list them.
    pub fn addresses(&mut self) -> Result<Vec<Address>, RoutesError> {
        let listed = self.request_list("addresses", RTM_GETADDR, &[0; ADDRESS_HEADER])?;
        Ok(parse_addresses(&listed))
    }
}

/// Parses the entries of a list of addresses.
pub(crate) fn parse_addresses(entries: &[Vec<u8>]) -> Vec<Address> {
    entries.iter().filter_map(|entry| read(entry)).collect()
}

/// Parses `struct ifaddrmsg` and its attributes.
fn read(entry: &[u8]) -> Option<Address> {
    let (&[_, prefix, _flags, _scope, index @ ..], rest) = entry.split_first_chunk::<ADDRESS_HEADER>()?;
    let attributes = Attributes::of(rest);
    // On a point-to-point link IFA_ADDRESS is the peer's address.
    let own = attributes.get(IFA_LOCAL).or_else(|| attributes.get(IFA_ADDRESS))?.value;
    let ip = match own.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(own).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(own).ok()?),
    };
    Some(Address { index: u32::from_ne_bytes(index), ip, prefix })
}
