//! A policy in words. The order is that of the rules: an exclusion is named with the traffic that it limits.

use gybe_netfilter::model::policy::{
    CidrSet, Destinations, Dns, Families, Groups, Inbound, InterfaceName, InvalidPackets, LoopbackCidr, Mode,
    Owners, PortRange, PortSet, RedirectPolicy,
};
use std::collections::BTreeSet;
use std::fmt::Display;

/// Returns one sentence for each part of the policy.
pub(super) fn of(policy: &RedirectPolicy) -> Vec<String> {
    let mut sentences = vec![inbound(policy)];
    sentences.extend(outbound(policy));
    sentences.push(format!(
        "Connections of the proxy ({}; {}) that leave the pod keep their destination.",
        ids("user", &policy.proxy_uids),
        ids("group", &policy.proxy_gids),
    ));
    sentences.extend(interfaces(policy));
    sentences.push(dns(&policy.dns));
    if policy.invalid == InvalidPackets::Drop {
        sentences.push("Packets that conntrack classifies as invalid are dropped.".to_owned());
    }
    if policy.loopback != LoopbackCidr::default() {
        sentences.push(format!("{} counts as loopback.", policy.loopback.network()));
    }
    sentences.push(match policy.families {
        Families::V4Only => "IPv4 is redirected; IPv6 keeps its destination.".to_owned(),
        Families::V4AndV6 => "IPv4 and IPv6 are redirected.".to_owned(),
    });
    sentences
}

fn inbound(policy: &RedirectPolicy) -> String {
    let port = policy.inbound_port;
    let how = match policy.mode {
        Mode::Redirect => format!("go to the proxy's port {port}"),
        Mode::Tproxy { mark, route_table } => format!(
            "go to the proxy's transparent port {port} with their addresses unchanged (mark {mark}, routing table {route_table})"
        ),
    };
    let tunnel = policy.tunnel_port;
    let only = |only: &PortSet| only.without(tunnel);
    match &policy.inbound {
        Inbound::Only(listed) if only(listed).is_empty() => "No inbound connection is redirected.".to_owned(),
        Inbound::Only(listed) => {
            format!(
                "Inbound TCP connections to {} {how}; all others keep their destination.",
                ports(&only(listed))
            )
        }
        Inbound::AllBut(excluded) => {
            let tunnel = PortRange::new(tunnel.get(), tunnel.get());
            let excluded: PortSet = excluded.ranges().iter().copied().chain(tunnel).collect();
            format!("Inbound TCP connections {how}, except those to {}.", ports(&excluded))
        }
    }
}

fn outbound(policy: &RedirectPolicy) -> Vec<String> {
    let outbound = &policy.outbound;
    let port = policy.outbound_port;
    let networks_only = match &outbound.included_to {
        Destinations::All => None,
        Destinations::Only(only) => Some(only),
    };
    let mut sentences = Vec::new();
    let is_no_group = matches!(&outbound.groups, Groups::Only(only) if only.is_empty());
    let has_no_network = networks_only.is_some_and(CidrSet::is_empty);
    if is_no_group || (has_no_network && outbound.included_ports.is_empty()) {
        sentences.push("No outbound connection is redirected.".to_owned());
    } else {
        let to_ports = || format!("to {} of any address", ports(&outbound.included_ports));
        let what = match (networks_only, outbound.included_ports.is_empty()) {
            (None, _) => "to any address outside the pod".to_owned(),
            (Some(only), true) => format!("to {}", networks(only)),
            (Some(only), false) if only.is_empty() => to_ports(),
            (Some(only), false) => format!("to {} and {}", networks(only), to_ports()),
        };
        sentences.push(format!("Outbound TCP connections {what} go to the proxy's port {port}."));
        match &outbound.groups {
            Groups::AllBut(none) if none.is_empty() => {}
            Groups::AllBut(excluded) => {
                sentences.push(format!("Connections of groups {} keep their destination.", list(excluded)));
            }
            Groups::Only(only) => {
                sentences.push(format!("Only connections of groups {} are redirected.", list(only)));
            }
        }
    }
    if !outbound.excluded_ports.is_empty() {
        sentences.push(format!(
            "Outbound connections to {} keep their destination, whatever their address.",
            ports(&outbound.excluded_ports)
        ));
    }
    if !outbound.excluded_to.is_empty() {
        sentences.push(format!(
            "Outbound connections to {} keep their destination.",
            networks(&outbound.excluded_to)
        ));
    }
    sentences
}

fn interfaces(policy: &RedirectPolicy) -> Vec<String> {
    let names = |names: &BTreeSet<InterfaceName>| list(names.iter().map(InterfaceName::as_str));
    let mut sentences = Vec::new();
    if !policy.excluded_interfaces.is_empty() {
        let names = names(&policy.excluded_interfaces);
        sentences.push(format!("Connections through interface {names} keep their destination."));
    }
    if !policy.virtual_interfaces.is_empty() {
        let names = names(&policy.virtual_interfaces);
        sentences.push(format!(
            "Connections that enter through interface {names} (virtual machines) count as outbound."
        ));
    }
    sentences
}

fn dns(dns: &Dns) -> String {
    match dns {
        Dns::Off => "DNS queries over UDP keep their destination.".to_owned(),
        Dns::All => "All DNS queries go to the proxy's port 15053.".to_owned(),
        Dns::Servers(servers) => {
            format!("DNS queries to {} go to the proxy's port 15053.", networks(servers))
        }
    }
}

fn ports(ports: &PortSet) -> String {
    let ranges = ports.ranges();
    let is_one = matches!(ranges, [one] if one.bounds().0 == one.bounds().1);
    format!("{} {}", if is_one { "port" } else { "ports" }, list(ranges))
}

fn networks(set: &CidrSet) -> String {
    let v4 = set.v4().iter().map(ToString::to_string);
    list(v4.chain(set.v6().iter().map(ToString::to_string)))
}

fn ids(what: &str, owners: &Owners) -> String {
    format!("{what} {}", list(owners.all()))
}

/// Lists are complete: an explanation that leaves out an item is wrong about it.
fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}
