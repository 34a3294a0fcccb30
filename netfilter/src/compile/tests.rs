//! Which chains and rules exist for extreme policies.

use super::*;
use crate::model::policy::istio::{TPROXY_MARK, TPROXY_TABLE};
use crate::model::policy::{CidrSet, Dns, Groups, Inbound, InvalidPackets, Mode};

fn ids(chain: ChainName, change: impl FnOnce(&mut RedirectPolicy)) -> Vec<&'static str> {
    let mut policy = RedirectPolicy::injected(Families::V4Only);
    change(&mut policy);
    let rules = compile(&policy);
    let found = rules.chains.iter().find(|found| found.name == chain);
    found.map_or_else(Vec::new, |found| found.rules.iter().map(|rule| rule.id.0).collect())
}

fn interfaces() -> BTreeSet<InterfaceName> {
    [InterfaceName::parse("eth1").unwrap()].into()
}

#[test]
fn excluded_interfaces_need_a_rule_where_inbound_connections_are_captured() {
    let nat = |inbound: Inbound, excluded: bool| {
        ids(ChainName::NatPrerouting, |policy| {
            policy.inbound = inbound;
            if excluded {
                policy.excluded_interfaces = interfaces();
            }
        })
    };
    let all = || Inbound::AllBut(PortSet::default());
    assert_eq!(nat(all(), false), ["tunnel-port", "inbound-to-proxy"]);
    assert_eq!(nat(all(), true), ["excluded-interface-in", "tunnel-port", "inbound-to-proxy"]);
    assert_eq!(nat(Inbound::Only(only(80)), true), ["excluded-interface-in", "inbound-to-proxy"]);
    assert!(nat(Inbound::Only(PortSet::default()), true).is_empty());
    // The tunnel port is never captured.
    assert!(nat(Inbound::Only(only(15008)), false).is_empty());
    assert_eq!(nat(Inbound::Only(only(80)), false), ["inbound-to-proxy"]);
}

#[test]
fn tproxy_intercepts_only_where_inbound_connections_are_captured() {
    let mangle = |chain, inbound: Inbound, excluded: bool| {
        ids(chain, |policy| {
            policy.mode = Mode::Tproxy { mark: TPROXY_MARK, route_table: TPROXY_TABLE };
            policy.invalid = InvalidPackets::Pass;
            policy.inbound = inbound;
            if excluded {
                policy.excluded_interfaces = interfaces();
            }
        })
    };
    let intercepting = [
        "keep-mark",
        "proxy-keeps-source",
        "inbound-passthrough-on-lo-v4",
        "inside-the-pod",
        "intercepted-before",
        "intercept-v4",
        "not-intercepted-v4",
    ];
    let prerouting = ChainName::ManglePrerouting;
    assert_eq!(mangle(prerouting, Inbound::Only(PortSet::default()), false), ["keep-mark"]);
    assert_eq!(
        mangle(prerouting, Inbound::Only(PortSet::default()), true),
        ["excluded-interface-in", "keep-mark"]
    );
    assert_eq!(mangle(prerouting, Inbound::Only(only(80)), false), intercepting);
    assert_eq!(mangle(prerouting, Inbound::AllBut(PortSet::default()), false), intercepting);
    let excluded = mangle(prerouting, Inbound::AllBut(only(80)), true);
    assert!(excluded.contains(&"inbound-excluded-port") && excluded.contains(&"excluded-interface-in"));

    let output = ["proxy-to-app", "mark-proxy-uid-v4", "mark-proxy-gid-v4", "answer-to-proxy"];
    let all = || Inbound::AllBut(PortSet::default());
    assert_eq!(mangle(ChainName::MangleOutput, all(), false), output);
    assert_eq!(
        mangle(ChainName::MangleOutput, all(), true),
        [&["excluded-interface-unmarked"][..], &output].concat()
    );
}

#[test]
fn captured_groups_have_a_chain_of_their_own() {
    let capture = |groups| ids(ChainName::NatCapture, |policy| policy.outbound.groups = groups);
    let output = |groups| ids(ChainName::NatOutput, |policy| policy.outbound.groups = groups);
    assert!(capture(Groups::Only([].into())).is_empty());
    assert!(!output(Groups::Only([].into())).contains(&"outbound-to-proxy"));
    assert!(!output(Groups::Only([].into())).contains(&"to-capture"));
    assert_eq!(capture(Groups::Only([7].into())), ["outbound-to-proxy"]);
    assert!(output(Groups::Only([7].into())).contains(&"to-capture"));
    assert!(output(Groups::AllBut([].into())).contains(&"outbound-to-proxy"));
}

#[test]
fn named_dns_servers_have_zones_per_family() {
    let servers: CidrSet =
        ["10.96.0.10", "fd00::a"].map(|ip| ip.parse::<std::net::IpAddr>().unwrap()).into_iter().collect();
    let zones = |chain, families| {
        ids(chain, |policy| {
            policy.dns = Dns::Servers(servers.clone());
            policy.families = families;
        })
    };
    let output = zones(ChainName::RawOutput, Families::V4AndV6);
    assert_eq!(output[4..], ["zone-app-queries-v4", "zone-app-queries-v6"]);
    assert_eq!(zones(ChainName::RawOutput, Families::V4Only)[4..], ["zone-app-queries-v4"]);
    assert_eq!(
        zones(ChainName::RawPrerouting, Families::V4AndV6),
        ["zone-upstream-answers-v4", "zone-upstream-answers-v6"]
    );
}
