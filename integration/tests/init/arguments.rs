//! The arguments of the init container that are not part of the policy, and those without effect; the refusal of a
//! node's namespace, since `gybe init` writes into the namespace it runs in.

use crate::pod::{INJECTED, Pod};
use gybe_integration::programs::run;
use std::path::Path;

#[test]
fn a_dry_run_prints_the_rules_that_would_be_written_and_writes_none() {
    let pod = Pod::new();
    let script = pod.succeed(&format!("istio-iptables {INJECTED} --dry-run"));
    assert_eq!(pod.rules(), "");
    pod.succeed(&format!("istio-iptables {INJECTED}"));
    let written = pod.rules();
    let printed = pod.succeed(&format!("istio-iptables {INJECTED} -n"));
    assert_eq!(printed, script);
    assert_eq!(pod.rules(), written);
    assert_eq!(pod.succeed("istio-iptables -n --cleanup-only"), "table inet gybe\ndelete table inet gybe\n");
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
    pod.succeed("istio-iptables --cleanup-only");
    pod.run_program("nft add table inet theirs");
    let theirs = pod.rules();
    pod.succeed(&format!("istio-iptables {INJECTED}"));
    pod.succeed("istio-iptables --cleanup-only");
    pod.succeed("init --cleanup-only=true");
    assert_eq!(pod.rules(), theirs);
}

#[test]
fn cleanup_removes_rules_in_legacy_tables() {
    let pod = Pod::new();
    let out = pod.succeed(&format!("istio-iptables {INJECTED} --force-iptables-binary legacy"));
    assert!(out.contains("with iptables-legacy"), "{out}");
    assert!(pod.run_program("iptables-legacy-save").contains("ISTIO_"));
    pod.succeed("istio-iptables --cleanup-only");
    assert!(!pod.run_program("iptables-legacy-save").contains("ISTIO_"));
}

#[test]
fn cleanup_without_privilege_warns_and_succeeds() {
    let pod = Pod::new();
    pod.succeed(&format!("istio-iptables {INJECTED}"));
    let run = pod.gybe_as(1337, "istio-iptables --cleanup-only");
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(run.out.contains("may be left") && run.err.contains("cannot clean up with nft"), "{run:?}");
    pod.assert_rules_of("{}");
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
        pod.assert_rules_of("{}");
    }
    let pod = Pod::new();
    for line in ["--native-nftables", "--force-apply", "--restore-format=false", "--cni-mode=false"] {
        pod.succeed(&format!("istio-iptables {INJECTED} {line}"));
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

/// A sysctl that exists in the kernel's first network namespace only.
const SYSCTL_OF_THE_FIRST: &str = "/proc/sys/net/core/netdev_max_backlog";

/// Makes this namespace look like the first one of its kernel.
const AS_THE_FIRST: &str =
    "mount -t tmpfs none /proc/sys/net/core; : > /proc/sys/net/core/netdev_max_backlog";

/// Makes this container look like one of a pod with `hostNetwork: true`.
const WITH_HOST_NETWORK: &str = "mount -t tmpfs none /mnt; \
     echo '# Kubernetes-managed hosts file (host network).' > /mnt/hosts; mount --bind /mnt/hosts /etc/hosts";

fn with_mounts(how: &str) -> String {
    // The mounts are visible in this mount namespace only; rules would be written into the pod.
    format!("exec unshare --mount sh -euc \"{how}; exec \\\"\\$GYBE\\\" \\\"\\$@\\\"\" x \"$@\"")
}

#[test]
fn a_namespace_that_looks_like_a_nodes_is_refused() {
    for (how, evidence) in
        [(AS_THE_FIRST, "the one this kernel booted with"), (WITH_HOST_NETWORK, "/etc/hosts says")]
    {
        for line in [INJECTED, "--cleanup-only"] {
            let pod = Pod::new();
            pod.run_program("nft add table inet gybe");
            let before = pod.rules();
            let run = pod.script(&with_mounts(how), &format!("istio-iptables {line}"));
            assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{evidence}: {}", run.err);
            assert!(run.err.contains(evidence) && run.err.contains("--force-apply"), "{}", run.err);
            assert_eq!(pod.rules(), before);
        }
    }
}

#[test]
fn force_apply_overrides_the_refusal() {
    let pod = Pod::new();
    let run = pod.script(&with_mounts(AS_THE_FIRST), &format!("istio-iptables {INJECTED} --force-apply"));
    assert_eq!(run.code, Some(0), "{}", run.err);
    pod.assert_rules_of("{}");
}

#[test]
fn arguments_that_write_nothing_are_accepted_on_a_node() {
    let pod = Pod::new();
    for line in ["--dry-run", "--skip-rule-apply"] {
        let run = pod.script(&with_mounts(AS_THE_FIRST), &format!("istio-iptables {INJECTED} {line}"));
        assert_eq!(run.code, Some(0), "{line}: {}", run.err);
    }
}

#[test]
fn the_machines_own_namespace_is_refused() {
    // Without CAP_NET_ADMIN the program cannot write into the machine's namespace even if the check is broken.
    let gybe = gybe_integration::programs::path_of_ours("gybe").unwrap();
    let harmless = ["--inh-caps=-all", "--bounding-set=-net_admin", "--"];
    let line = [&gybe.to_string_lossy(), "istio-iptables", "-b", "*", "-i", "*"];
    let arguments: Vec<&str> = harmless.into_iter().chain(line).collect();
    let run = run("setpriv", &arguments, "").unwrap();
    assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{}", run.err);
    let refused = run.err.contains("seems to be a node's and not a pod's");
    assert_eq!(refused, Path::new(SYSCTL_OF_THE_FIRST).exists(), "{}", run.err);
}

#[test]
fn other_namespaces_do_not_have_the_sysctl_of_the_first() {
    let pod = Pod::new();
    assert!(!pod.inside.run(|| Path::new(SYSCTL_OF_THE_FIRST).exists()).unwrap());
}
