//! `gybe install`: what it places, writes and prints, and what it leaves alone.

use crate::node::{LIST, Node, SINGLE, plugin};
use gybe_installer::host::settings::KEYS;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;

fn entry(node: &Node, file: &str) -> Value {
    let list: Value = serde_json::from_slice(&fs::read(node.conf(file)).unwrap()).unwrap();
    list["plugins"].as_array().unwrap().last().unwrap().clone()
}

#[test]
fn one_call_places_the_programs_and_puts_the_entry_last() {
    let node = Node::with(&[("10-calico.conflist", LIST)]);
    let said = node.install("");
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
    let steps = "placed program gybe-cni\nwrote 10-calico.conflist\nplaced program gybe\nthis node is as configured\n";
    assert_eq!(said.out, steps);
    assert_eq!(node.programs(), ["gybe", "gybe-cni"]);
    for program in ["gybe", "gybe-cni"] {
        let mode = fs::metadata(node.root.join("opt/cni/bin").join(program)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755, "{program}");
    }
    let entry = entry(&node, "10-calico.conflist");
    assert_eq!((&entry["type"], &entry["backend"]), (&"gybe-cni".into(), &"auto".into()));
    assert_eq!(entry["capabilities"]["io.kubernetes.cri.pod-annotations"], true);
    let excluded = serde_json::json!(["gybe-system", "istio-system", "kube-system"]);
    assert_eq!(entry["exclude_namespaces"], excluded);
    let again = node.install("");
    assert_eq!((again.code, again.out.as_str()), (0, "nothing to do\nthis node is as configured\n"));
}

/// Keys that only concern a running agent; and `cni_network_config`, a template, which is a file of `--config`.
const WITHOUT_FLAG: [&str; 6] = [
    "mode",
    "put_back_istio",
    "leave_when_daemonset_gone",
    "pod_source",
    "istio_cni_namespace",
    "cni_network_config",
];

#[test]
fn every_key_of_the_config_map_has_a_flag_of_its_name_that_the_page_names() {
    let help = Node::new().gybe("install --help").out;
    let page = include_str!("../../../docs/BY-HAND.md");
    for key in KEYS.iter().map(|key| key.name) {
        let flag = format!("--{}", key.replace('_', "-"));
        let (is_offered, is_told) =
            (help.contains(&format!("{flag} <")), page.contains(&format!("`{flag}`")));
        let wanted = !WITHOUT_FLAG.contains(&key);
        assert_eq!((is_offered, is_told && wanted), (wanted, wanted), "{flag}");
    }
}

#[test]
fn every_setting_of_the_config_map_has_a_flag_that_overrides_it() {
    let node = Node::with(&[("10-db.conf", SINGLE)]);
    let config = node.root.join("config");
    fs::create_dir(&config).unwrap();
    for (key, value) in [("log_level", "debug"), ("backend", "nft"), ("gates", "strict")] {
        fs::write(config.join(key), value).unwrap();
    }
    let flags = "--config ROOT/config --backend iptables-legacy --ipv6 reject --inbound-default containerPorts \
                 --exclude-namespaces a,b --pods-from /etc/gybe/pods --also-as istio-iptables --max-intervals 9000";
    let said = node.install(flags);
    assert_eq!(said.code, 0, "{said:?}");
    let entry = entry(&node, "10-db.conflist");
    for (key, value) in [
        ("log_level", "debug"),
        ("backend", "iptables-legacy"),
        ("gates", "strict"),
        ("ipv6", "reject"),
        ("inboundDefault", "containerPorts"),
    ] {
        assert_eq!(entry[key], value, "{key}");
    }
    assert_eq!(entry["exclude_namespaces"], serde_json::json!(["a", "b"]));
    assert_eq!(entry["max_intervals"], 9000);
    assert_eq!(
        (&entry["facts"]["directory"], &entry["facts"]["socket"]),
        (&"/etc/gybe/pods".into(), &"".into())
    );
    assert_eq!(node.programs(), ["gybe", "gybe-cni", "istio-iptables"]);
    assert!(said.err.contains("note: exclude_namespaces does not contain \"istio-system\""), "{}", said.err);
}

#[test]
fn invalid_settings_are_all_reported_and_change_nothing() {
    let node = Node::with(&[("10-calico.conflist", LIST)]);
    let said = node.install("--backend nftt --shape round --also-as sh");
    assert_eq!(said.code, 2);
    for word in ["backend is \"nftt\"", "shape is \"round\"", "also_as is \"sh\""] {
        assert!(said.err.contains(word), "{word}: {}", said.err);
    }
    assert!(node.programs().is_empty());
    fs::create_dir(node.root.join("config")).unwrap();
    fs::write(node.root.join("config/mode"), "leave").unwrap();
    let said = node.install("--config ROOT/config");
    assert_eq!(said.err, "gybe: the settings have mode: leave\nhint: run gybe uninstall\n");
    let none = node.install("--from ROOT/etc");
    assert_eq!(none.code, 2, "{none:?}");
}

#[test]
fn a_dry_run_prints_the_plan_and_changes_nothing() {
    let node = Node::with(&[("10-db.conf", SINGLE)]);
    let said = node.install("--dry-run");
    let would = "would place program gybe-cni\nwould write 10-db.conflist\n\
                 would rename 10-db.conf to 10-db.conf.gybe-original\nwould place program gybe\n";
    assert_eq!((said.code, said.out.as_str()), (0, would));
    assert_eq!((node.networks().len(), node.programs().len()), (1, 0));
    assert_eq!(node.install("").code, 0);
    let out = node.uninstall("--dry-run");
    let would = "would rename 10-db.conf.gybe-original to 10-db.conf\nwould remove 10-db.conflist\n";
    assert_eq!((out.code, out.out.as_str()), (0, would));
    assert_eq!(node.networks().len(), 2);
    assert_eq!(node.uninstall("").code, 0);
    assert_eq!(
        node.uninstall("--dry-run").out,
        "nothing to do\n",
        "within the grace period a sandbox may still be starting"
    );
    let out = node.minutes_later().uninstall("--dry-run");
    assert_eq!(
        out.out,
        "would remove program gybe-cni\nwould remove program gybe\nwould remove the lock file\n"
    );
    assert_eq!(node.programs(), ["gybe", "gybe-cni"]);
}

#[test]
fn a_dry_run_fails_if_a_problem_prevents_the_change() {
    let node = Node::new();
    let said = node.install("--dry-run");
    assert!(said.code == 1 && said.out.contains("waiting for the primary"), "{said:?}");
    node.put("90-x.conflist", "{\"plugins\":[{\"type\":\"gybe-cni\"},]}");
    let said = node.uninstall("--dry-run");
    assert!(said.code == 1 && said.out.contains("90-x.conflist still names gybe-cni"), "{said:?}");
}

#[test]
fn f04_without_the_primarys_file_the_programs_wait_for_it() {
    let node = Node::new();
    let said = node.install("--json");
    assert_eq!(said.code, 1, "{said:?}");
    let told = said.json();
    assert_eq!(told["problems"][0]["what"], "waiting for the primary plugin's conf file");
    assert_eq!(node.programs(), ["gybe", "gybe-cni"]);
    node.put("10-calico.conflist", LIST);
    assert_eq!(node.install("").code, 0);
}

#[test]
fn f10_a_program_that_does_not_run_here_keeps_the_one_that_serves() {
    let node = Node::with(&[("10-calico.conflist", LIST)]);
    assert_eq!(node.install("").code, 0);
    node.program("image/gybe-cni", "#!/bin/sh\necho broken\n");
    let said = node.install("");
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.out.contains("does not run on this node: it did not answer VERSION"), "{}", said.out);
    assert_eq!(fs::read_to_string(node.root.join("opt/cni/bin/gybe-cni")).unwrap(), plugin("1"));
}

#[test]
fn f37_on_a_node_of_another_kind_its_own_directories_are_used() {
    let node = Node::new();
    for folder in ["var/lib/rancher/k3s/agent/etc/cni/net.d", "var/lib/rancher/k3s/data/cni"] {
        fs::create_dir_all(node.root.join(folder)).unwrap();
    }
    let conf = node.root.join("var/lib/rancher/k3s/agent/etc/cni/net.d/10-flannel.conflist");
    fs::write(&conf, LIST).unwrap();
    node.program("var/lib/rancher/k3s/data/cni/portmap", "#!/bin/sh\n");
    assert_eq!(node.install("").code, 0);
    assert!(fs::read_to_string(&conf).unwrap().contains("gybe-cni"));
    assert!(node.root.join("var/lib/rancher/k3s/data/cni/gybe-cni").exists() && node.programs().is_empty());
    // The operator's flags take precedence over the detected directories.
    node.put("10-calico.conflist", LIST);
    assert_eq!(node.install("--conf-dir ROOT/etc/cni/net.d --bin-dir ROOT/opt/cni/bin").code, 0);
    assert_eq!(node.programs(), ["gybe", "gybe-cni"]);
}

#[test]
fn a_further_name_that_is_no_longer_configured_is_removed_and_a_namesake_stays() {
    let node = Node::with(&[("10-calico.conflist", LIST)]);
    assert_eq!(node.install("--also-as istio-iptables").code, 0);
    node.program("opt/cni/bin/istio-cni-taint", "#!/bin/sh\necho theirs\n");
    // The name is no longer configured after an upgrade: the program in place is the previous version.
    node.program("image/gybe", "#!/bin/sh\necho gybe 2\n");
    assert_eq!(node.install("").code, 0);
    assert_eq!(node.programs(), ["gybe", "gybe-cni", "istio-cni-taint"]);
}
