//! The loopback interface of a namespace of our own making: up, and with addresses to call.
//!
//! A pod's is the runtime's affair, but for the address `::6` (see `entry`).

use super::entry::LOOPBACK;
use super::error::RoutesError;
use super::rtnetlink::Rtnetlink;
use super::uapi::*;
use crate::netlink::attr::Writer;
use crate::netlink::message::{CREATE, EXCLUSIVE};
use std::net::IpAddr;

impl Rtnetlink {
    /// Brings it up.
    pub(crate) fn raise_loopback(&mut self) -> Result<(), RoutesError> {
        // `struct ifinfomsg`: which flags, and which of them are meant.
        let header = [0, LOOPBACK, IFF_UP, IFF_UP].map(u32::to_ne_bytes).concat();
        self.on_loopback((RTM_NEWLINK, 0), header, |_| ())
    }

    /// Gives it an address of its own.
    pub(crate) fn add_to_loopback(&mut self, address: IpAddr) -> Result<(), RoutesError> {
        let (family, octets) = match address {
            IpAddr::V4(v4) => (AF_INET, v4.octets().to_vec()),
            IpAddr::V6(v6) => (AF_INET6, v6.octets().to_vec()),
        };
        let length = if address.is_ipv4() { 32 } else { 128 };
        let flags = if address.is_ipv4() { 0 } else { IFA_F_NODAD };
        let header = [&[family, length, flags, RT_SCOPE_UNIVERSE][..], &LOOPBACK.to_ne_bytes()].concat();
        self.on_loopback((RTM_NEWADDR, CREATE | EXCLUSIVE), header, |w| {
            w.attr(IFA_LOCAL, &octets);
            w.attr(IFA_ADDRESS, &octets);
        })
    }

    fn on_loopback(
        &mut self,
        (kind, flags): (u16, u16),
        header: Vec<u8>,
        body: impl FnOnce(&mut Writer),
    ) -> Result<(), RoutesError> {
        let refusals = self.transact(vec![(kind, flags, header, body)])?;
        refusals.first().map_or(Ok(()), |refusal| Err(RoutesError::Loopback { source: refusal.errno }))
    }
}
