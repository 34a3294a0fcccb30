//! The argument lists with which Istio's injector calls `istio-iptables`, each with its policy.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use gybe_installer::pod::init_args::{InitArgs, Order, ValidationOptions};
use gybe_installer::pod::policy_file::{Families, PolicyFile};
use gybe_netfilter::backend::BackendKind;
use gybe_netfilter::policy::{Port, RedirectPolicy};
use std::collections::BTreeMap;
use std::time::Duration;

/// The arguments between the ports and the log level, and their policy.
const FORMS: [(&str, &str); 11] = [
    ("-u 1337 -m REDIRECT -i * -x '' -b * -d 15090,15021,15020", "{}"),
    ("-u 1000629999 -m REDIRECT -i * -x '' -b * -d 15090,15021,15020", r#"{"proxy_uids": [1000629999]}"#),
    ("-u 1234 -m REDIRECT -i * -x '' -b * -d 15090,15021,15020", r#"{"proxy_uids": [1234]}"#),
    ("-u 1337 -m TPROXY -i * -x '' -b * -d 15090,15021,15020", r#"{"mode": "TPROXY"}"#),
    ("-u 1234 -m TPROXY -i * -x '' -b * -d 15090,15021,15020", r#"{"mode": "TPROXY", "proxy_uids": [1234]}"#),
    (
        "-u 1337 -m REDIRECT -i * -x '' -b * -d 15090,15021,123",
        r#"{"inbound_ports_exclude": [123, 15021, 15090]}"#,
    ),
    ("-u 1337 -m REDIRECT -i * -x '' -b * -d 15090,15021", r#"{"inbound_ports_exclude": [15021, 15090]}"#),
    (
        "-u 1337 -m REDIRECT -i * -x '' -b * -d 15090,15021,123 -k vm0ps2",
        r#"{"inbound_ports_exclude": [123, 15021, 15090], "reroute_virtual_interfaces": ["vm0ps2"]}"#,
    ),
    (
        "-u 1337 -m REDIRECT -i * -x '' -b * -d 15090,15021,15020 -k vm1,vm2",
        r#"{"reroute_virtual_interfaces": ["vm1", "vm2"]}"#,
    ),
    (
        "-u 1337 -m REDIRECT -i '' -x 10.96.2.7/24,10.96.3.7/24 -b '' -d 15090,15021,4,5,15020",
        r#"{"outbound_cidrs_include": [], "outbound_cidrs_exclude": ["10.96.2.0/23"],
            "inbound_ports_include": []}"#,
    ),
    (
        "-u 1337 -m REDIRECT -i 127.0.0.1/24,10.96.0.1/24 -x 10.96.2.7/24,10.96.3.7/24 -b 1,2,3 -d 4,5 -o 7,8,9",
        r#"{"outbound_cidrs_include": ["127.0.0.0/24", "10.96.0.0/24"], "outbound_cidrs_exclude": ["10.96.2.0/23"],
            "inbound_ports_include": [1, 2, 3], "outbound_ports_exclude": ["7-9"]}"#,
    ),
];

fn read(line: &str) -> InitArgs {
    let words: Vec<String> = line.split(' ').map(|word| word.replace("''", "")).collect();
    InitArgs::read(&words, &BTreeMap::new()).unwrap_or_else(|e| panic!("{line}: {e}"))
}

fn policy(args: &InitArgs) -> RedirectPolicy {
    args.policy(&[]).unwrap_or_else(|e| panic!("{e:?}")).with_families(Families::V4Only)
}

fn file(text: &str) -> RedirectPolicy {
    PolicyFile::parse(text).unwrap().with_families(Families::V4Only)
}

#[test]
fn every_argument_list_of_the_injector_has_its_policy() {
    for (line, text) in FORMS {
        let init = read(&format!("istio-iptables -p 15001 -z 15006 {line} --log_output_level=default:info"));
        assert_eq!(policy(&init), file(text), "{line}");
        assert!(!init.orders(Order::SkipRuleApply) && !init.orders(Order::RunValidation), "{line}");
        assert_eq!(init.notes(), [""; 0], "{line}");
        let validation =
            format!("istio-iptables -p 15001 -z 15006 {line} --run-validation --skip-rule-apply");
        let validation = read(&validation);
        assert_eq!(policy(&validation), file(text), "{line}");
        assert!(validation.orders(Order::SkipRuleApply) && validation.orders(Order::RunValidation), "{line}");
    }
}

#[test]
fn the_bare_form_of_istio_1_0_has_one_port_for_both_directions() {
    for (line, text) in [
        (
            "-p 15001 -u 1337 -m REDIRECT -i * -x '' -b 80,443 -d ''",
            r#"{"inbound_capture_port": 15001, "inbound_ports_include": [80, 443]}"#,
        ),
        (
            "-p 16001 -u 1337 -m TPROXY -i 10.0.0.0/8 -x '' -b * -d 22",
            r#"{"proxy_port": 16001, "inbound_capture_port": 16001, "mode": "TPROXY",
                "outbound_cidrs_include": ["10.0.0.0/8"], "inbound_ports_exclude": [22]}"#,
        ),
        // Since Istio 1.3 the injector sets the second port.
        ("-p 15001 -z 15006 -u 1337 -m REDIRECT -i * -x '' -b * -d 15090,15021,15020", "{}"),
        (
            "-u 1337 -m REDIRECT -i * -x '' -b *",
            r#"{"inbound_capture_port": 15001, "inbound_ports_exclude": []}"#,
        ),
    ] {
        assert_eq!(policy(&read(line).with_one_port()), file(text), "{line}");
    }
    assert_eq!(policy(&read("-p 16001 -i * -b *")).inbound_port.get(), 15006, "a current istio-iptables");
}

#[test]
fn a_command_line_that_begins_with_a_flag_of_istio_iptables_is_recognised() {
    for word in ["-p", "-p15001", "-nf", "--envoy-port", "--envoy-port=1", "--dry-run", "--log_caller"] {
        assert!(InitArgs::is_flag(word), "{word}");
    }
    for word in ["", "-", "--", "-h", "-V", "--help", "--version", "--json", "apply", "15001", "p"] {
        assert!(!InitArgs::is_flag(word), "{word}");
    }
}

#[test]
fn options_that_are_not_part_of_the_policy_are_read() {
    let options = read("--iptables-probe-port 16002 --probe-timeout=1m30s").validation();
    assert_eq!(
        options,
        ValidationOptions { port: Port::new(16002).unwrap(), timeout: Duration::from_secs(90) }
    );
    let default = ValidationOptions::default();
    assert_eq!(read("--probe-timeout=").validation(), default);
    assert_eq!((default.port.get(), default.timeout.as_secs()), (15002, 5));
    for (line, backend) in [
        ("-n", BackendKind::Nft),
        ("--force-iptables-binary legacy", BackendKind::IptablesLegacy),
        ("--force-iptables-binary nft", BackendKind::Nft),
        ("--force-iptables-binary legacy --native-nftables", BackendKind::Nft),
    ] {
        assert_eq!(read(line).backend(), backend, "{line}");
    }
    let environment = [("CNI_MODE", "true"), ("RECONCILE", "true"), ("NETWORK_NAMESPACE", "/x")];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let args = InitArgs::read(&[], &environment).unwrap();
    assert_eq!(args.network_namespace(), Some("/x"));
    assert_eq!(args.notes().len(), 2);
    assert!(args.notes().iter().any(|note| note.starts_with("note: CNI_MODE is ignored")));
}

#[test]
fn the_pods_dns_servers_are_needed_only_if_the_policy_depends_on_them() {
    for (line, needed) in [
        ("-n", false),
        ("--redirect-dns", true),
        ("--capture-all-dns", false),
        ("--redirect-dns --capture-all-dns", false),
        ("--redirect-dns --capture-all-dns=false", true),
    ] {
        assert_eq!(read(line).needs_dns_servers(), needed, "{line}");
    }
}
