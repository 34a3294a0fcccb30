//! The loopback interface of a namespace of our own making: up, and with addresses to call.
//!
//! A pod's is the runtime's affair, but for the address `::6` (see `entry`).

use super::entry::LOOPBACK;
use super::error::RoutesError;
use super::rtnetlink::Rtnetlink;
use super::uapi::*;
use crate::netlink::attr::Writer;
use crate::netlink::message::{CREATE, EXCLUSIVE};
use std::net::{IpAddr, Ipv6Addr};

impl Rtnetlink {
    /// Brings up the loopback interface of the thread's namespace.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn raise_loopback(&mut self) -> Result<(), RoutesError> {
        // `struct ifinfomsg`: which flags, and which of them are meant.
        let header = [0, LOOPBACK, IFF_UP, IFF_UP].map(u32::to_ne_bytes).concat();
        self.on_loopback((RTM_NEWLINK, 0), header, |_| ())
    }

    /// Gives it an address of its own, which can be called when this returns.
    pub(crate) fn add_to_loopback(&mut self, address: IpAddr) -> Result<(), RoutesError> {
        let (family, length, flags, octets) = match address {
            IpAddr::V4(v4) => (AF_INET, 32, 0, v4.octets().to_vec()),
            IpAddr::V6(v6) => {
                self.deliver(v6)?;
                (AF_INET6, 128, IFA_F_NODAD, v6.octets().to_vec())
            }
        };
        let header = [&[family, length, flags, RT_SCOPE_UNIVERSE][..], &LOOPBACK.to_ne_bytes()].concat();
        self.on_loopback((RTM_NEWADDR, CREATE | EXCLUSIVE), header, |w| {
            w.attr(IFA_LOCAL, &octets);
            w.attr(IFA_ADDRESS, &octets);
        })
    }

    /// Has what is sent to this address delivered here.
    ///
    /// The address brings a route of its own for it, but some milliseconds later: from a work queue, also
    /// where nobody else can have the address (`addrconf_dad_start`, `__ipv6_ifa_notify`,
    /// net/ipv6/addrconf.c, v6.18). Until then the network is unreachable for who calls it, and answers
    /// to it are lost.
    fn deliver(&mut self, address: Ipv6Addr) -> Result<(), RoutesError> {
        // `struct rtmsg`.
        let header =
            [AF_INET6, 128, 0, 0, RT_TABLE_LOCAL, RTPROT_STATIC, RT_SCOPE_UNIVERSE, RTN_LOCAL, 0, 0, 0, 0];
        self.on_loopback((RTM_NEWROUTE, CREATE | EXCLUSIVE), header.to_vec(), |w| {
            w.attr(RTA_DST, &address.octets());
            w.ne32(RTA_OIF, LOOPBACK);
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
