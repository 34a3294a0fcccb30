//! The compared policies: those of the flow vectors, and edge cases that no vector has.

use gybe_integration::vectors;
use gybe_netfilter::compile::compile;
use gybe_netfilter::model::policy::{
    CidrSet, Destinations, Dns, Inbound, InterfaceName, Owners, Port, PortRange, PortSet, RedirectPolicy,
};
use gybe_netfilter::model::ruleset::Ruleset;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// A rule set and the policy's name.
pub(crate) struct Case {
    pub name: String,
    pub rules: Ruleset,
}

/// Returns the policies of the flow vectors.
pub(crate) fn vectors() -> Vec<Case> {
    let all = vectors::all().unwrap();
    all.into_iter().map(|vector| Case { rules: compile(&vector.policy), name: vector.name }).collect()
}

/// Returns edge cases of every type of list, and lists that do not fit into one message.
pub(crate) fn edges() -> Vec<Case> {
    let default =
        vectors::all().unwrap().into_iter().find(|vector| vector.name == "inject-default-dual").unwrap();
    let with = |name: &str, change: &dyn Fn(&mut RedirectPolicy)| {
        let mut policy = default.policy.clone();
        change(&mut policy);
        Case { name: name.to_owned(), rules: compile(&policy) }
    };
    let excluding =
        |name: &str, networks: &str| with(name, &|policy| policy.outbound.excluded_to = nets(networks));
    vec![
        with("a-range-of-ports", &|p| p.inbound = Inbound::Only(ports("8000-8100"))),
        with("all-ports", &|p| p.inbound = Inbound::Only(ports("0-65535"))),
        with("first-and-last-port", &|p| p.inbound = Inbound::Only(ports("0,22,80-90,65535"))),
        with("odd-ports", &|p| p.inbound = Inbound::AllBut((1..=65535).step_by(2).collect())),
        excluding("prefixes-no-byte-wide", "10.0.0.0/9,fd00::/13"),
        excluding("a-byte-wide", "10.0.0.0/8,fd00::/8"),
        excluding("single-addresses", "10.1.2.3/32,fd00::1/128"),
        excluding("everything", "0.0.0.0/0,::/0"),
        excluding("first-and-last-address", "0.0.0.0/32,255.255.255.255/32,::/128,ffff::/16"),
        // The hairpin rule matches ports other than 53 and the tunnel's, here one excluded range.
        with("all-but-a-range-of-ports", &|p| {
            p.dns = Dns::All;
            p.tunnel_port = Port::new(54).unwrap();
        }),
        // With loopback among the networks, the hairpin rule has a list of ports and one of uids.
        with("two-lists-of-one-rule", &|p| {
            p.dns = Dns::All;
            p.proxy_uids = Owners::new(1337, [0, u32::MAX]);
            p.outbound.included_to = Destinations::Only(nets("127.0.0.0/8,10.0.0.0/8"));
        }),
        with("interfaces", &|p| {
            let named =
                |names: &[&str]| names.iter().map(|name| InterfaceName::parse(name).unwrap()).collect();
            p.excluded_interfaces = named(&["net1", "a-name-of-15-by"]);
            p.virtual_interfaces = named(&["eth1", "eth2"]);
        }),
        with("thousands-of-networks", &|p| p.outbound.included_to = Destinations::Only(many_networks())),
    ]
}

fn nets(text: &str) -> CidrSet {
    text.split(',').map(|net| net.parse::<IpNet>().unwrap()).collect()
}

fn ports(text: &str) -> PortSet {
    text.split(',').map(|range| range.parse::<PortRange>().unwrap()).collect()
}

/// Two thousand networks of each family that do not touch: more than one message of elements and more than mnl's
/// 128 KiB, and less than a user namespace may send.
fn many_networks() -> CidrSet {
    let v4 = (0..2000_u32).map(|n| IpNet::V4(Ipv4Net::new((0x0a00_0000 + (n << 9)).into(), 24).unwrap()));
    let v6 = (0..2000_u128)
        .map(|n| IpNet::V6(Ipv6Net::new(((0xfd00_u128 << 112) + (n << 65)).into(), 64).unwrap()));
    v4.chain(v6).collect()
}
