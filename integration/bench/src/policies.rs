//! The policies that are measured: Istio's default, and the same with long lists of exemptions.

use gybe_installer::pod::policy_file::PolicyFile;
use gybe_integration::failure::Failure;
use gybe_netfilter::policy::{CidrSet, Inbound, PortSet, RedirectPolicy};
use gybe_netfilter::ruleset::{Chain, Match, Networks, Rule, RuleId, Ruleset};
use ipnet::{IpNet, Ipv4Net};
use std::net::Ipv4Addr;

/// What the plugin makes of a pod that nobody annotated, on both families.
///
/// # Errors
/// Never: the file is written here.
pub fn default() -> Result<RedirectPolicy, Failure> {
    Ok(PolicyFile::parse(r#"{ "enable_ipv6": true, "outbound_ports_exclude": [15020] }"#)?.policy(&[])?)
}

/// The default with that many ports excluded inbound, and as many ports and networks outbound.
///
/// # Errors
/// As [`default`].
pub fn with_exclusions(count: usize) -> Result<RedirectPolicy, Failure> {
    let mut policy = default()?;
    if count > 0 {
        // The proxy's own are part of every list: what is compared is only its length.
        let ports = ports(count);
        let with = |own: &PortSet| -> PortSet {
            [own, &ports].into_iter().flat_map(|ports| ports.ranges().to_vec()).collect()
        };
        if let Inbound::AllBut(own) = &policy.inbound {
            policy.inbound = Inbound::AllBut(with(own));
        }
        policy.outbound.excluded_ports = with(&policy.outbound.excluded_ports);
        policy.outbound.excluded_to = networks(count);
    }
    Ok(policy)
}

/// That many single ports, none beside another, all above those anybody here connects to.
pub fn ports(count: usize) -> PortSet {
    (20_000_u16..).step_by(2).take(count).collect()
}

/// That many of all ports, in no order: 45,000 come to some 14,000 ranges.
pub fn scattered_ports(count: usize) -> PortSet {
    // A linear congruential generator with the full period of 65,536: no port comes twice.
    let next = |port: &u16| Some(port.wrapping_mul(25_173).wrapping_add(13_849));
    std::iter::successors(Some(1), next).take(count).collect()
}

/// That many networks of IPv4, none beside another, none that anybody here connects to.
pub fn networks(count: usize) -> CidrSet {
    let block = |n: u32| Ipv4Net::new(Ipv4Addr::from_bits(0x1400_0000 + (n << 9)), 24).ok();
    (0..).map_while(block).take(count).map(IpNet::V4).collect()
}

/// The same rules as somebody would write them who knows no sets: one rule for each value of each
/// list. What follows a long list is met last, as in the original.
pub fn a_rule_per_value(rules: &Ruleset) -> Ruleset {
    let chains = rules
        .chains
        .iter()
        .map(|chain| Chain { name: chain.name, rules: chain.rules.iter().flat_map(spread).collect() });
    Ruleset { families: rules.families, chains: chains.collect() }
}

fn spread(rule: &Rule) -> Vec<Rule> {
    let Some((at, values)) = rule.matches.iter().enumerate().find_map(|(at, m)| Some((at, values(m)?)))
    else {
        return vec![rule.clone()];
    };
    let one = |(n, value): (usize, Match)| {
        let mut matches = rule.matches.clone();
        if let Some(place) = matches.get_mut(at) {
            *place = value;
        }
        // A rule's name lives as long as the program; so does this program's list.
        let id = RuleId(Box::leak(format!("{}-{n}", rule.id).into_boxed_str()));
        Rule { id, matches, verdict: rule.verdict }
    };
    values.into_iter().enumerate().map(one).collect()
}

/// A list's values as matches of their own, when it has two or more.
fn values(of: &Match) -> Option<Vec<Match>> {
    let values: Vec<Match> = match of {
        Match::DestinationPort(is, ports) => {
            let single = |range| Match::DestinationPort(*is, PortSet::from_iter([range]));
            ports.ranges().iter().copied().map(single).collect()
        }
        Match::Destination(is, Networks::V4(nets)) => {
            nets.iter().map(|net| Match::Destination(*is, Networks::V4(vec![*net]))).collect()
        }
        _ => return None,
    };
    (values.len() > 1).then_some(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_netfilter::compile::compile;

    #[test]
    fn lists_are_as_long_as_they_say() {
        for count in [1, 100, 1000] {
            assert_eq!(ports(count).ranges().len(), count);
            assert_eq!(networks(count).v4().len(), count);
        }
        assert_eq!(networks(45_000).v4().len(), 45_000);
    }

    #[test]
    fn scattered_ports_are_as_many_ranges_as_chance_would_make() {
        let ranges = scattered_ports(45_000).ranges().to_vec();
        let ports = ranges.iter().map(|range| usize::from(range.bounds().1 - range.bounds().0) + 1);
        assert_eq!(ports.sum::<usize>(), 45_000);
        assert!((13_000..15_000).contains(&ranges.len()), "{}", ranges.len());
    }

    #[test]
    fn without_sets_a_list_is_as_many_rules_as_it_has_values() {
        let rules = compile(&with_exclusions(100).unwrap());
        let spread = a_rule_per_value(&rules);
        assert!(spread.lists().is_empty(), "{:?}", spread.lists());
        assert!(spread.rules().count() >= rules.rules().count() + 3 * 99);
    }
}
