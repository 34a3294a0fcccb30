//! The measured policies: Istio's default, and the default with long lists of exclusions.

use gybe_installer::pod::policy_file::PolicyFile;
use gybe_integration::failure::Failure;
use gybe_netfilter::model::policy::{CidrSet, Inbound, PortSet, RedirectPolicy};
use gybe_netfilter::model::ruleset::{Chain, Match, Networks, Rule, RuleId, Ruleset};
use ipnet::{IpNet, Ipv4Net};
use std::net::Ipv4Addr;

/// Returns the policy of a pod without annotations, for both families.
///
/// # Errors
/// None: the policy file is valid.
pub fn default() -> Result<RedirectPolicy, Failure> {
    Ok(PolicyFile::parse(r#"{ "enable_ipv6": true, "outbound_ports_exclude": [15020] }"#)?.policy(&[])?)
}

/// Returns the default policy with `count` excluded ports inbound, and as many excluded ports and networks outbound.
///
/// # Errors
/// As [`default`].
pub fn with_exclusions(count: usize) -> Result<RedirectPolicy, Failure> {
    let mut policy = default()?;
    if count > 0 {
        // Every list includes the proxy's ports, so that the policies differ only in its length.
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

/// Returns single ports of which no two are adjacent, above those to which the benchmark connects.
pub fn ports(count: usize) -> PortSet {
    (20_000_u16..).step_by(2).take(count).collect()
}

/// Returns pseudo-random ports: 45,000 of them are about 14,000 ranges.
pub fn scattered_ports(count: usize) -> PortSet {
    // A linear congruential generator with the full period of 65,536: no port repeats.
    let next = |port: &u16| Some(port.wrapping_mul(25_173).wrapping_add(13_849));
    std::iter::successors(Some(1), next).take(count).collect()
}

/// Returns IPv4 networks that are not adjacent, and to which the benchmark does not connect.
pub fn networks(count: usize) -> CidrSet {
    let block = |n: u32| Ipv4Net::new(Ipv4Addr::from_bits(0x1400_0000 + (n << 9)), 24).ok();
    (0..).map_while(block).take(count).map(IpNet::V4).collect()
}

/// Returns the rules without sets: one rule for each value of each list, in the same order.
pub fn rule_per_value(rules: &Ruleset) -> Ruleset {
    let chains = rules
        .chains
        .iter()
        .map(|chain| Chain { name: chain.name, rules: chain.rules.iter().flat_map(expand).collect() });
    Ruleset { families: rules.families, chains: chains.collect() }
}

fn expand(rule: &Rule) -> Vec<Rule> {
    let Some((at, values)) = rule.matches.iter().enumerate().find_map(|(at, m)| Some((at, values(m)?)))
    else {
        return vec![rule.clone()];
    };
    let one = |(index, value): (usize, Match)| {
        let mut matches = rule.matches.clone();
        if let Some(list) = matches.get_mut(at) {
            *list = value;
        }
        // A rule's id is a static string; the leak is bounded by the number of policies.
        let id = RuleId(Box::leak(format!("{}-{index}", rule.id).into_boxed_str()));
        Rule { id, matches, verdict: rule.verdict }
    };
    values.into_iter().enumerate().map(one).collect()
}

/// Returns a match for each value of a list of two or more values.
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
    fn lists_have_the_requested_length() {
        for count in [1, 100, 1000] {
            assert_eq!(ports(count).ranges().len(), count);
            assert_eq!(networks(count).v4().len(), count);
        }
        assert_eq!(networks(45_000).v4().len(), 45_000);
    }

    #[test]
    fn scattered_ports_have_as_many_ranges_as_random_ports() {
        let ranges = scattered_ports(45_000).ranges().to_vec();
        let ports = ranges.iter().map(|range| usize::from(range.bounds().1 - range.bounds().0) + 1);
        assert_eq!(ports.sum::<usize>(), 45_000);
        assert!((13_000..15_000).contains(&ranges.len()), "{}", ranges.len());
    }

    #[test]
    fn without_sets_a_list_has_a_rule_for_each_value() {
        let rules = compile(&with_exclusions(100).unwrap());
        let expanded = rule_per_value(&rules);
        assert!(expanded.lists().is_empty(), "{:?}", expanded.lists());
        assert!(expanded.rules().count() >= rules.rules().count() + 3 * 99);
    }
}
