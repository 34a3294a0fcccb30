//! Random policies over all options, from few values each, so that lists overlap and packets match them.

use gybe_netfilter::model::policy::{
    CidrSet, Destinations, Dns, Families, Groups, Inbound, InterfaceName, InvalidPackets, LoopbackCidr, Mode,
    Outbound, Owners, Port, PortRange, PortSet, RedirectPolicy,
};
use ipnet::IpNet;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy};
use proptest::prop_oneof;
use proptest::sample::select;
use std::collections::BTreeSet;

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
