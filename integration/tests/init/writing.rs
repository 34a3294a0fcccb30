//! Every form in which an init container calls the program writes the intended rules.

use crate::pod::{INJECTED, PROXY, Pod};
use std::fs;

/// The injector's default arguments as a policy file.
const DEFAULTS: &str = "{}";

#[test]
fn the_injectors_arguments_write_exactly_the_policy_and_the_pod_is_redirected() {
    let pod = Pod::new();
    let _proxy = pod.listen(PROXY, "envoy", &[15001, 15006]);
    assert_eq!(pod.connect_from_peer("10.244.0.10:8080"), "refused", "the control");
    let out = pod.succeed(&format!("istio-iptables {INJECTED}"));
    assert_eq!(out.lines().count(), 1, "{out}");
    pod.assert_rules_of(DEFAULTS);
    assert_eq!(pod.connect_from_app("10.1.2.3:80"), "envoy:15001 orig=10.1.2.3:80 src=10.244.0.10");
    assert_eq!(pod.connect_from_peer("10.244.0.10:8080"), "envoy:15006 orig=10.244.0.10:8080 src=10.244.0.1");
    let before = pod.rules();
    pod.succeed(&format!("init {INJECTED}"));
    assert_eq!(pod.rules().lines().count(), before.lines().count(), "a second run changes nothing");
}

#[test]
fn every_name_of_the_program_writes_the_same_rules() {
    for (script, policy) in [
        ("exec \"$GYBE\" istio-iptables \"$@\"", DEFAULTS),
        ("exec \"$GYBE\" init istio-iptables \"$@\"", DEFAULTS),
        // An image whose entry point is a link of that name.
        ("d=$(mktemp -d); ln -s \"$GYBE\" $d/istio-iptables; $d/istio-iptables \"$@\"; rm -r $d", DEFAULTS),
        (
            "unset x; ISTIO_OUTBOUND_OWNER_GROUPS=5 exec \"$GYBE\" init \"$@\"",
            r#"{"owner_groups_include": [5]}"#,
        ),
    ] {
        let pod = Pod::new();
        let run = pod.script(script, INJECTED);
        assert_eq!((run.code, run.err.as_str()), (Some(0), ""), "{script}");
        pod.assert_rules_of(policy);
    }
}

#[test]
fn flags_without_a_command_have_their_meaning_in_istio_1_0() {
    let pod = Pod::new();
    let _proxy = pod.listen(PROXY, "envoy", &[15001]);
    pod.succeed("-p 15001 -u 1337 -m REDIRECT -i * -x '' -b 80,8080 -d ''");
    pod.assert_rules_of(r#"{"inbound_capture_port": 15001, "inbound_ports_include": [80, 8080]}"#);
    assert_eq!(pod.connect_from_peer("10.244.0.10:8080"), "envoy:15001 orig=10.244.0.10:8080 src=10.244.0.1");
    pod.succeed("-p 15001 -z 15006 -u 1337 -m REDIRECT -i * -x '' -b * -d 15090,15021,15020");
    pod.assert_rules_of(DEFAULTS);
}

#[test]
fn arguments_that_capture_nothing_have_a_note_and_those_of_the_readme_capture() {
    const NOTHING: &str =
        "these arguments capture nothing: -i (outbound addresses) and -b (inbound ports) are empty";
    let pod = Pod::new();
    let _proxy = pod.listen(PROXY, "envoy", &[15001, 15006]);
    let run = pod.gybe("istio-iptables -p 15001 -z 15006 -u 1337");
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(run.err.contains(NOTHING) && run.out.starts_with("nothing is captured: "), "{run:?}");
    assert_eq!(pod.connect_from_peer("10.244.0.10:8080"), "refused");
    for line in ["init --dry-run -p 15001", "validate -i '' -b '' --probe-timeout 100ms"] {
        let run = pod.gybe(line);
        assert!(run.err.contains(NOTHING), "{line}: {run:?}");
    }

    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let examples: Vec<String> = readme
        .lines()
        .filter(|line| line.starts_with("gybe istio-iptables ") || line.starts_with("gybe init "))
        .filter_map(|line| Some(line.split_once(" #")?.0.trim().strip_prefix("gybe ")?.replace("'*'", "*")))
        .collect();
    assert_eq!(examples.len(), 2, "{readme}");
    for example in examples {
        let run = pod.gybe(&example.replace(" --dry-run", ""));
        assert_eq!((run.code, run.err.as_str()), (Some(0), ""), "{example}: {run:?}");
        assert_eq!(
            pod.connect_from_app("10.1.2.3:80"),
            "envoy:15001 orig=10.1.2.3:80 src=10.244.0.10",
            "{example}"
        );
        let inbound = pod.connect_from_peer("10.244.0.10:8080");
        assert_eq!(inbound, "envoy:15006 orig=10.244.0.10:8080 src=10.244.0.1", "{example}");
    }
}

#[test]
fn tproxy_adds_its_routes_and_cleanup_removes_them() {
    let pod = Pod::new();
    pod.succeed(&format!("istio-iptables {INJECTED} -m TPROXY"));
    pod.assert_rules_of(r#"{"mode": "TPROXY"}"#);
    assert!(pod.run_program("ip rule").contains("lookup 133"));
    pod.succeed("istio-iptables --cleanup-only");
    assert_eq!(pod.rules(), "");
    assert!(!pod.run_program("ip rule").contains("lookup 133"));
}

#[test]
fn ipv6_depends_on_the_pods_addresses_and_arguments() {
    let dual = || Pod::with_addresses("10.244.0.10/24 fd00:10::10/64", "10.244.0.1/24 fd00:10::1/64");
    let pod = dual();
    let run = pod.gybe(&format!("istio-iptables {INJECTED}"));
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(run.err.contains("its IPv6 is left alone"), "{}", run.err);
    pod.assert_rules_of(r#"{"enable_ipv6": false}"#);
    pod.succeed(&format!("istio-iptables {INJECTED} --dual-stack"));
    pod.assert_rules_of(r#"{"enable_ipv6": true}"#);

    let pod = Pod::with_addresses("fd00:10::10/64", "fd00:10::1/64");
    pod.succeed(&format!("istio-iptables {INJECTED} --run-validation"));
    pod.assert_rules_of(r#"{"enable_ipv6": true}"#);
}

#[test]
fn dns_is_captured_for_the_servers_of_the_pods_own_resolv_conf() {
    let script = r#"
        f=$(mktemp); printf 'search a.svc\nnameserver 10.96.0.10\nnameserver fd00:96::10\n' > "$f"
        exec unshare --mount sh -euc '
            f="$1"; shift; mount --bind "$f" "$(readlink -f /etc/resolv.conf)"; rm "$f"; exec "$GYBE" "$@"' x "$f" "$@""#;
    let pod = Pod::new();
    let run = pod.script(script, &format!("istio-iptables {INJECTED} --redirect-dns"));
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    pod.assert_rules_of(
        r#"{"redirect_dns": true, "dns_servers_v4": ["10.96.0.10"], "dns_servers_v6": ["fd00:96::10"]}"#,
    );
    // Capturing all DNS needs no list of servers, so the file is not read.
    let run = pod.script(
        "exec unshare --mount sh -euc 'mount --bind /dev/zero \"$(readlink -f /etc/resolv.conf)\"; exec \"$GYBE\" \"$@\"' x \"$@\"",
        &format!("istio-iptables {INJECTED} --redirect-dns --capture-all-dns"),
    );
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    pod.assert_rules_of(r#"{"redirect_dns": true, "capture_all_dns": true}"#);
}
