//! Addresses of one family as iptables can match them: a rule matches one network, or all addresses outside one.

use crate::model::ruleset::{Family, Is, Networks};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The source or destination addresses, of one family, that rules match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MatchedAddresses {
    /// The addresses in these networks.
    Any(Vec<IpNet>),
    /// All addresses outside this network, the only negation that iptables has.
    AllBut(IpNet),
}

impl MatchedAddresses {
    /// The addresses that `is` and `networks` match.
    pub(super) fn of(is: Is, networks: &Networks) -> Self {
        let nets: Vec<IpNet> = match networks {
            Networks::V4(nets) => nets.iter().copied().map(IpNet::V4).collect(),
            Networks::V6(nets) => nets.iter().copied().map(IpNet::V6).collect(),
        };
        match (is, nets.as_slice()) {
            (Is::In, _) => Self::Any(nets),
            (Is::NotIn, [net]) if net.prefix_len() > 0 => Self::AllBut(*net),
            (Is::NotIn, _) => Self::Any(outside(all_addresses(networks.family()), &nets)),
        }
    }

    /// The addresses in both: iptables accepts `-s` and `-d` only once each in a rule.
    pub(super) fn and(self, other: Self) -> Self {
        let (left, right) = (self.into_networks(), other.into_networks());
        let both = left.iter().flat_map(|a| right.iter().filter_map(move |b| intersection(*a, *b)));
        Self::Any(both.collect())
    }

    /// The alternatives, one for each rule: the sense and network of its option, or `None` for no option, which matches
    /// every address.
    pub(super) fn choices(self) -> Vec<Option<(Is, IpNet)>> {
        match self {
            Self::AllBut(net) => vec![Some((Is::NotIn, net))],
            Self::Any(nets) => {
                nets.into_iter().map(|net| (net.prefix_len() > 0).then_some((Is::In, net))).collect()
            }
        }
    }

    fn into_networks(self) -> Vec<IpNet> {
        match self {
            Self::Any(nets) => nets,
            Self::AllBut(net) => outside(all_addresses(Family::of(net.addr())), &[net]),
        }
    }
}

/// The network of all addresses.
fn all_addresses(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::V4(Ipv4Net::default()),
        Family::V6 => IpNet::V6(Ipv6Net::default()),
    }
}

/// Two networks are disjoint, or one contains the other.
fn intersection(a: IpNet, b: IpNet) -> Option<IpNet> {
    if b.contains(&a) {
        Some(a)
    } else if a.contains(&b) {
        Some(b)
    } else {
        None
    }
}

/// Returns `space` without `holes` as networks: keeps a network without a hole, and splits one with a hole in half.
fn outside(space: IpNet, holes: &[IpNet]) -> Vec<IpNet> {
    if holes.iter().any(|hole| hole.contains(&space)) {
        return Vec::new();
    }
    if !holes.iter().any(|hole| space.contains(hole)) {
        return vec![space];
    }
    let halves = space.subnets(space.prefix_len() + 1).into_iter().flatten();
    halves.flat_map(|half| outside(half, holes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(text: &[&str]) -> Networks {
        Networks::V4(text.iter().map(|net| net.parse().unwrap()).collect())
    }

    #[test]
    fn addresses_outside_several_networks_become_a_list_of_networks() {
        let holes = nets(&["0.0.0.0/1", "192.0.0.0/2"]);
        assert_eq!(
            MatchedAddresses::of(Is::NotIn, &holes),
            MatchedAddresses::Any(vec!["128.0.0.0/2".parse().unwrap()])
        );
        let loopback = nets(&["127.0.0.1/32", "127.0.0.6/32"]);
        let MatchedAddresses::Any(outside) = MatchedAddresses::of(Is::NotIn, &loopback) else {
            panic!("two networks")
        };
        for address in ["127.0.0.0", "127.0.0.2", "127.0.0.7", "0.0.0.0", "255.255.255.255", "10.1.2.3"] {
            let address = IpNet::from(address.parse::<std::net::IpAddr>().unwrap());
            assert_eq!(outside.iter().filter(|net| net.contains(&address)).count(), 1, "{address}");
        }
        for address in ["127.0.0.1/32", "127.0.0.6/32"] {
            let address: IpNet = address.parse().unwrap();
            assert!(!outside.iter().any(|net| net.contains(&address)), "{address}");
        }
    }

    #[test]
    fn outside_of_all_addresses_is_empty_and_a_single_network_stays_negated() {
        assert_eq!(MatchedAddresses::of(Is::NotIn, &nets(&["0.0.0.0/0"])).choices(), vec![]);
        assert_eq!(MatchedAddresses::of(Is::In, &nets(&["0.0.0.0/0"])).choices(), vec![None]);
        let one: IpNet = "10.0.0.0/8".parse().unwrap();
        assert_eq!(
            MatchedAddresses::of(Is::NotIn, &nets(&["10.0.0.0/8"])).choices(),
            vec![Some((Is::NotIn, one))]
        );
    }

    #[test]
    fn two_matches_of_one_address_become_their_intersection() {
        let ten = MatchedAddresses::of(Is::In, &nets(&["10.0.0.0/8", "11.0.0.0/8"]));
        let but = MatchedAddresses::of(Is::NotIn, &nets(&["10.128.0.0/9"]));
        assert_eq!(
            ten.and(but),
            MatchedAddresses::Any(vec!["10.0.0.0/9".parse().unwrap(), "11.0.0.0/8".parse().unwrap()])
        );
    }
}
