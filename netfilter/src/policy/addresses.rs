//! Sets of networks, canonical and merged, so that sets with the same addresses are equal.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

/// A set of networks of both families, stored as the smallest list of prefixes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CidrSet {
    v4: Vec<Ipv4Net>,
    v6: Vec<Ipv6Net>,
    names_loopback: bool,
}

impl CidrSet {
    /// The IPv4 networks, ascending and disjoint; adjacent networks that form one prefix are merged.
    pub fn v4(&self) -> &[Ipv4Net] {
        &self.v4
    }

    /// The IPv6 networks, ascending, disjoint and merged.
    pub fn v6(&self) -> &[Ipv6Net] {
        &self.v6
    }

    /// Reports whether the set contains no address.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// Reports whether the set was built from a prefix with a loopback address, of either family.
    ///
    /// Istio tests the written address of each prefix (`127.1.2.0/24`, `::1/128`), not whether the prefix contains
    /// loopback addresses: `0.0.0.0/0` does not count. The merged prefixes do not show this, so sets that differ only
    /// here are not equal.
    pub fn names_loopback(&self) -> bool {
        self.names_loopback
    }
}

impl FromIterator<IpNet> for CidrSet {
    fn from_iter<I: IntoIterator<Item = IpNet>>(nets: I) -> Self {
        let (mut v4, mut v6, mut names_loopback) = (Vec::new(), Vec::new(), false);
        for net in nets {
            names_loopback |= net.addr().is_loopback();
            match net {
                IpNet::V4(net) => v4.push(net.trunc()),
                IpNet::V6(net) => v6.push(net.trunc()),
            }
        }
        Self { v4: Ipv4Net::aggregate(&v4), v6: Ipv6Net::aggregate(&v6), names_loopback }
    }
}

impl FromIterator<IpAddr> for CidrSet {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        addresses.into_iter().map(IpNet::from).collect()
    }
}

/// The IPv4 network that counts as loopback: 127.0.0.0/8 or a part of it, 127.0.0.1/32 by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopbackCidr(Ipv4Net);

/// The text is not an IPv4 loopback network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an IPv4 loopback network (127.0.0.0/8 or a part of it, like 127.0.0.1/32)")]
pub struct LoopbackCidrError(String);

impl LoopbackCidr {
    /// The network, without host bits.
    pub fn network(self) -> Ipv4Net {
        self.0
    }
}

impl Default for LoopbackCidr {
    fn default() -> Self {
        Self(Ipv4Net::from(Ipv4Addr::LOCALHOST))
    }
}

impl FromStr for LoopbackCidr {
    type Err = LoopbackCidrError;

    fn from_str(text: &str) -> Result<Self, LoopbackCidrError> {
        let refuse = || LoopbackCidrError(text.chars().take(64).collect());
        let net: Ipv4Net = text.parse().map_err(|_| refuse())?;
        if net.addr().is_loopback() && net.prefix_len() >= 8 { Ok(Self(net.trunc())) } else { Err(refuse()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CidrSet {
        text.split(',').filter(|t| !t.is_empty()).map(|t| t.parse::<IpNet>().unwrap()).collect()
    }

    #[test]
    fn sets_with_the_same_addresses_are_equal() {
        for (left, right) in [
            ("10.0.0.0/9,10.128.0.0/9", "10.0.0.0/8"),
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("10.0.0.0/8,10.1.0.0/16", "10.0.0.0/8"),
            ("fd00::/9,fd80::/9", "fd00::/8"),
            ("0.0.0.0/1,128.0.0.0/1", "0.0.0.0/0"),
        ] {
            assert_eq!(set(left), set(right), "{left} and {right}");
        }
    }

    #[test]
    fn names_loopback_tests_the_written_address_not_the_addresses_in_the_prefix() {
        for (text, named) in [
            ("127.1.2.0/24", true),
            ("127.0.0.0/8", true),
            ("::1/128", true),
            ("::1/64", true),
            ("126.0.0.0/8,127.0.0.0/8", true),
            ("0.0.0.0/0", false),
            ("::/0", false),
        ] {
            assert_eq!(set(text).names_loopback(), named, "{text}");
        }
    }

    #[test]
    fn only_parts_of_127_0_0_0_8_parse_as_loopback_networks() {
        for text in ["127.0.0.1/32", "127.0.0.1/8", "127.5.0.0/16"] {
            assert!(text.parse::<LoopbackCidr>().is_ok(), "{text}");
        }
        for text in ["127.0.0.1", "10.0.0.1/32", "126.0.0.0/7", "127.0.0.1/7", "::1/128", ""] {
            assert!(text.parse::<LoopbackCidr>().is_err(), "{text}");
        }
    }
}
