//! Policy files: the meaning of each key, and the errors of wrong values.

use gybe_installer::pod::policy_file::{
    Families, FamilyChoice, NoAddress, PolicyFile, PolicyFileError, Stack,
};
use gybe_netfilter::model::policy::{
    CidrSet, Destinations, Dns, Groups, Inbound, InvalidPackets, Mode, Owners, Port, PortSet, RedirectPolicy,
};
use std::net::IpAddr;

const INJECTOR_DEFAULTS: &str = r#"{"proxy_port": 15001, "inbound_capture_port": 15006,
  "inbound_tunnel_port": 15008, "proxy_uids": ["1337"], "proxy_gids": ["1337"], "mode": "REDIRECT",
  "tproxy_mark": 1337, "tproxy_route_table": 133, "inbound_ports_include": ["*"],
  "inbound_ports_exclude": ["15090", "15021", "15020"], "outbound_ports_include": [],
  "outbound_ports_exclude": [], "outbound_cidrs_include": ["*"], "outbound_cidrs_exclude": [],
  "reroute_virtual_interfaces": [], "exclude_interfaces": [], "owner_groups_include": ["*"],
  "owner_groups_exclude": [], "redirect_dns": false, "capture_all_dns": false, "dns_servers_v4": [],
  "dns_servers_v6": [], "drop_invalid": false, "enable_ipv6": false, "dual_stack": false,
  "loopback_cidr_v4": "127.0.0.1/32"}"#;

fn policy(text: &str) -> RedirectPolicy {
    PolicyFile::parse(text).unwrap_or_else(|e| panic!("{text}: {e}")).with_families(Families::V4Only)
}

fn faults(text: &str) -> Vec<String> {
    match PolicyFile::parse(text) {
        Err(PolicyFileError::Faults(faults)) => faults.iter().map(ToString::to_string).collect(),
        other => panic!("{text}: {other:?}"),
    }
}

fn ports(list: &[u16]) -> PortSet {
    list.iter().copied().collect()
}

fn cidrs(text: &str) -> CidrSet {
    text.split(',').filter(|t| !t.is_empty()).map(|t| t.parse::<ipnet::IpNet>().unwrap()).collect()
}

#[test]
fn an_empty_file_has_the_injectors_defaults() {
    assert_eq!(policy("{}"), policy(INJECTOR_DEFAULTS));
    assert_eq!(policy("{}").inbound, Inbound::AllBut(ports(&[15020, 15021, 15090])));
}

#[test]
fn a_number_may_be_written_as_a_string_and_a_string_as_a_number() {
    let strings =
        r#"{"proxy_port": "16001", "proxy_uids": ["7"], "outbound_ports_exclude": ["80", "90-92"]}"#;
    let numbers = r#"{"proxy_port": 16001, "proxy_uids": [7], "outbound_ports_exclude": [80, 90, 91, 92]}"#;
    assert_eq!(policy(strings), policy(numbers));
    assert_eq!(policy(numbers).outbound_port, Port::new(16001).unwrap());
}

#[test]
fn without_users_the_proxy_is_1337_and_without_groups_they_are_its_users() {
    for (text, uids, gids) in [
        (r#"{"proxy_uids": []}"#, Owners::new(1337, []), Owners::new(1337, [])),
        (r#"{"proxy_uids": [5, 3]}"#, Owners::new(5, [3]), Owners::new(5, [3])),
        (r#"{"proxy_uids": [5], "proxy_gids": []}"#, Owners::new(5, []), Owners::new(5, [])),
        (r#"{"proxy_gids": [9, 1]}"#, Owners::new(1337, []), Owners::new(9, [1])),
    ] {
        let policy = policy(text);
        assert_eq!((policy.proxy_uids, policy.proxy_gids), (uids, gids), "{text}");
    }
}

#[test]
fn an_inbound_include_list_overrides_the_exclude_list() {
    for (text, inbound) in [
        (r#"{"inbound_ports_include": [80], "inbound_ports_exclude": [80]}"#, Inbound::Only(ports(&[80]))),
        (r#"{"inbound_ports_include": []}"#, Inbound::Only(ports(&[]))),
        (r#"{"inbound_ports_exclude": []}"#, Inbound::AllBut(ports(&[]))),
        (r#"{"inbound_ports_exclude": ["1-3"]}"#, Inbound::AllBut(ports(&[1, 2, 3]))),
    ] {
        assert_eq!(policy(text).inbound, inbound, "{text}");
    }
}

#[test]
fn outbound_lists_set_the_matching_field() {
    let text = r#"{"outbound_ports_include": [9], "outbound_ports_exclude": [8],
        "outbound_cidrs_include": ["10.0.0.0/8", "fd00::/8"], "outbound_cidrs_exclude": ["10.1.2.3/16"],
        "exclude_interfaces": ["net1"], "reroute_virtual_interfaces": ["eth1", "eth2"]}"#;
    let policy = policy(text);
    assert_eq!(policy.outbound.included_ports, ports(&[9]));
    assert_eq!(policy.outbound.excluded_ports, ports(&[8]));
    assert_eq!(policy.outbound.included_to, Destinations::Only(cidrs("10.0.0.0/8,fd00::/8")));
    assert_eq!(policy.outbound.excluded_to, cidrs("10.1.0.0/16"));
    assert_eq!(policy.excluded_interfaces.len(), 1);
    assert_eq!(policy.virtual_interfaces.len(), 2);
}

#[test]
fn groups_are_all_but_some_or_only_some() {
    for (text, groups) in [
        ("{}", Groups::AllBut([].into())),
        (r#"{"owner_groups_exclude": ["4401"]}"#, Groups::AllBut([4401].into())),
        (
            r#"{"owner_groups_include": ["2", 4401], "owner_groups_exclude": ["7"]}"#,
            Groups::Only([2, 4401].into()),
        ),
        (r#"{"owner_groups_include": []}"#, Groups::Only([].into())),
    ] {
        assert_eq!(policy(text).outbound.groups, groups, "{text}");
    }
    let many: Vec<u32> = (0..65).collect();
    let text = serde_json::json!({ "owner_groups_include": many }).to_string();
    assert_eq!(faults(&text), ["owner_groups_include: has 65 groups, and at most 64 are allowed"]);
}

#[test]
fn dns_is_captured_for_all_servers_some_or_none() {
    let some = Dns::Servers(cidrs("10.96.0.10/32,fd00::10/128"));
    for (text, dns) in [
        (r#"{"redirect_dns": true, "capture_all_dns": true, "dns_servers_v4": ["10.96.0.10"]}"#, Dns::All),
        (r#"{"redirect_dns": true, "dns_servers_v4": ["10.96.0.10"], "dns_servers_v6": ["fd00::10"]}"#, some),
        (r#"{"redirect_dns": true}"#, Dns::Off),
        (r#"{"capture_all_dns": true, "dns_servers_v4": ["10.96.0.10"]}"#, Dns::Off),
    ] {
        assert_eq!(policy(text).dns, dns, "{text}");
    }
}

#[test]
fn tproxy_has_a_mark_and_a_table() {
    let mode = |text| policy(text).mode;
    assert_eq!(mode(r#"{"mode": "TPROXY"}"#), Mode::Tproxy { mark: 1337, route_table: 133 });
    assert_eq!(
        mode(r#"{"mode": "TPROXY", "tproxy_mark": "9", "tproxy_route_table": 200}"#),
        Mode::Tproxy { mark: 9, route_table: 200 }
    );
    assert_eq!(mode(r#"{"tproxy_mark": 9}"#), Mode::Redirect);
    assert_eq!(policy(r#"{"drop_invalid": true}"#).invalid, InvalidPackets::Drop);
}

#[test]
fn families_are_set_by_the_file_or_by_the_first_usable_address() {
    let v6 = Ok(Families::V4AndV6);
    let v4 = Ok(Families::V4Only);
    let no_address = Err(NoAddress);
    for (text, addresses, families) in [
        (r#"{"enable_ipv6": true, "dual_stack": false}"#, "10.0.0.1", v6),
        (r#"{"enable_ipv6": false, "dual_stack": true}"#, "fd00::1", v4),
        (r#"{"enable_ipv6": false}"#, "", v4),
        ("{}", "127.0.0.1,::1,169.254.1.1,fe80::1,10.0.0.1,fd00::1", v4),
        ("{}", "127.0.0.1,::1,fe80::1,fd00::1,10.0.0.1", v6),
        ("{}", "127.0.0.1,::1,fe80::1", no_address),
        ("{}", "", no_address),
        (r#"{"dual_stack": true}"#, "10.0.0.1,fe80::1", v4),
        (r#"{"dual_stack": true}"#, "10.0.0.1,fe80::1,10.0.0.2,fd00::1", v6),
        (r#"{"dual_stack": true}"#, "fd00::1", v6),
        (r#"{"dual_stack": true}"#, "fe80::1", no_address),
    ] {
        let addresses: Vec<IpAddr> =
            addresses.split(',').filter(|a| !a.is_empty()).map(|a| a.parse().unwrap()).collect();
        let file = PolicyFile::parse(text).unwrap();
        assert_eq!(file.policy(&addresses).map(|p| p.families), families, "{text} {addresses:?}");
    }
    assert_eq!(PolicyFile::parse("{}").unwrap().families(), FamilyChoice::ByAddresses(Stack::Single));
}

#[test]
fn every_wrong_value_is_reported_with_its_key() {
    for (text, expected) in [
        (r#"{"inbound_port_include": ["*"]}"#, "did you mean inbound_ports_include?"),
        (r#"{"proxy_uid": 5}"#, "did you mean proxy_uids?"),
        (r#"{"inbound_ports_exclud": []}"#, "did you mean inbound_ports_exclude?"),
        (r#"{"colour": "red"}"#, "colour: unknown key"),
        (r#"{"proxy_uids": ["istio-proxy"]}"#, "names are refused"),
        (r#"{"proxy_uids": [-1]}"#, "is not a numeric id"),
        (r#"{"owner_groups_exclude": ["4294967295"]}"#, "no user at all"),
        (r#"{"owner_groups_include": ["*", "5"]}"#, "must be the only value"),
        (r#"{"inbound_ports_exclude": ["*"]}"#, "inbound_ports_exclude: does not take"),
        (r#"{"outbound_ports_exclude": ["*"]}"#, "does not take"),
        (r#"{"outbound_ports_include": ["*"]}"#, "does not take"),
        (r#"{"outbound_cidrs_exclude": ["*"]}"#, "does not take"),
        (r#"{"outbound_cidrs_exclude": ["10.0.0.1"]}"#, "write \"10.0.0.1/32\""),
        (r#"{"outbound_cidrs_include": ["fd00::1"]}"#, "write \"fd00::1/128\""),
        (r#"{"outbound_cidrs_include": ["10.0.0.0/33"]}"#, "is not a network"),
        (r#"{"outbound_cidrs_include": ["10.0.0.0/08"]}"#, "is not a network"),
        (r#"{"loopback_cidr_v4": "127.0.0.1/032"}"#, "not an IPv4 loopback network"),
        (r#"{"inbound_ports_include": "*"}"#, "must be a list"),
        (r#"{"inbound_ports_include": [80.5]}"#, "must be a list of strings or whole numbers"),
        (r#"{"inbound_ports_include": [""]}"#, "is not a port"),
        (r#"{"inbound_ports_include": ["90-80"]}"#, "is reversed"),
        (r#"{"inbound_ports_include": ["80 "]}"#, "is not a port"),
        (r#"{"proxy_port": 0}"#, "1 to 65535"),
        (r#"{"proxy_port": "http"}"#, "1 to 65535"),
        (r#"{"proxy_port": [1]}"#, "must be a string or a whole number"),
        (r#"{"mode": "NONE"}"#, "neither REDIRECT nor TPROXY"),
        (r#"{"tproxy_mark": 0}"#, "every packet without a mark"),
        (r#"{"tproxy_mark": 1338}"#, "already marks"),
        (r#"{"tproxy_route_table": 254}"#, "the kernel's own"),
        (r#"{"redirect_dns": "true"}"#, "must be true or false"),
        (r#"{"drop_invalid": null}"#, "must be true or false"),
        (r#"{"dns_servers_v4": ["fd00::1"]}"#, "is not an IPv4 address"),
        (r#"{"dns_servers_v6": ["10.0.0.1"]}"#, "is not an IPv6 address"),
        (r#"{"loopback_cidr_v4": "10.0.0.0/8"}"#, "not an IPv4 loopback network"),
        (r#"{"exclude_interfaces": ["-x"]}"#, "must be a letter"),
        (r#"{"reroute_virtual_interfaces": [""]}"#, "is missing"),
    ] {
        let faults = faults(text);
        assert_eq!(faults.len(), 1, "{text}: {faults:?}");
        assert!(faults[0].contains(expected), "{text}: {faults:?}");
    }
}

#[test]
fn all_faults_are_reported_together() {
    let text = r#"{"proxy_port": 0, "colour": 1, "proxy_uids": ["a", "b"], "mode": "x"}"#;
    let error = PolicyFile::parse(text).unwrap_err();
    for key in ["5 faults", "proxy_port: ", "colour: ", "\"a\"", "\"b\"", "mode: "] {
        assert!(error.to_string().contains(key), "{key} in {error}");
    }
}

#[test]
fn a_text_that_is_no_object_or_has_a_duplicate_key_is_refused() {
    let deep = "[".repeat(100_000);
    for text in ["", "[]", "null", "{", "{} {}", r#"{"mode": "TPROXY", "mode": "REDIRECT"}"#, &deep] {
        let refused = matches!(PolicyFile::parse(text), Err(PolicyFileError::NotAnObject(_)));
        assert!(refused, "{text:.40}");
    }
}

#[test]
fn the_manual_documents_every_key_and_no_other() {
    let manual = include_str!("../../../docs/CONFIGURE.md");
    let (_, section) = manual.split_once("## 5. Policy files").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let first_column = rows.filter_map(|row| row.split('|').nth(1));
    let names: Vec<&str> = first_column.flat_map(|names| names.split('`').skip(1).step_by(2)).collect();
    let known: serde_json::Map<String, serde_json::Value> = serde_json::from_str(INJECTOR_DEFAULTS).unwrap();
    let mut documented = names.clone();
    documented.sort_unstable();
    assert_eq!(documented, known.keys().map(String::as_str).collect::<Vec<_>>());
    for name in names {
        let found = faults(&format!(r#"{{"{name}": null}}"#));
        assert!(!found[0].contains("unknown key"), "{found:?}");
    }
}
