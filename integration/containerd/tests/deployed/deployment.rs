//! The agent works with the rights and mounts of the manifests, on each generation of containerd.

use std::fs;

use gybe_containerd_tests::containerd::conf_files;
use gybe_containerd_tests::{Generation, Sandbox};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::daemonset_pod::{DaemonSetPod, set_config};
use crate::pod::{Destination, OutsideClient, RunningPod};

/// CAP_SETUID, CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_CHROOT, CAP_SYS_PTRACE and
/// CAP_SYS_ADMIN (include/uapi/linux/capability.h).
const REPAIR_CAPABILITIES: u64 = 1 << 7 | 1 << 10 | 1 << 12 | 1 << 13 | 1 << 18 | 1 << 19 | 1 << 21;

/// Returns Gybe's entry: a drop-in, or the last plugin of a list.
fn gybe_entry(cluster: &Cluster) -> Value {
    let files = conf_files(cluster.node.host()).unwrap();
    let last = |text: &String| {
        // A temporary file may be empty.
        let json: Value = serde_json::from_str(text).unwrap_or_default();
        let last = json["plugins"].as_array().and_then(|plugins| plugins.last().cloned());
        last.unwrap_or(json)
    };
    files.values().map(last).find(|last| last["type"] == "gybe-cni").unwrap_or_default()
}

/// Asserts that the containers have only these capabilities, cannot gain others, and have a system call filter.
fn assert_confined(agent: &DaemonSetPod<'_>) {
    for (container, capabilities) in [("install", 0), ("repair", REPAIR_CAPABILITIES)] {
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            let held = u64::from_str_radix(&agent.proc_status(container, set), 16).unwrap();
            assert_eq!(held, capabilities, "{container} {set} {held:x}");
        }
        let rest = ["NoNewPrivs", "Seccomp", "Uid"].map(|key| agent.proc_status(container, key));
        assert_eq!(rest, ["1", "2", "0\t0\t0\t0"], "{container}");
    }
}

fn assert_next_pod_is_redirected(cluster: &Cluster, name: &str) {
    let sandbox = Sandbox::injected("shop", name);
    cluster.schedule(&sandbox);
    let pod = RunningPod::in_sandbox(&cluster.node, cluster.node.cri.run(&sandbox).unwrap());
    let address = pod.addresses[0];
    assert_eq!(
        OutsideClient::new(&cluster.node).connect(address, 8080),
        Destination::proxy(15006, address, 8080)
    );
}

fn assert_deployment_works(generation: Generation) {
    let cluster = Cluster::new(generation);
    let agent = DaemonSetPod::start(&cluster);
    agent.wait_for("ready", || agent.is_ready());
    assert!(agent.is_alive());
    assert_confined(&agent);
    let report = cluster.node.host().path("/run/gybe/probe.json");
    assert!(report.is_file(), "no probe report:\n{}", agent.logs());
    agent.wait_for("an entry with the probe report", || gybe_entry(&cluster)["probed"]["backend"] == "nft");
    assert_next_pod_is_redirected(&cluster, "cart-0");

    // A changed ConfigMap takes effect without a restart.
    set_config(&cluster.node, &[("log_level", "debug")]);
    agent.wait_for("the entry has the new setting", || gybe_entry(&cluster)["log_level"] == "debug");
    assert!(agent.get(15014, "/metrics").unwrap().contains("istio_cni_install_ready 1"), "{}", agent.logs());

    // After the agent's end Gybe stays in the chain, and unmeshed pods start.
    agent.stop("install");
    agent.stop("repair");
    for container in ["install", "repair"].map(|name| agent.status(name)) {
        assert!(!container.running && container.exit_code == 0, "{}", agent.logs());
    }
    assert_eq!(gybe_entry(&cluster)["log_level"], "debug");
    cluster.node.cri.run(&Sandbox::new("shop", "plain-0")).unwrap();
}

#[test]
fn f14_the_deployment_works_on_1_6() {
    assert_deployment_works(Generation::V1_6);
}

#[test]
fn f14_the_deployment_works_on_1_7() {
    assert_deployment_works(Generation::V1_7);
}

#[test]
fn f14_the_deployment_works_on_2_x() {
    assert_deployment_works(Generation::V2);
}

#[test]
fn with_an_init_container_that_probes_no_container_keeps_capabilities() {
    let cluster = Cluster::new(Generation::V2);
    let agent = DaemonSetPod::start_with_probe_once(&cluster);
    for report in ["/run/gybe/probe.json", "/run/gybe/runtime.json"] {
        assert!(cluster.node.host().path(report).is_file(), "{report}:\n{}", agent.logs());
    }
    agent.wait_for("ready", || agent.is_ready());
    assert_eq!(gybe_entry(&cluster)["probed"]["backend"], "nft");
    assert_next_pod_is_redirected(&cluster, "cart-0");
    // Without its report the plugin probes by itself.
    fs::remove_file(cluster.node.host().path("/run/gybe/probe.json")).unwrap();
    assert_next_pod_is_redirected(&cluster, "cart-1");
    agent.wait_for("ready", || agent.is_ready());
}

#[test]
fn f29_mode_leave_in_the_configmap_removes_gybe_from_the_conf_files() {
    let cluster = Cluster::new(Generation::V2);
    let conf = || conf_files(cluster.node.host()).unwrap();
    let before = conf();
    let agent = DaemonSetPod::start(&cluster);
    agent.wait_for("ready", || agent.is_ready());
    assert_ne!(conf(), before);
    set_config(&cluster.node, &[("mode", "leave")]);
    agent.wait_for("the conf files without Gybe", || conf() == before);
    agent.wait_for("/left", || agent.is_ok(8000, "/left"));
}
