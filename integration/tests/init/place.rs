//! `gybe init` writes into the namespace it runs in, so it refuses a node's namespace.

use crate::pod::{INJECTED, Pod};
use gybe_integration::programs::run;
use std::path::Path;

/// A sysctl that exists in the kernel's first network namespace only.
const FIRST: &str = "/proc/sys/net/core/netdev_max_backlog";

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
    pod.holds_exactly("{}");
}

#[test]
fn arguments_that_write_nothing_work_on_a_node_too() {
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
    assert_eq!(refused, Path::new(FIRST).exists(), "{}", run.err);
}

#[test]
fn the_kernel_has_that_sysctl_in_no_other_namespace() {
    let pod = Pod::new();
    assert!(!pod.inside.run(|| Path::new(FIRST).exists()).unwrap());
}
