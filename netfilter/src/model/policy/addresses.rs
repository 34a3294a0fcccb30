//! Sets of networks, canonical and merged, so that sets with the same addresses are equal.

use super::ports::decimal;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

/// The text is not a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// An address alone.
    #[error("{address:?} has no prefix length; for this one address write \"{address}/{}\"", if .address.is_ipv4() { 32 } else { 128 })]
    NoPrefixLength {
        /// The address.
        address: IpAddr,
    },
    /// Not an address with a prefix length; truncated.
    #[error("{0:?} is not a network with its prefix length, like 10.0.0.0/8 or fd00::/8")]
    NotANetwork(String),
}

/// Parses an address with its prefix length, as Go's `netip.ParsePrefix`, with which Istio's programs read them: no
/// number has a leading zero or a sign, and an address has no zone. Host bits stay.
///
/// # Errors
/// When the text is not a network.
pub fn network(text: &str) -> Result<IpNet, NetworkError> {
    let refuse = || NetworkError::NotANetwork(text.chars().take(64).collect());
    let Some((address, length)) = text.split_once('/') else {
        return Err(text
            .parse()
            .map_or_else(|_| refuse(), |address| NetworkError::NoPrefixLength { address }));
    };
    // Rust's parser of addresses refuses leading zeros and zones.
    let address: IpAddr = address.parse().map_err(|_| refuse())?;
    let length = decimal(length).and_then(|length| u8::try_from(length).ok()).ok_or_else(refuse)?;
    IpNet::new(address, length).map_err(|_| refuse())
}

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
        match network(text) {
            Ok(IpNet::V4(net)) if net.addr().is_loopback() && net.prefix_len() >= 8 => Ok(Self(net.trunc())),
            _ => Err(refuse()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CidrSet {
        text.split(',').filter(|t| !t.is_empty()).map(|t| t.parse::<IpNet>().unwrap()).collect()
    }

    /// As a Go program with `netip.ParsePrefix` reads them.
    #[test]
    fn a_network_has_one_spelling_as_for_istios_programs() {
        for text in
            ["10.0.0.0/8", "10.1.2.3/8", "0.0.0.0/0", "10.0.0.1/32", "fd00::1/8", "::ffff:10.0.0.0/104"]
        {
            assert_eq!(network(text).map(|net| net.to_string()), Ok(text.to_owned()));
        }
        for text in [
            "",
            "/",
            "/8",
            "10.0.0.0/",
            "10.0.0.0/08",
            "10.0.0.0/+8",
            "10.0.0.0/-1",
            "10.0.0.0/ 8",
            "10.0.0.0/33",
            "10.0.0.0/8/8",
            "10.0.0.0/255.0.0.0",
            "010.0.0.0/8",
            "10.0.0/8",
            " 10.0.0.0/8",
            "10.0.0.0/8\n",
            "fe80::1%eth0/64",
            "[fd00::]/8",
            "fd00::/129",
            "fd00::/0x8",
            "*",
            "10.0.0.0/256",
        ] {
            assert!(matches!(network(text), Err(NetworkError::NotANetwork(_))), "{text:?}");
        }
        assert!(network("fd00::1").unwrap_err().to_string().contains("\"fd00::1/128\""));
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
