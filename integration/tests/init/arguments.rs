//! The arguments of the init container: every form in which it calls the program writes the intended rules; those
//! that are not part of the policy, and those without effect; the refusal of a node's namespace, since `gybe init`
//! writes into the namespace it runs in.

use crate::{INJECTED, PROXY, Pod};
use gybe_integration::programs::run;
use gybe_test_support::TestDir;
use std::fs;
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
fn the_proxys_user_is_read_from_the_containers_passwd_and_a_dry_run_fills_the_file_of_its_variable() {
    let pod = Pod::new();
    let directory = TestDir::new("init-passwd");
    let passwd = directory.write("passwd", "envoy:x:4242:4243::/:/bin/false\n");
    let printed = directory.join("printed");
    let script = format!(
        "export ENVOY_USER=envoy DRY_RUN_FILE_PATH={}; exec unshare -m sh -euc \"mount --bind {} /etc/passwd; exec \
         $GYBE istio-iptables -i 0.0.0.0/0 -n\"",
        printed.display(),
        passwd.display()
    );
    let run = pod.script(&script, "");
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    assert!(run.out.contains("skuid 4242") && run.out.contains("skgid 4242"), "{}", run.out);
    assert_eq!(fs::read_to_string(printed).unwrap(), run.out);
    assert_eq!(pod.rules(), "");
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

    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/TRY.md")).unwrap();
    let examples: Vec<String> = page
        .lines()
        .filter(|line| line.starts_with("gybe istio-iptables ") || line.starts_with("gybe init "))
        .filter_map(|line| Some(line.split_once(" #")?.0.trim().strip_prefix("gybe ")?.replace("'*'", "*")))
        .collect();
    assert_eq!(examples.len(), 2, "{page}");
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
