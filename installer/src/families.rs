//! Which address families a namespace has redirected, when nobody decided (spec
//! `istio-cni-behaviour.md` section 2.4). The addresses are given; nothing is asked of the kernel.

pub use gybe_netfilter::policy::Families;

use std::net::IpAddr;

/// What is said about families before a namespace is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FamilyWish {
    /// Somebody decided.
    Decided(Families),
    /// The first usable address decides; IPv4 is redirected in any case.
    FirstAddress,
    /// Any usable IPv6 address turns IPv6 on (Istio's dual stack).
    AnyV6Address,
}

/// The namespace has no address to go by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the namespace has no address but loopback and link-local ones, so its families cannot be known")]
pub struct NoAddress;

impl FamilyWish {
    /// The families of a namespace with these addresses, given in the kernel's order.
    ///
    /// # Errors
    /// When the addresses decide and none is usable: loopback and link-local ones do not count.
    pub fn decide(self, addresses: &[IpAddr]) -> Result<Families, NoAddress> {
        let mut usable = addresses.iter().filter(|address| counts(**address));
        let v6 = match self {
            Self::Decided(families) => return Ok(families),
            Self::FirstAddress => usable.next().ok_or(NoAddress)?.is_ipv6(),
            Self::AnyV6Address => usable.next().ok_or(NoAddress)?.is_ipv6() || usable.any(IpAddr::is_ipv6),
        };
        Ok(if v6 { Families::V4AndV6 } else { Families::V4Only })
    }
}

fn counts(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !address.is_loopback() && !address.is_unspecified() && !link_local
}
