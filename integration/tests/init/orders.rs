//! The arguments of the init container that are not part of the policy, and those without effect.

use crate::pod::{INJECTED, Pod};

#[test]
fn a_dry_run_prints_the_rules_that_would_be_written_and_writes_none() {
    let pod = Pod::new();
    let script = pod.done(&format!("istio-iptables {INJECTED} --dry-run"));
    assert_eq!(pod.rules(), "");
    pod.done(&format!("istio-iptables {INJECTED}"));
    let written = pod.rules();
    let printed = pod.done(&format!("istio-iptables {INJECTED} -n"));
    assert_eq!(printed, script);
    assert_eq!(pod.rules(), written);
    assert_eq!(pod.done("istio-iptables -n --cleanup-only"), "table inet gybe\ndelete table inet gybe\n");
    assert_eq!(pod.rules(), written);
    for rule in ["tunnel-port", "inbound-to-proxy", "proxy-to-own-pod-v4"] {
        assert!(script.contains(rule) && written.contains(rule), "{script}");
    }
}

#[test]
fn a_dry_run_without_an_address_prints_ipv4_rules_and_a_note() {
    let pod = Pod::new();
    pod.run_program("ip addr flush dev eth0");
    let run = pod.gybe(&format!("istio-iptables {INJECTED} --dry-run"));
    assert_eq!(run.code, Some(0));
    assert!(run.out.contains("table inet gybe") && run.err.contains("no address"), "{run:?}");
    let run = pod.gybe(&format!("istio-iptables {INJECTED}"));
    assert_eq!((run.code, run.out.as_str()), (Some(2), ""));
    assert!(run.err.contains("has no address") && run.err.contains("hint: "), "{}", run.err);
    assert_eq!(pod.rules(), "");
}

#[test]
fn cleanup_removes_gybes_rules_only_and_succeeds_without_any() {
    let pod = Pod::new();
    pod.done("istio-iptables --cleanup-only");
    pod.run_program("nft add table inet theirs");
    let theirs = pod.rules();
    pod.done(&format!("istio-iptables {INJECTED}"));
    pod.done("istio-iptables --cleanup-only");
    pod.done("init --cleanup-only=true");
    assert_eq!(pod.rules(), theirs);
}

#[test]
fn cleanup_removes_what_iptables_legacy_has_written() {
    let pod = Pod::new();
    let out = pod.done(&format!("istio-iptables {INJECTED} --force-iptables-binary legacy"));
    assert!(out.contains("with iptables-legacy"), "{out}");
    assert!(pod.run_program("iptables-legacy-save").contains("ISTIO_"));
    pod.done("istio-iptables --cleanup-only");
    assert!(!pod.run_program("iptables-legacy-save").contains("ISTIO_"));
}

#[test]
fn cleanup_without_privilege_names_what_may_be_left_and_succeeds() {
    let pod = Pod::new();
    pod.done(&format!("istio-iptables {INJECTED}"));
    let run = pod.gybe_as(1337, "istio-iptables --cleanup-only");
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(run.out.contains("may be left") && run.err.contains("cannot clean up with nft"), "{run:?}");
    pod.holds_exactly("{}");
}

#[test]
fn every_argument_without_effect_has_a_note() {
    for (line, expected) in [
        ("--force-iptables-binary=nft", "--force-iptables-binary nft has no effect"),
        ("--reconcile", "--reconcile has no effect"),
        ("--iptables-version 1.8.9", "--iptables-version is ignored"),
        ("--cni-mode", "--cni-mode is ignored"),
        ("--iptables-trace-logging", "--iptables-trace-logging is ignored"),
    ] {
        let pod = Pod::new();
        let run = pod.gybe(&format!("istio-iptables {INJECTED} {line}"));
        assert_eq!((run.code, run.err.lines().count()), (Some(0), 1), "{line}: {}", run.err);
        assert!(run.err.contains(expected), "{line}: {}", run.err);
        pod.holds_exactly("{}");
    }
    let pod = Pod::new();
    for line in ["--native-nftables", "--force-apply", "--restore-format=false", "--cni-mode=false"] {
        pod.done(&format!("istio-iptables {INJECTED} {line}"));
    }
}

#[test]
fn invalid_arguments_change_nothing() {
    let pod = Pod::new();
    for (line, expected) in [
        ("--network-namespace /run/netns/x", "use gybe apply --netns /run/netns/x"),
        ("--force-iptables-binary quick", "which is not legacy or nft"),
        ("--run-validation --probe-timeout soon", "which is not a time like 5s"),
        ("--run-validation --iptables-probe-port 0", "which is not a port"),
        ("-p http", "--envoy-port"),
        ("--envoy-prot 1", "is not an argument of istio-iptables"),
    ] {
        let run = pod.gybe(&format!("istio-iptables --skip-rule-apply=false {INJECTED} {line}"));
        assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{line}");
        assert!(run.err.contains(expected), "{line}: {}", run.err);
        assert_eq!(pod.rules(), "", "{line}");
    }
}
