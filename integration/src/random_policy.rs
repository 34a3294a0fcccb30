//! Random policies, and random cases of a policy with connections.

use crate::differential::{Case, Disagreement, Testbed, first_disagreement};
use crate::failure::Failure;
use crate::namespace::in_parallel;
use crate::random_flow;
use crate::vectors::Flow;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::apply::redirection::Redirection;
use gybe_netfilter::model::policy::{
    CidrSet, Destinations, Dns, Families, Groups, Inbound, InterfaceName, InvalidPackets, LoopbackCidr, Mode,
    Outbound, Owners, Port, PortRange, PortSet, RedirectPolicy,
};
use ipnet::IpNet;
use proptest::collection::vec;
use proptest::prelude::Just;
use proptest::prop_oneof;
use proptest::sample::select;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

/// Ports and ranges. None begins or ends among the source ports of connections (20000 to 61000), so that the
/// source port of a connection does not matter.
pub const PORTS: [&str; 21] = [
    "80",
    "53",
    "8080",
    "4000",
    "5000",
    "22",
    "9000",
    "1234",
    "15001",
    "15006",
    "15008",
    "15020",
    "15021",
    "15090",
    "8000-8100",
    "1-79",
    "1024-19999",
    "81-65535",
    "0-65535",
    "61001-65535",
    "4000-5000",
];

pub const NETWORKS: [&str; 32] = [
    "10.0.0.0/8",
    "10.1.0.0/16",
    "10.1.2.3/32",
    "10.1.2.3/8",
    "20.1.2.3/32",
    "20.0.0.0/6",
    "8.8.8.8/32",
    "10.96.0.0/16",
    "10.244.0.10/32",
    "10.244.0.0/24",
    "172.30.0.0/24",
    "192.168.77.0/24",
    "127.0.0.1/32",
    "127.0.0.0/8",
    "127.1.2.0/24",
    "0.0.0.0/0",
    "0.0.0.0/1",
    "128.0.0.0/1",
    "fd01::3/128",
    "fd01::/64",
    "fd02::/16",
    "fd00::/8",
    "fd00:10::/64",
    "fd00:10::10/128",
    "fd00:30::/64",
    "fd00:77::/64",
    "fd00:96::10/128",
    "2001:4860::/32",
    "::1/128",
    "::1/64",
    "::/0",
    "::/1",
];

pub const SERVERS: [&str; 7] = [
    "10.96.0.10/32",
    "8.8.8.8/32",
    "127.0.0.1/32",
    "10.244.0.10/32",
    "fd00:96::10/128",
    "2001:4860::8888/128",
    "::1/128",
];

pub const INTERFACES: [&str; 5] = ["eth1", "net1", "eth0", "lo", "veth9"];
pub const UIDS: [u32; 6] = [1337, 0, 1000, 3, 2000, 65534];
pub const GIDS: [u32; 6] = [1337, 1000, 4401, 2, 0, 65534];

/// Any policy; it shrinks towards Istio's defaults.
pub fn policies() -> impl Strategy<Value = RedirectPolicy> {
    let who = (mode(), ports_of_the_proxy(), owners(&UIDS), owners(&GIDS));
    let what = (inbound(), outbound(), interfaces(), interfaces());
    let invalid = select(vec![InvalidPackets::Pass, InvalidPackets::Drop]);
    let families = select(vec![Families::V4AndV6, Families::V4AndV6, Families::V4Only]);
    (who, what, dns(), invalid, loopback(), families).prop_map(
        |(who, what, dns, invalid, loopback, families)| {
            let (mode, [outbound_port, inbound_port, tunnel_port], proxy_uids, proxy_gids) = who;
            let (inbound, outbound, excluded_interfaces, virtual_interfaces) = what;
            RedirectPolicy {
                mode,
                outbound_port,
                inbound_port,
                tunnel_port,
                proxy_uids,
                proxy_gids,
                inbound,
                outbound,
                excluded_interfaces,
                virtual_interfaces,
                dns,
                invalid,
                loopback,
                families,
            }
        },
    )
}

fn mode() -> impl Strategy<Value = Mode> {
    let tproxy = |mark, route_table| Mode::Tproxy { mark, route_table };
    prop_oneof![
        3 => Just(Mode::Redirect),
        2 => Just(tproxy(1337, 133)),
        1 => Just(tproxy(7, 200)),
    ]
}

/// Outbound, inbound, tunnel. On 4000 the application listens, 5999 has no listener.
fn ports_of_the_proxy() -> impl Strategy<Value = [Port; 3]> {
    let port = |number| Port::new(number).unwrap_or(Port::MIN);
    let one_of = move |numbers: [u16; 8]| select(numbers.to_vec()).prop_map(port);
    (
        one_of([15001, 15001, 15001, 15001, 15001, 15001, 4000, 5999]),
        one_of([15006, 15006, 15006, 15006, 15006, 15006, 15001, 5999]),
        one_of([15008, 15008, 15008, 15008, 4000, 15001, 53, 8080]),
    )
        .prop_map(|(outbound, inbound, tunnel)| [outbound, inbound, tunnel])
}

/// Always with the proxy of the recorded network, at any position.
fn owners(ids: &[u32; 6]) -> impl Strategy<Value = Owners> + use<> {
    let [proxy, ..] = *ids;
    let first = prop_oneof![4 => Just(proxy), 1 => select(ids.to_vec())];
    (first, vec(select(ids.to_vec()), 0..3))
        .prop_map(move |(first, others)| Owners::new(first, others.into_iter().chain([proxy])))
}

fn ports(most: usize) -> impl Strategy<Value = PortSet> {
    let range = select(PORTS.to_vec()).prop_filter_map("a port", |text| text.parse::<PortRange>().ok());
    vec(range, 0..=most).prop_map(|ranges| ranges.into_iter().collect())
}

fn networks(
    of: &[&'static str],
    sizes: std::ops::RangeInclusive<usize>,
) -> impl Strategy<Value = CidrSet> + use<> {
    let network = select(of.to_vec()).prop_filter_map("a network", |text| text.parse::<IpNet>().ok());
    vec(network, sizes).prop_map(|networks| networks.into_iter().collect())
}

fn inbound() -> impl Strategy<Value = Inbound> {
    prop_oneof![2 => ports(4).prop_map(Inbound::AllBut), 1 => ports(6).prop_map(Inbound::Only)]
}

fn outbound() -> impl Strategy<Value = Outbound> {
    let included_to = prop_oneof![
        1 => Just(Destinations::All),
        1 => networks(&NETWORKS, 0..=5).prop_map(Destinations::Only),
    ];
    (ports(3), networks(&NETWORKS, 0..=3), ports(2), included_to, groups()).prop_map(
        |(excluded_ports, excluded_to, included_ports, included_to, groups)| Outbound {
            excluded_ports,
            excluded_to,
            included_ports,
            included_to,
            groups,
        },
    )
}

fn groups() -> impl Strategy<Value = Groups> {
    let some = |most| vec(select(GIDS.to_vec()), 0..=most).prop_map(|gids| gids.into_iter().collect());
    let all_but = |gids: BTreeSet<u32>| Groups::AllBut(gids);
    prop_oneof![
        3 => Just(Groups::AllBut(BTreeSet::new())),
        2 => some(2).prop_map(all_but),
        1 => some(4).prop_map(Groups::Only),
    ]
}

fn interfaces() -> impl Strategy<Value = BTreeSet<InterfaceName>> {
    let name =
        select(INTERFACES.to_vec()).prop_filter_map("an interface", |text| InterfaceName::parse(text).ok());
    let some = vec(name, 1..3).prop_map(|names| names.into_iter().collect());
    prop_oneof![2 => Just(BTreeSet::new()), 1 => some]
}

fn dns() -> impl Strategy<Value = Dns> {
    prop_oneof![
        2 => Just(Dns::Off),
        1 => Just(Dns::All),
        1 => networks(&SERVERS, 1..=3).prop_map(Dns::Servers),
    ]
}

fn loopback() -> impl Strategy<Value = LoopbackCidr> {
    select(vec!["127.0.0.1/32", "127.0.0.1/32", "127.0.0.0/8", "127.1.0.0/16"])
        .prop_filter_map("a loopback network", |text| text.parse().ok())
}

/// Random connections for each policy, in addition to those that every policy gets.
const CONNECTIONS: usize = 100;

/// Concurrent groups of networks, each with one network for each backend. Creating and removing a network takes long,
/// so each network gets many policies.
const LANES: usize = 12;

/// The limit of smaller policies that are tried after a disagreement.
const SHRINKS: usize = 60;

/// What was compared without a disagreement.
#[derive(Debug, Clone, Default)]
pub struct Comparison {
    /// The number of policies.
    pub policies: usize,
    /// The number of connections by their predicted listener.
    pub connections: BTreeMap<String, usize>,
    /// The numbers of the policies that were compared again, in new networks.
    pub repeated: Vec<u64>,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policies, connections, repeated } = self;
        let sum: usize = connections.values().sum();
        write!(f, "{policies} policies, {sum} connections: {connections:?}; compared again: {repeated:?}")
    }
}

/// Returns the random number generator of a number.
///
pub fn source(number: u64) -> TestRunner {
    let mut seed = [0; 32];
    for (byte, of_number) in seed.iter_mut().zip(number.to_le_bytes()) {
        *byte = of_number;
    }
    TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

/// Draws the policy and the connections of a number.
///
/// # Errors
/// When the strategies yield no value.
pub fn policy_and_flows(number: u64) -> Result<(impl ValueTree<Value = RedirectPolicy>, Vec<Flow>), Failure> {
    let mut source = source(number);
    let none = |reason| Failure::new(format!("no value for {number}: {reason}"));
    let policy = policies().new_tree(&mut source).map_err(none)?;
    let flows = vec(random_flow::flows(), CONNECTIONS).new_tree(&mut source).map_err(none)?.current();
    Ok((policy, flows))
}

/// Returns the cases of these numbers.
///
/// # Errors
/// As [`policy_and_flows`].
pub fn cases(numbers: Range<u64>) -> Result<Vec<(u64, Case)>, Failure> {
    let case = |number| {
        let (policy, flows) = policy_and_flows(number)?;
        Ok((number, Case::of(policy.current(), &flows, number)?))
    };
    numbers.map(case).collect()
}

/// Makes the connections of all cases with the rules of each backend.
///
/// # Errors
/// With the first disagreement between the backends and `trace`, and the smallest policy found that has it; or when a
/// connection could not be made.
pub fn compare(cases: Vec<(u64, Case)>, backends: &[&dyn Backend]) -> Result<Comparison, Failure> {
    let mut comparison = Comparison { policies: cases.len(), ..Comparison::default() };
    for flow in cases.iter().flat_map(|(_, case)| &case.flows) {
        let outcome = flow.with_rules.to_string();
        let listener = outcome.split(' ').next().unwrap_or_default();
        *comparison.connections.entry(listener.to_owned()).or_default() += 1;
    }
    // A network is for proxies of one mode.
    let (redirect, tproxy): (Vec<_>, Vec<_>) =
        cases.into_iter().partition(|(_, case)| case.policy.mode == Mode::Redirect);
    for cases in [redirect, tproxy] {
        let doubtful = doubtful(&cases, backends)?;
        for (number, case) in cases.iter().filter(|(number, _)| doubtful.contains(number)) {
            // conntrack entries of an earlier policy can cause a disagreement: repeat in new networks.
            if let Some(found) = first_disagreement(case, &fresh(case, backends)?)? {
                let smallest = smallest(found.clone(), *number, backends)?;
                return Err(Failure::new(format!(
                    "GYBE_SEED={number} GYBE_POLICIES=1\n{found}\nthe smallest policy found:\n{smallest}"
                )));
            }
            comparison.repeated.push(*number);
        }
    }
    Ok(comparison)
}

/// Makes the connections of the cases of one mode; returns the numbers of those with a disagreement.
fn doubtful(cases: &[(u64, Case)], backends: &[&dyn Backend]) -> Result<Vec<u64>, Failure> {
    let Some((_, first)) = cases.first() else { return Ok(Vec::new()) };
    let group = |_| backends.iter().map(|backend| Testbed::new(first.policy.mode, *backend)).collect();
    let lanes = in_parallel((0..LANES.min(cases.len())).collect(), group);
    let lanes = lanes.into_iter().collect::<Result<Vec<Vec<Testbed<'_>>>, Failure>>()?;
    let mut doubtful = Vec::new();
    for cases in cases.chunks(LANES) {
        let groups: Vec<_> = cases.iter().zip(&lanes).collect();
        let written = in_parallel(groups.clone(), |((_, case), testbeds)| write(case, testbeds));
        written.into_iter().collect::<Result<Vec<()>, Failure>>()?;
        let found = in_parallel(groups, |((number, case), testbeds)| {
            Ok::<_, Failure>(first_disagreement(case, testbeds)?.map(|_| *number))
        });
        doubtful.extend(found.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten());
    }
    Ok(doubtful)
}

/// Creates new networks for one case, one for each backend.
fn fresh<'b>(case: &Case, backends: &[&'b dyn Backend]) -> Result<Vec<Testbed<'b>>, Failure> {
    let testbeds: Vec<Testbed<'b>> =
        backends.iter().map(|backend| Testbed::new(case.policy.mode, *backend)).collect::<Result<_, _>>()?;
    write(case, &testbeds)?;
    Ok(testbeds)
}

fn write(case: &Case, testbeds: &[Testbed<'_>]) -> Result<(), Failure> {
    let redirection = Redirection::of(&case.policy);
    testbeds.iter().try_for_each(|testbed| testbed.write(&redirection))
}

/// Shrinks the policy as far as the disagreement about the connection remains.
fn smallest(first: Disagreement, number: u64, backends: &[&dyn Backend]) -> Result<Disagreement, Failure> {
    let (mut tree, flows) = policy_and_flows(number)?;
    let (mut smallest, mut smaller) = (first, tree.simplify());
    for _ in 0..SHRINKS {
        if !smaller {
            break;
        }
        let case = Case::of(tree.current(), &flows, number)?;
        let found = first_disagreement(&case, &fresh(&case, backends)?)?;
        smaller = if found.is_some() { tree.simplify() } else { tree.complicate() };
        smallest = found.unwrap_or(smallest);
    }
    Ok(smallest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_installer::pod::policy_file::PolicyFile;

    proptest::proptest! {
        #[test]
        fn a_policy_written_as_a_policy_file_is_parsed_as_the_same_policy(policy in policies()) {
            let file = PolicyFile::from_entries(&PolicyFile::entries(&policy)).unwrap();
            proptest::prop_assert_eq!(file.policy(&[]).unwrap(), policy);
        }
    }
}
