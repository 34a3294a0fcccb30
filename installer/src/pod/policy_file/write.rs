//! Writes a policy as a policy file, from which the same policy is parsed.

use gybe_netfilter::model::policy::{
    CidrSet, Destinations, Dns, Families, Groups, Inbound, InterfaceName, InvalidPackets, Mode, Owners,
    PortSet, RedirectPolicy,
};
use ipnet::{IpNet, Ipv4AddrRange, Ipv6AddrRange};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns every key that the policy has, so that nothing depends on the defaults of the version that reads the file.
pub(super) fn entries(policy: &RedirectPolicy) -> Map<String, Value> {
    let outbound = &policy.outbound;
    let mut entries = vec![
        ("mode", mode_name(policy.mode).into()),
        ("proxy_port", policy.outbound_port.get().into()),
        ("inbound_capture_port", policy.inbound_port.get().into()),
        ("inbound_tunnel_port", policy.tunnel_port.get().into()),
        ("proxy_uids", owners(&policy.proxy_uids)),
        ("proxy_gids", owners(&policy.proxy_gids)),
        ("outbound_ports_include", ports(&outbound.included_ports)),
        ("outbound_ports_exclude", ports(&outbound.excluded_ports)),
        ("outbound_cidrs_exclude", networks(&outbound.excluded_to)),
        ("exclude_interfaces", interfaces(&policy.excluded_interfaces)),
        ("reroute_virtual_interfaces", interfaces(&policy.virtual_interfaces)),
        ("redirect_dns", (policy.dns != Dns::Off).into()),
        ("drop_invalid", (policy.invalid == InvalidPackets::Drop).into()),
        ("loopback_cidr_v4", policy.loopback.network().to_string().into()),
        ("enable_ipv6", (policy.families == Families::V4AndV6).into()),
    ];
    if let Mode::Tproxy { mark, route_table } = policy.mode {
        entries.extend([("tproxy_mark", mark.into()), ("tproxy_route_table", route_table.into())]);
    }
    match &policy.inbound {
        Inbound::Only(only) => entries.push(("inbound_ports_include", ports(only))),
        Inbound::AllBut(excluded) => {
            entries.extend([
                ("inbound_ports_include", json!(["*"])),
                ("inbound_ports_exclude", ports(excluded)),
            ]);
        }
    }
    entries.push(match &outbound.included_to {
        Destinations::All => ("outbound_cidrs_include", json!(["*"])),
        Destinations::Only(only) => ("outbound_cidrs_include", networks(only)),
    });
    match &outbound.groups {
        Groups::AllBut(excluded) => {
            entries
                .extend([("owner_groups_include", json!(["*"])), ("owner_groups_exclude", json!(excluded))]);
        }
        Groups::Only(only) => entries.push(("owner_groups_include", json!(only))),
    }
    match &policy.dns {
        Dns::Off => {}
        Dns::All => entries.push(("capture_all_dns", true.into())),
        Dns::Servers(servers) => {
            let v4 = servers.v4().iter().flat_map(|net| Ipv4AddrRange::new(net.network(), net.broadcast()));
            let v6 = servers.v6().iter().flat_map(|net| Ipv6AddrRange::new(net.network(), net.broadcast()));
            entries.push(("dns_servers_v4", v4.map(|server| server.to_string()).collect()));
            entries.push(("dns_servers_v6", v6.map(|server| server.to_string()).collect()));
        }
    }
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Redirect => "REDIRECT",
        Mode::Tproxy { .. } => "TPROXY",
    }
}

/// The first id has a meaning of its own, so it is written first.
fn owners(owners: &Owners) -> Value {
    let others = owners.all().into_iter().filter(|id| *id != owners.first);
    [owners.first].into_iter().chain(others).collect()
}

/// A single port is a number, a range a string.
fn ports(ports: &PortSet) -> Value {
    let value = |(first, last)| if first == last { json!(first) } else { json!(format!("{first}-{last}")) };
    ports.ranges().iter().map(|range| value(range.bounds())).collect()
}

fn interfaces(names: &BTreeSet<InterfaceName>) -> Value {
    names.iter().map(InterfaceName::as_str).collect()
}

/// Whether a set was written with a loopback address matters, and the merged networks may not show it: then a
/// loopback address of the set is written beside them.
fn networks(set: &CidrSet) -> Value {
    let all = set.v4().iter().copied().map(IpNet::V4).chain(set.v6().iter().copied().map(IpNet::V6));
    let mut all: Vec<IpNet> = all.collect();
    if set.names_loopback() && !all.iter().any(|net| net.addr().is_loopback()) {
        let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
        let hidden = loopback.into_iter().find(|address| all.iter().any(|net| net.contains(address)));
        all.extend(hidden.map(IpNet::from));
    }
    all.iter().map(ToString::to_string).collect()
}
