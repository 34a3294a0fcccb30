//! The arguments of `istio-iptables`: every form that pflag accepts, and their policy.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use gybe_installer::pod::init_args::{InitArgs, InitArgsError, Order};
use gybe_installer::pod::policy_file::{Families, PolicyFile};
use gybe_netfilter::policy::{Dns, RedirectPolicy};
use std::collections::BTreeMap;
use std::error::Error;

fn read(line: &str, environment: &[(&str, &str)]) -> Result<InitArgs, InitArgsError> {
    let args: Vec<String> = line.split(' ').filter(|w| !w.is_empty()).map(|w| w.replace("''", "")).collect();
    let environment: BTreeMap<String, String> =
        environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    InitArgs::read(&args, &environment)
}

fn policy(line: &str, environment: &[(&str, &str)]) -> RedirectPolicy {
    let file = read(line, environment).and_then(|args| args.policy(&["10.96.0.10".parse().unwrap()]));
    file.unwrap_or_else(|e| panic!("{line}: {e:?}")).with_families(Families::V4Only)
}

fn file(text: &str) -> RedirectPolicy {
    PolicyFile::parse(text).unwrap().with_families(Families::V4Only)
}

/// The injector's arguments for a pod without annotations.
const INJECTED: &str = "-p 15001 -z 15006 -u 1337 -m REDIRECT -i * -x '' -b * -d 15090,15021,15020";

#[test]
fn the_injectors_default_arguments_equal_an_empty_policy_file() {
    let line = format!("istio-iptables {INJECTED} --log_output_level=default:info");
    assert_eq!(policy(&line, &[]), file("{}"));
}

#[test]
fn without_arguments_nothing_is_captured() {
    let nothing =
        r#"{"inbound_ports_include": [], "inbound_ports_exclude": [], "outbound_cidrs_include": []}"#;
    assert_eq!(policy("", &[]), file(nothing));
    for line in ["", "-p 15001 -z 15006 -u 1337", "-i '' -b '' -x 10.0.0.0/8", "--redirect-dns=false"] {
        assert!(policy(line, &[]).captures_nothing(), "{line}");
    }
    let no_group = [("ISTIO_OUTBOUND_OWNER_GROUPS", "")];
    assert!(policy("-i *", &no_group).captures_nothing());
    for line in [INJECTED, "-b 80", "-i 10.0.0.0/8", "-q 443", "--redirect-dns"] {
        assert!(!policy(line, &[]).captures_nothing(), "{line}");
    }
}

#[test]
fn every_form_of_a_flag_has_the_same_meaning() {
    let expected = policy("-p 16001 -b 80,81", &[]);
    for line in [
        "-p16001 -b80,81",
        "-p=16001 -b=80,81",
        "--envoy-port 16001 --istio-inbound-ports 80,81",
        "--envoy-port=16001 --istio-inbound-ports=,80,,81,",
        "-p 1 -b 7 -p 16001 -b 80,81",
        "-nfp 16001 -fb80,81 -u ''",
        "--log_as_json --log_target stdout --dry-run -p 16001 --probe-timeout 5s -b 80,81",
    ] {
        assert_eq!(policy(line, &[]), expected, "{line}");
    }
}

#[test]
fn every_flag_sets_its_key_of_the_policy() {
    for (line, text) in [
        ("-z 16006 -e 16008", r#""inbound_capture_port": 16006, "inbound_tunnel_port": 16008"#),
        ("-u 5,6 -g 7", r#""proxy_uids": [5, 6], "proxy_gids": [7]"#),
        ("-u 5", r#""proxy_uids": [5], "proxy_gids": [5]"#),
        ("-m TPROXY -t 9 -r 200", r#""mode": "TPROXY", "tproxy_mark": 9, "tproxy_route_table": 200"#),
        ("-m ''", r#""mode": "REDIRECT""#),
        ("-q 80 -o 90,91", r#""outbound_ports_include": [80], "outbound_ports_exclude": [90, 91]"#),
        ("-x 10.0.0.0/8,fd00::/8", r#""outbound_cidrs_exclude": ["10.0.0.0/8", "fd00::/8"]"#),
        (
            "-c net1 -k eth1,eth2",
            r#""exclude_interfaces": ["net1"], "reroute_virtual_interfaces": ["eth1", "eth2"]"#,
        ),
        ("--drop-invalid", r#""drop_invalid": true"#),
        ("--drop-invalid=false", r#""drop_invalid": false"#),
        ("--redirect-dns --capture-all-dns", r#""redirect_dns": true, "capture_all_dns": true"#),
    ] {
        let none = r#""inbound_ports_include": [], "outbound_cidrs_include": []"#;
        assert_eq!(policy(line, &[]), file(&format!("{{{none}, {text}}}")), "{line}");
    }
}

#[test]
fn dns_without_capture_all_is_captured_for_the_pods_own_servers() {
    let dns = policy("--redirect-dns", &[]).dns;
    assert_eq!(dns, Dns::Servers(["10.96.0.10".parse::<std::net::IpAddr>().unwrap()].into_iter().collect()));
}

#[test]
fn arguments_override_variables() {
    for (line, environment, same) in [
        ("", [("ISTIO_INBOUND_PORTS", "80")], "-b 80"),
        ("-b 81", [("ISTIO_INBOUND_PORTS", "80")], "-b 81"),
        ("", [("ENVOY_PORT", "80")], ""),
        ("", [("ISTIO_META_DNS_CAPTURE", "true")], "--redirect-dns"),
        ("", [("INVALID_DROP", "1")], "--drop-invalid"),
        ("--drop-invalid=f", [("INVALID_DROP", "1")], ""),
    ] {
        assert_eq!(policy(line, &environment), policy(same, &[]), "{line} {environment:?}");
    }
    let groups = policy(INJECTED, &[("ISTIO_OUTBOUND_OWNER_GROUPS", "2,3")]);
    assert_eq!(groups, file(r#"{"owner_groups_include": [2, 3]}"#));
    let no_group = policy(INJECTED, &[("ISTIO_OUTBOUND_OWNER_GROUPS", "")]);
    assert_eq!(no_group, file(r#"{"owner_groups_include": []}"#));
    let loopback = policy(INJECTED, &[("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "127.0.0.1/8")]);
    assert_eq!(loopback, file(r#"{"loopback_cidr_v4": "127.0.0.1/8"}"#));
}

#[test]
fn orders_are_not_part_of_the_policy() {
    let args = read(&format!("{INJECTED} --run-validation --skip-rule-apply --dry-run=false"), &[]).unwrap();
    assert!(args.orders(Order::RunValidation) && args.orders(Order::SkipRuleApply));
    assert!(!args.orders(Order::DryRun) && !args.orders(Order::CleanupOnly));
}

#[test]
fn an_unknown_or_incomplete_argument_is_named() {
    for (line, expected) in [
        ("--envoy-prot 1", "\"--envoy-prot\" is not an argument"),
        ("-y 1", "\"-y\" is not an argument"),
        ("80", "\"80\" is not an argument"),
        ("-", "\"-\" is not an argument"),
        ("-p", "--envoy-port needs a value"),
        ("--envoy-port", "--envoy-port needs a value"),
        ("--drop-invalid=maybe", "\"maybe\", which is neither"),
        ("--owner-groups 5", "is not an argument"),
    ] {
        let error = read(line, &[]).unwrap_err().to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
    let error = read("-b x -u istio-proxy", &[]).unwrap().policy(&[]).unwrap_err();
    let cause = error.source().unwrap().to_string();
    assert!(cause.contains("--istio-inbound-ports: ") && cause.contains("--proxy-uid: "), "{cause}");
}
