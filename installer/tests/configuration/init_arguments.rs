//! The arguments of `istio-iptables`: every form that pflag accepts, the lists with which Istio's injector calls it,
//! and the policy of each.

use gybe_installer::pod::init_args::{InitArgs, InitArgsError, RunOption, ValidationOptions};
use gybe_installer::pod::policy_file::{Families, PolicyFile};
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::model::policy::{Dns, Port, RedirectPolicy};
use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

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
        ("--drop-invalid", [("INVALID_DROP", "0")], "--drop-invalid"),
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

/// pflag sets the flag to false when it cannot read the value.
#[test]
fn of_two_variables_of_a_flag_the_additional_one_counts_even_if_it_is_unreadable() {
    for (own, additional, flag) in [
        ("REDIRECT_DNS", "ISTIO_META_DNS_CAPTURE", "--redirect-dns --capture-all-dns"),
        ("DUAL_STACK", "ISTIO_DUAL_STACK", "--dual-stack"),
        ("DROP_INVALID", "INVALID_DROP", "--drop-invalid"),
    ] {
        let (flag, common) = flag.split_once(' ').unwrap_or((flag, ""));
        let families = |line: &str, environment: &[(&str, &str)]| {
            read(line, environment).unwrap().policy(&[]).unwrap_or_else(|e| panic!("{line}: {e:?}"))
        };
        for (values, set) in [
            (["true", "false"], false),
            (["false", "true"], true),
            (["true", ""], false),
            (["yes", "1"], true),
        ] {
            let variables = [(own, values[0]), (additional, values[1])];
            let expected = if set { format!("{common} {flag}") } else { common.to_owned() };
            assert_eq!(families(common, &variables), families(&expected, &[]), "{variables:?}");
        }
    }
}

#[test]
fn a_variable_that_is_neither_true_nor_false_has_a_note_and_an_argument_is_an_error() {
    for (variable, value) in [
        ("ISTIO_META_DNS_CAPTURE", ""),
        ("REDIRECT_DNS", "yes"),
        ("ISTIO_DUAL_STACK", "on"),
        ("DRY_RUN", " true"),
        ("RUN_VALIDATION", "2"),
    ] {
        let args = read(INJECTED, &[(variable, value)]).unwrap();
        assert!(!args.requests(RunOption::DryRun) && !args.requests(RunOption::RunValidation));
        assert_eq!(policy(INJECTED, &[(variable, value)]), file("{}"), "{variable}");
        let [note] = args.notes().try_into().unwrap_or_else(|notes| panic!("{variable}: {notes:?}"));
        assert!(note.contains(variable) && note.contains("neither true nor false"), "{note}");
    }
    assert!(read("--redirect-dns=yes", &[]).is_err() && read("--dry-run=", &[]).is_err());
}

#[test]
fn words_that_are_no_argument_are_ignored_with_a_note() {
    for (line, words) in [
        ("-b 81 80", ["80"].as_slice()),
        ("80 -b 81", &["80"]),
        ("-b 81 --drop-invalid=false -", &["-"]),
        ("-b 81 -- -b 82 --envoy-prot", &["-b", "82", "--envoy-prot"]),
        ("-b 81 --", &[]),
    ] {
        assert_eq!(policy(line, &[]), policy("-b 81", &[]), "{line}");
        let notes = read(line, &[]).unwrap().notes().join("\n");
        assert_eq!(notes.lines().count(), words.len(), "{notes}");
        assert!(words.iter().all(|word| notes.contains(&format!("the word {word:?} is ignored"))), "{notes}");
    }
}

#[test]
fn numbers_ranges_and_modes_are_read_as_iptables_reads_them() {
    for (line, same) in [
        ("-b 4000:5000", "-b 4000-5000"),
        ("-b * -d :79,61001: -q 8000:8100", "-b * -d 0-79,61001-65535 -q 8000-8100"),
        ("-b +8080 -o 0x1f90 -p 0x3a99 -u 0x539", "-b 8080 -o 8080 -p 15001 -u 1337"),
        ("-m redirect", "-m REDIRECT"),
    ] {
        assert_eq!(policy(line, &[]), policy(same, &[]), "{line}");
    }
    let groups = policy("-i *", &[("ISTIO_OUTBOUND_OWNER_GROUPS", "0x10")]);
    assert_eq!(groups, policy("-i *", &[("ISTIO_OUTBOUND_OWNER_GROUPS", "16")]));
}

/// What `istio-iptables` accepts and Gybe refuses (docs/DIFFERENCES.md, section 4), with the reason in the error.
#[test]
fn values_without_a_clear_meaning_are_refused_with_the_reason() {
    for (line, why) in [
        ("-b 05000", "--istio-inbound-ports: \"05000\" has a leading zero, which iptables takes for octal"),
        ("-p 015001", "--envoy-port: \"015001\" has a leading zero"),
        ("-u 01337", "--proxy-uid: \"01337\" has a leading zero"),
        ("-g 0", ""),
        ("-b 5000:04000", "has a leading zero"),
        ("-b 5000:4000", "is reversed"),
        ("-b http", "\"http\" is not a port"),
        (
            "-u 1000-2000",
            "--proxy-uid: \"1000-2000\" is not a numeric id from 0 to 4294967294; ranges are not supported",
        ),
        ("-c eth+", "--istio-exclude-interfaces: "),
        ("-m NONE", "\"NONE\" is neither REDIRECT nor TPROXY"),
        ("-m tproxy", "\"tproxy\" is neither REDIRECT nor TPROXY"),
        ("-m TPROXY -t 0", "0 is the mark of every packet without a mark"),
        ("-m TPROXY -t 1338", "1338 already marks packets"),
        ("-m TPROXY -r 254", "routing table 254 is the kernel's own"),
        ("-m TPROXY -r 255", "routing table 255 is the kernel's own"),
    ] {
        let result = read(line, &[]).unwrap().policy(&[]);
        let cause = result.err().map(|error| error.source().unwrap().to_string()).unwrap_or_default();
        assert!(cause.contains(why) && cause.is_empty() == why.is_empty(), "{line}: {cause}");
    }
    let error = read("--iptables-probe-port 015002", &[]).unwrap_err().to_string();
    assert!(error.contains("--iptables-probe-port is \"015002\""), "{error}");
}

#[test]
fn the_proxys_user_is_looked_up_where_no_argument_names_a_uid() {
    let uid_of = |name: &str| (name == "istio-proxy").then_some(4000).or((name == "envoy").then_some(5000));
    let of = |line: &str, environment: &[(&str, &str)]| {
        let args = read(line, environment).unwrap().with_proxy_user(uid_of);
        let policy = args.policy(&[]).unwrap().with_families(Families::V4Only);
        (policy.proxy_uids.all().into_iter().collect::<Vec<_>>(), policy.proxy_gids.first, args.notes())
    };
    assert_eq!(of("-i *", &[]), (vec![4000], 4000, vec![]));
    assert_eq!(of("-i * -g 7", &[("ENVOY_USER", "envoy")]), (vec![5000], 7, vec![]));
    assert_eq!(of("-i * -u 1,2", &[("ENVOY_USER", "envoy")]), (vec![1, 2], 1, vec![]));
    let (uids, _, notes) = of("-i *", &[("ENVOY_USER", "nobody-here")]);
    assert_eq!(uids, [1337]);
    assert!(
        notes[0].contains("\"nobody-here\" in ENVOY_USER cannot be found in this container's /etc/passwd"),
        "{notes:?}"
    );
}

#[test]
fn orders_are_not_part_of_the_policy() {
    let args = read(&format!("{INJECTED} --run-validation --skip-rule-apply --dry-run=false"), &[]).unwrap();
    assert!(args.requests(RunOption::RunValidation) && args.requests(RunOption::SkipRuleApply));
    assert!(!args.requests(RunOption::DryRun) && !args.requests(RunOption::CleanupOnly));
}

#[test]
fn an_unknown_or_incomplete_argument_is_named() {
    for (line, expected) in [
        ("--envoy-prot 1", "\"--envoy-prot\" is not an argument"),
        ("-y 1", "\"-y\" is not an argument"),
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

fn parse(line: &str) -> InitArgs {
    let words: Vec<String> = line.split(' ').map(|word| word.replace("''", "")).collect();
    InitArgs::read(&words, &BTreeMap::new()).unwrap_or_else(|e| panic!("{line}: {e}"))
}

fn policy_of(args: &InitArgs) -> RedirectPolicy {
    args.policy(&[]).unwrap_or_else(|e| panic!("{e:?}")).with_families(Families::V4Only)
}

#[test]
fn every_argument_list_of_the_injector_has_its_policy() {
    for (line, text) in FORMS {
        let init = parse(&format!("istio-iptables -p 15001 -z 15006 {line} --log_output_level=default:info"));
        assert_eq!(policy_of(&init), file(text), "{line}");
        assert!(
            !init.requests(RunOption::SkipRuleApply) && !init.requests(RunOption::RunValidation),
            "{line}"
        );
        assert_eq!(init.notes(), [""; 0], "{line}");
        let validation =
            format!("istio-iptables -p 15001 -z 15006 {line} --run-validation --skip-rule-apply");
        let validation = parse(&validation);
        assert_eq!(policy_of(&validation), file(text), "{line}");
        assert!(
            validation.requests(RunOption::SkipRuleApply) && validation.requests(RunOption::RunValidation),
            "{line}"
        );
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
        assert_eq!(policy_of(&parse(line).with_one_port()), file(text), "{line}");
    }
    assert_eq!(policy_of(&parse("-p 16001 -i * -b *")).inbound_port.get(), 15006, "a current istio-iptables");
}

#[test]
fn a_command_line_that_begins_with_a_flag_of_istio_iptables_is_recognized() {
    for word in ["-p", "-p15001", "-nf", "--envoy-port", "--envoy-port=1", "--dry-run", "--log_caller"] {
        assert!(InitArgs::is_flag(word), "{word}");
    }
    for word in ["", "-", "--", "-h", "-V", "--help", "--version", "--json", "apply", "15001", "p"] {
        assert!(!InitArgs::is_flag(word), "{word}");
    }
}

#[test]
fn options_that_are_not_part_of_the_policy_are_read() {
    let options = parse("--iptables-probe-port 16002 --probe-timeout=1m30s").validation();
    assert_eq!(
        options,
        ValidationOptions { port: Port::new(16002).unwrap(), timeout: Duration::from_secs(90) }
    );
    let default = ValidationOptions::default();
    assert_eq!(parse("--probe-timeout=").validation(), default);
    assert_eq!((default.port.get(), default.timeout.as_secs()), (15002, 5));
    for (line, backend) in [
        ("-n", BackendKind::Nft),
        ("--force-iptables-binary legacy", BackendKind::IptablesLegacy),
        ("--force-iptables-binary nft", BackendKind::Nft),
        ("--force-iptables-binary legacy --native-nftables", BackendKind::Nft),
    ] {
        assert_eq!(parse(line).backend(), backend, "{line}");
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
        assert_eq!(parse(line).needs_dns_servers(), needed, "{line}");
    }
}
