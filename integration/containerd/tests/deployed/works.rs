//! It does its work with what the manifests give it, on each generation of containerd.

use std::fs;

use gybe_containerd_tests::node::CONFLIST;
use gybe_containerd_tests::{Generation, Sandbox, config};
use serde_json::Value;

use crate::daemon::{Daemon, write_config};
use crate::pod::{Met, Outside, Pod};
use crate::site::{Site, config_map};

/// CAP_SETUID, CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_CHROOT, CAP_SYS_PTRACE and
/// CAP_SYS_ADMIN (include/uapi/linux/capability.h).
const OF_THE_PROBE: u64 = 1 << 7 | 1 << 10 | 1 << 12 | 1 << 13 | 1 << 18 | 1 << 19 | 1 << 21;

fn conf(site: &Site) -> String {
    fs::read_to_string(site.node.stage().path(config::CONF_DIR).join(CONFLIST)).unwrap()
}

fn entry(site: &Site) -> Value {
    let list: Value = serde_json::from_str(&conf(site)).unwrap();
    let last = list["plugins"].as_array().unwrap().last().unwrap().clone();
    if last["type"] == "gybe-cni" { last } else { Value::Null }
}

/// Not one capability, not even one to gain; filtered system calls; a file system it cannot write.
fn confined(daemon: &Daemon<'_>) {
    for (container, capabilities) in [("install", 0), ("probe", OF_THE_PROBE)] {
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            let held = u64::from_str_radix(&daemon.status(container, set), 16).unwrap();
            assert_eq!(held, capabilities, "{container} {set} {held:x}");
        }
        let rest = ["NoNewPrivs", "Seccomp", "Uid"].map(|key| daemon.status(container, key));
        assert_eq!(rest, ["1", "2", "0\t0\t0\t0"], "{container}");
    }
}

fn redirected(site: &Site, name: &str) {
    let sandbox = Sandbox::injected("shop", name);
    site.schedule(&sandbox);
    let pod = Pod::inhabit(&site.node, site.node.cri.run(&sandbox).unwrap());
    let address = pod.addresses[0];
    assert_eq!(Outside::of(&site.node).calls(address, 8080), Met::proxy(15006, address, 8080));
}

fn lives(generation: Generation) {
    let site = Site::new(generation);
    let daemon = Daemon::start(&site);
    daemon.until("ready", || daemon.is_well("ready"));
    assert!(daemon.is_well("alive"));
    confined(&daemon);
    let probed = site.node.stage().path("/run/gybe/probe.json");
    assert!(probed.is_file(), "found out on the host:\n{}", daemon.said());
    daemon.until("in the chain with what the probe found", || entry(&site)["probed"]["backend"] == "nft");
    redirected(&site, "cart-0");

    // Another ConfigMap, and no restart.
    let mut data = config_map().data.unwrap();
    data.insert("log_level".into(), "debug".into());
    write_config(&site.node, &data);
    daemon.until("the conf follows", || entry(&site)["log_level"] == "debug");
    assert!(
        daemon.page(15014, "/metrics").unwrap().contains("istio_cni_install_ready 1"),
        "{}",
        daemon.said()
    );

    // Ended, everything stays; and an unmeshed pod needs nobody.
    daemon.end("install");
    daemon.end("probe");
    assert!(!daemon.lived("install").running && daemon.lived("install").exit_code == 0, "{}", daemon.said());
    assert_eq!(entry(&site)["log_level"], "debug");
    site.node.cri.run(&Sandbox::named("shop", "plain-0")).unwrap();
}

#[test]
fn f14_as_the_manifests_say_on_1_6() {
    lives(Generation::V1_6);
}

#[test]
fn f14_as_the_manifests_say_on_1_7() {
    lives(Generation::V1_7);
}

#[test]
fn f14_as_the_manifests_say_on_2_x() {
    lives(Generation::V2);
}

#[test]
fn f29_a_changed_configmap_takes_the_node_out_of_the_chain() {
    let site = Site::new(Generation::V2);
    let before = conf(&site);
    let daemon = Daemon::start(&site);
    daemon.until("ready", || daemon.is_well("ready"));
    let mut data = config_map().data.unwrap();
    data.insert("mode".into(), "leave".into());
    write_config(&site.node, &data);
    daemon.until("out of the chain", || conf(&site) == before);
    daemon.until("said so", || daemon.answers(8000, "/left"));
}
