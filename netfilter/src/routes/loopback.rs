//! Configures the loopback interface of a namespace that the probe or the demo has created. In a pod the runtime
//! configures it, except for the address `::6` (see `entry`).

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
        // `struct ifinfomsg`: the flags, and the mask of the flags to change.
        let header = [0, LOOPBACK, IFF_UP, IFF_UP].map(u32::to_ne_bytes).concat();
        self.on_loopback(RTM_NEWLINK, 0, header, |_| ())
    }

    /// Adds an address, which is reachable when this returns.
    pub(crate) fn add_to_loopback(&mut self, address: IpAddr) -> Result<(), RoutesError> {
        let (family, length, flags, octets) = match address {
            IpAddr::V4(v4) => (AF_INET, 32, 0, v4.octets().to_vec()),
            IpAddr::V6(v6) => {
                self.deliver(v6)?;
                (AF_INET6, 128, IFA_F_NODAD, v6.octets().to_vec())
            }
        };
        let header = [&[family, length, flags, RT_SCOPE_UNIVERSE][..], &LOOPBACK.to_ne_bytes()].concat();
        self.on_loopback(RTM_NEWADDR, CREATE | EXCLUSIVE, header, |w| {
            w.attr(IFA_LOCAL, &octets);
            w.attr(IFA_ADDRESS, &octets);
        })
    }

    /// Adds the local route of an address.
    ///
    /// The kernel adds such a route for every address, but some milliseconds later, from a work queue, even without
    /// duplicate address detection (`addrconf_dad_start`, `__ipv6_ifa_notify`, net/ipv6/addrconf.c, v6.18). Until
    /// then connections to the address fail with ENETUNREACH, and replies to it are lost.
    fn deliver(&mut self, address: Ipv6Addr) -> Result<(), RoutesError> {
        // `struct rtmsg`.
        let header =
            [AF_INET6, 128, 0, 0, RT_TABLE_LOCAL, RTPROT_STATIC, RT_SCOPE_UNIVERSE, RTN_LOCAL, 0, 0, 0, 0];
        self.on_loopback(RTM_NEWROUTE, CREATE | EXCLUSIVE, header.to_vec(), |w| {
            w.attr(RTA_DST, &address.octets());
            w.ne32(RTA_OIF, LOOPBACK);
        })
    }

    fn on_loopback(
        &mut self,
        kind: u16,
        flags: u16,
        header: Vec<u8>,
        body: impl FnOnce(&mut Writer),
    ) -> Result<(), RoutesError> {
        let refusals = self.transact(vec![(kind, flags, header, body)])?;
        refusals.first().map_or(Ok(()), |refusal| Err(RoutesError::Loopback { source: refusal.errno }))
    }
}
