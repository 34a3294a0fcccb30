//! Files that an operator hands to commands: policy files, with the meaning of each key and the errors of wrong
//! values; manifests, the pods in them and the limits on hostile ones.

use gybe_installer::pod::manifest::{LONGEST, ManifestFileError, PodTemplate, pods};
use gybe_installer::pod::policy_file::{
    AnyPolicyFile, Families, FamilyChoice, NoAddress, PolicyFile, PolicyFileError, Stack,
};
use gybe_netfilter::model::policy::ambient::{AmbientDns, AmbientInbound, AmbientPolicy, ProbeAddresses};
use gybe_netfilter::model::policy::{
    CidrSet, Destinations, Dns, Groups, Inbound, InterfaceName, InvalidPackets, Mode, Owners, Port, PortSet,
    RedirectPolicy,
};
use serde_json::Value;
use std::fmt::Write;
use std::net::IpAddr;
use std::time::{Duration, Instant};

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

/// The names of the tables below a heading of section 5 of docs/CONFIGURE.md, sorted.
fn documented(heading: &str) -> Vec<&'static str> {
    let (_, section) = include_str!("../../../docs/CONFIGURE.md").split_once(heading).unwrap();
    let section = section.split("\n#").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let first_column = rows.filter_map(|row| row.split('|').nth(1));
    let mut names: Vec<&str> = first_column.flat_map(|names| names.split('`').skip(1).step_by(2)).collect();
    names.sort_unstable();
    names
}

#[test]
fn the_manual_documents_every_key_and_no_other() {
    let names = documented("\n### 5.1 Pods with a sidecar\n");
    let known: serde_json::Map<String, Value> = serde_json::from_str(INJECTOR_DEFAULTS).unwrap();
    assert_eq!(names, known.keys().map(String::as_str).collect::<Vec<_>>());
    for name in names {
        let found = faults(&format!(r#"{{"{name}": null}}"#));
        assert!(!found[0].contains("unknown key"), "{found:?}");
    }
    let known: serde_json::Map<String, Value> = serde_json::from_str(EVERY_AMBIENT_KEY).unwrap();
    assert_eq!(documented("\n### 5.2 Ambient pods\n"), known.keys().map(String::as_str).collect::<Vec<_>>());
}

const EVERY_AMBIENT_KEY: &str = r#"{"kind": "ambient", "bypass_inbound_capture": true, "redirect_dns": false,
    "reroute_virtual_interfaces": ["eth1"], "probe_address_v4": "192.0.2.1", "probe_address_v6": "fd00::1",
    "enable_ipv6": false}"#;

#[test]
fn the_kind_decides_which_keys_a_file_has() {
    let ambient = |text: &str| match AnyPolicyFile::parse(text).unwrap() {
        AnyPolicyFile::Ambient(policy) => policy,
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(ambient(r#"{"kind": "ambient"}"#), AmbientPolicy::default());
    let expected = AmbientPolicy {
        inbound: AmbientInbound::Bypassed,
        dns: AmbientDns::Off,
        virtual_interfaces: [InterfaceName::parse("eth1").unwrap()].into(),
        probes: ProbeAddresses::default()
            .with_v4("192.0.2.1".parse().unwrap())
            .and_then(|probes| probes.with_v6("fd00::1".parse().unwrap()))
            .unwrap(),
        families: Families::V4Only,
    };
    assert_eq!(ambient(EVERY_AMBIENT_KEY), expected);
    let opposite =
        r#"{"kind": "ambient", "bypass_inbound_capture": false, "redirect_dns": true, "enable_ipv6": true}"#;
    assert_eq!(ambient(opposite), AmbientPolicy::default());
    for text in ["{}", r#"{"kind": "sidecar"}"#] {
        assert!(matches!(AnyPolicyFile::parse(text), Ok(AnyPolicyFile::Sidecar(_))), "{text}");
    }
}

#[test]
fn faults_of_an_ambient_file_name_their_keys() {
    for (text, expected) in [
        (r#"{"kind": "waypoint"}"#, r#"kind: "waypoint" is neither sidecar nor ambient"#),
        (r#"{"kind": "ambient", "proxy_port": 15001}"#, "proxy_port: unknown key"),
        (r#"{"proxy_port": 15001, "probe_address_v4": "10.0.0.1"}"#, "probe_address_v4: unknown key"),
        (r#"{"kind": "ambient", "probe_address_v4": "fd00::1"}"#, "probe_address_v4: "),
        (r#"{"kind": "ambient", "probe_address_v6": "::1"}"#, "probe_address_v6: a probe's address must be"),
        (r#"{"kind": "ambient", "redirect_dns": "yes"}"#, "redirect_dns: must be true or false"),
        (r#"{"kind": "ambient", "reroute_virtual_interfaces": ["a b"]}"#, "reroute_virtual_interfaces: "),
    ] {
        match AnyPolicyFile::parse(text) {
            Err(PolicyFileError::Faults(faults)) => {
                let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
                assert!(faults.len() == 1 && faults[0].starts_with(expected), "{text}: {faults:?}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

const POD_SPEC: &str = "{containers: [{name: app}]}";

fn one(text: &str) -> PodTemplate {
    let mut pods = pods(text).unwrap_or_else(|e| panic!("{text}: {e:?}"));
    assert_eq!(pods.len(), 1, "{text}");
    pods.remove(0)
}

fn container(pod: &Value) -> &str {
    pod.pointer("/spec/containers/0/name").and_then(Value::as_str).unwrap()
}

#[test]
fn the_pod_template_of_every_kind_is_found() {
    for kind in [
        "Deployment",
        "DaemonSet",
        "ReplicaSet",
        "ReplicationController",
        "Job",
        "StatefulSet",
        "DeploymentConfig",
        "Rollout",
    ] {
        let text = format!(
            "kind: {kind}\nmetadata: {{name: shop, namespace: front}}\nspec:\n  template:\n    \
             metadata: {{labels: {{app: shop}}}}\n    spec: {POD_SPEC}\n"
        );
        let found = one(&text);
        assert_eq!(found.origin, format!("{kind}/shop"));
        assert_eq!(container(&found.pod), "app");
        assert_eq!(found.pod["metadata"]["namespace"], "front");
        assert_eq!(found.pod["metadata"]["labels"]["app"], "shop");
    }
}

#[test]
fn pods_cron_jobs_and_bare_templates_are_read() {
    for (text, origin) in [
        (format!("kind: Pod\nmetadata: {{name: a}}\nspec: {POD_SPEC}"), "Pod/a"),
        (format!("kind: Pod\nmetadata: {{generateName: a-}}\nspec: {POD_SPEC}"), "Pod/a-"),
        (
            format!("kind: CronJob\nspec: {{jobTemplate: {{spec: {{template: {{spec: {POD_SPEC}}}}}}}}}"),
            "CronJob/unnamed",
        ),
        (
            format!("kind: PodTemplate\nmetadata: {{name: a}}\ntemplate: {{spec: {POD_SPEC}}}"),
            "PodTemplate/a",
        ),
    ] {
        let found = one(&text);
        assert_eq!(found.origin, origin);
        assert_eq!(container(&found.pod), "app");
    }
}

#[test]
fn lists_documents_and_json_are_read_in_order() {
    let pod = |name: &str| format!(r#"{{"kind":"Pod","metadata":{{"name":"{name}"}},"spec":{{}}}}"#);
    let list = format!(r#"{{"kind":"List","items":[{},{{"kind":"Service"}},{}]}}"#, pod("a"), pod("b"));
    let text = format!("---\n# nothing here\n---\n{list}\n---\n{}\n...\n", pod("c"));
    let origins: Vec<String> = pods(&text).unwrap().into_iter().map(|pod| pod.origin).collect();
    assert_eq!(origins, ["Pod/a", "Pod/b", "Pod/c"]);
    assert_eq!(pods(&list).unwrap().len(), 2);
}

#[test]
fn the_error_for_a_file_without_pods_names_the_kinds_in_it() {
    let text = "kind: Service\nspec: {}\n---\nkind: Certificate\nspec: {template: {spec: {}}}\n";
    let error = pods(text).unwrap_err();
    assert_eq!(error.to_string(), "the manifest has no pod and no pod template, only Service, Certificate");
    for text in ["", "---\n", "[]", "5", "{}", "kind: Pods"] {
        assert!(matches!(pods(text), Err(ManifestFileError::NoPod { .. })), "{text:?}");
    }
}

#[test]
fn annotations_keep_their_text() {
    let text =
        "kind: Pod\nmetadata:\n  annotations:\n    a: \"\"\n    b: '*'\n    c: '15020'\n    d: \"true\"\n";
    let pod = one(text).pod;
    for (key, value) in [("a", ""), ("b", "*"), ("c", "15020"), ("d", "true")] {
        assert_eq!(pod["metadata"]["annotations"][key], value);
    }
}

#[test]
fn a10_hostile_manifests_are_refused_quickly_and_in_one_line() {
    let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..30 {
        let lower = vec![format!("*a{}", i - 1); 10].join(", ");
        writeln!(laughs, "a{i}: &a{i} [{lower}]").unwrap();
    }
    let deep_block: String = (0..3_000).fold(String::new(), |text, i| text + &" ".repeat(i) + "a:\n");
    for (what, text) in [
        ("multiplying anchors", laughs),
        ("an anchor inside itself", "a: &a [*a]\n".to_owned()),
        ("deep lists", "[".repeat(1_000_000)),
        ("deep objects", "{a: ".repeat(500_000)),
        ("deep blocks", deep_block),
        ("many documents", "---\na: 1\n".repeat(100_000)),
        ("many nodes", format!("[{}]", "1,".repeat(2_000_000))),
        ("a name twice", "kind: Pod\nkind: Pod\n".to_owned()),
        ("a control character", "kind: \u{1}\n".to_owned()),
        ("an unknown alias", "kind: *missing\n".to_owned()),
        ("a tab", "kind:\n\t- Pod\n".to_owned()),
    ] {
        let begin = Instant::now();
        let error = pods(&text).unwrap_err();
        assert!(begin.elapsed() < Duration::from_secs(20), "{what} took {:?}", begin.elapsed());
        let ManifestFileError::Syntax(why) = error else { panic!("{what}: {error:?}") };
        assert!(!why.to_string().contains('\n'), "{what}: {why}");
    }
    assert!(matches!(pods(&" ".repeat(LONGEST + 1)), Err(ManifestFileError::TooLong)));
}
