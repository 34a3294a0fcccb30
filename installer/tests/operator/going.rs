//! `gybe uninstall`: what it removes, what stays for how long, and what it prints.

use crate::node::{LIST, Node, SINGLE, plugin};
use gybe_installer::host::observe::LOCK;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::thread;

/// Installs on a new node with these arguments; returns the node, and its conf files before the install.
fn installed(files: &[(&str, &str)], words: &str) -> (Node, std::collections::BTreeMap<String, Vec<u8>>) {
    let node = Node::with(files);
    let before = node.networks();
    let said = node.install(words);
    // Exit code 1 is allowed: this helper does not check whether a runtime uses the conf file.
    assert!([0, 1].contains(&said.code) && said.out.contains("wrote "), "{said:?}");
    (node, before)
}

#[test]
fn f29_the_first_uninstall_removes_the_entry_and_the_second_the_programs() {
    let (node, before) = installed(&[("10-calico.conflist", LIST)], "");
    let first = node.uninstall("");
    assert_eq!((first.code, first.err.as_str()), (0, ""), "{first:?}");
    assert_eq!(node.networks(), before);
    assert_eq!(node.programs(), ["gybe", "gybe-cni"], "a sandbox may be being made");
    assert!(first.out.contains("s: the DEL of a sandbox that was just being made"), "{}", first.out);
    assert!(first.out.ends_with("to finish, run gybe uninstall again afterwards\n"), "{}", first.out);
    let again = node.uninstall("--json").json();
    let until = again["stays"][0]["until"].as_str().unwrap();
    assert!(until.starts_with("for ") && until.contains("may need it"), "as much as a moment ago: {again}");
    assert_eq!(node.programs(), ["gybe", "gybe-cni"]);
    let second = node.minutes_later().uninstall("");
    let told = "removed program gybe-cni\nremoved program gybe\nremoved the lock file\nfinished: nothing of gybe is left\n";
    assert_eq!((second.code, second.out.as_str()), (0, told));
    assert!(node.programs().is_empty() && !node.root.join("run/gybe").exists());
    let third = node.uninstall("");
    assert_eq!((third.code, third.out.as_str()), (0, "finished: nothing of gybe is left\n"));
}

#[test]
fn f29_the_plugin_stays_as_long_as_a_living_sandbox_names_it() {
    let (node, _) = installed(&[("10-calico.conflist", LIST)], "");
    node.sandbox("n-cart-eth0", &["calico", "portmap", "gybe-cni"]);
    node.uninstall("");
    for _ in 0..3 {
        let told = node.minutes_later().uninstall("--json").json();
        assert_eq!((&told["out"], &told["finished"]), (&true.into(), &false.into()));
        let until = told["stays"][0]["until"].as_str().unwrap();
        assert!(until.starts_with("as long as sandboxes exist"), "{until}");
        assert_eq!(node.programs(), ["gybe", "gybe-cni"]);
    }
    node.end_sandbox("n-cart-eth0");
    assert_eq!(node.minutes_later().uninstall("--json").json()["finished"], true);
    assert!(node.programs().is_empty());
}

#[test]
fn f29_with_an_unreadable_cache_the_plugin_stays_and_the_reason_is_reported() {
    let (node, _) = installed(&[("10-calico.conflist", LIST)], "");
    fs::remove_dir(node.root.join("var/lib/cni/results")).unwrap();
    for _ in 0..2 {
        let said = node.uninstall("");
        assert!(said.out.contains("gybe-cni stays until the node has been drained"), "{}", said.out);
    }
    assert_eq!(node.programs(), ["gybe", "gybe-cni"]);
}

#[test]
fn f32_uninstall_finds_every_shape_and_name() {
    for (files, words) in [
        (&[("10-calico.conflist", LIST)][..], "--shape dropin"),
        (&[("10-calico.conflist", LIST)], "--shape standalone"),
        (&[("10-calico.conflist", LIST)], "--shape standalone --conf-name 99-mesh.conf"),
        (&[("10-db.conf", SINGLE)], ""),
        (&[("10-db.json", SINGLE)], ""),
        (&[("odd.file", LIST)], "--conf-name odd.file"),
        (&[("10-a.conf", SINGLE), ("10-a.conflist", LIST)], ""),
    ] {
        let (node, before) = installed(files, words);
        assert_ne!(node.networks(), before, "{words}");
        let said = node.uninstall("");
        assert_eq!(said.code, 0, "{words}: {said:?}");
        assert_eq!(node.networks(), before, "{words}");
        assert_eq!(node.minutes_later().uninstall("--json").json()["finished"], true, "{words}");
        assert!(node.programs().is_empty(), "{words}");
    }
}

#[test]
fn f30_files_of_a_newer_version_are_removed_too() {
    let newer = LIST.replace(
        "\n    }\n  ]",
        "\n    },\n    {\n      \"type\": \"gybe-cni\",\n      \"quic\": { \"zones\": [1e99] }\n    }\n  ]",
    );
    let node = Node::with(&[("10-calico.conflist", &newer)]);
    node.put("k8s-pod-network/zz-gybe-cni.conf", "{\"type\":\"gybe-cni\",\"lanes\":2}\n");
    node.program("opt/cni/bin/gybe-cni", &plugin("9"));
    node.program("opt/cni/bin/gybe", "#!/bin/sh\necho gybe 9\n");
    node.program("opt/cni/bin/istio-iptables", "#!/bin/sh\necho gybe 9\n");
    assert_eq!(node.uninstall("").code, 0);
    assert_eq!(node.networks().into_iter().collect::<Vec<_>>(), [("10-calico.conflist".into(), LIST.into())]);
    assert_eq!(
        fs::read_to_string(node.root.join("opt/cni/bin/gybe-cni")).unwrap(),
        plugin("9"),
        "it answers DEL"
    );
    assert_eq!(node.minutes_later().uninstall("--json").json()["finished"], true);
    assert!(node.programs().is_empty());
}

#[test]
fn f06_a_broken_file_that_names_it_is_not_touched_and_keeps_everything() {
    let (node, _) = installed(&[("10-calico.conflist", LIST)], "");
    let broken = "{\"plugins\":[{\"type\":\"gybe-cni\"},]}";
    node.put("90-x.conflist", broken);
    let said = node.uninstall("");
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.out.contains("90-x.conflist still names gybe-cni"), "{}", said.out);
    assert!(said.out.ends_with("not uninstalled: a conf file still names gybe-cni\n"), "{}", said.out);
    assert_eq!(fs::read_to_string(node.conf("90-x.conflist")).unwrap(), broken);
    assert_eq!(
        fs::read_to_string(node.conf("10-calico.conflist")).unwrap(),
        LIST,
        "what can be done is done"
    );
    assert_eq!(node.programs(), ["gybe", "gybe-cni"]);
    fs::remove_file(node.conf("90-x.conflist")).unwrap();
    node.uninstall("");
    node.minutes_later().uninstall("");
    assert!(node.programs().is_empty());
}

#[test]
fn another_program_of_the_same_name_stays() {
    let (node, _) = installed(&[("10-calico.conflist", LIST)], "");
    node.program("opt/cni/bin/istio-iptables", "#!/bin/sh\necho theirs\n");
    node.program("opt/cni/bin/istio-cni", "#!/bin/sh\necho theirs\n");
    node.uninstall("");
    assert_eq!(node.minutes_later().uninstall("--json").json()["finished"], true);
    assert_eq!(node.programs(), ["istio-cni", "istio-iptables"]);
}

#[test]
fn a_pipe_under_the_plugins_name_blocks_no_uninstall() {
    let (node, before) = installed(&[("10-calico.conflist", LIST)], "");
    let plugin = node.root.join("opt/cni/bin/gybe-cni");
    fs::remove_file(&plugin).unwrap();
    nix::unistd::mkfifo(&plugin, nix::sys::stat::Mode::S_IRWXU).unwrap();
    node.uninstall("");
    assert_eq!(node.networks(), before);
}

#[test]
fn the_kubeconfig_goes_at_once_and_the_rest_of_the_run_directory_at_the_end() {
    let (node, _) = installed(&[("10-calico.conflist", LIST)], "");
    for name in ["kubeconfig", ".kubeconfig.gybe.tmp", "probe.json", "theirs"] {
        fs::write(node.root.join("run/gybe").join(name), "x").unwrap();
    }
    node.uninstall("");
    assert_eq!(node.files("run/gybe").into_keys().collect::<Vec<_>>(), ["probe.json", "theirs"]);
    node.minutes_later().uninstall("");
    assert_eq!(node.files("run/gybe").into_keys().collect::<Vec<_>>(), ["theirs"]);
}

#[test]
fn while_another_gybe_holds_the_lock_nothing_is_changed() {
    let (node, _) = installed(&[("10-calico.conflist", LIST)], "");
    let held = fs::File::open(node.root.join("opt/cni/bin").join(LOCK)).unwrap();
    held.lock().unwrap();
    for said in [node.install("--log-level debug"), node.uninstall("")] {
        assert_eq!(said.code, 2, "{said:?}");
        assert!(said.err.contains("another gybe is changing"), "{}", said.err);
    }
    assert_eq!(node.install("").code, 0, "there is nothing to change");
    // Closing the file would not suffice: a child that another test has just forked may hold it open.
    held.unlock().unwrap();
    assert_eq!(node.uninstall("").code, 0);
}

/// An agent whose API server is unreachable, or one of another version, still runs and would restore the entry.
#[test]
fn a_running_agent_that_cannot_answer_stops_an_uninstall() {
    for answer in [r#"{"version":1,"fault":"the API server does not answer"}"#, r#"{"version":9}"#] {
        let (node, _) = installed(&[("10-calico.conflist", LIST)], "");
        let before = node.networks();
        let listener = UnixListener::bind(node.root.join("run/gybe/facts.sock")).unwrap();
        let agent = thread::spawn(move || {
            let (mut plugin, _) = listener.accept().unwrap();
            BufReader::new(&plugin).read_line(&mut String::new()).unwrap();
            plugin.write_all(format!("{answer}\n").as_bytes()).unwrap();
        });
        let said = node.uninstall("");
        agent.join().unwrap();
        assert_eq!((said.code, said.out.as_str()), (2, ""), "{answer}: {said:?}");
        assert!(said.err.contains("mode: leave"), "{said:?}");
        assert_eq!(node.networks(), before, "{answer}");
    }
}

/// A sandbox whose ADD read the entry before its removal may have no cached result yet, but needs the plugin for DEL.
#[test]
fn f29_the_grace_period_applies_whichever_program_removed_the_entry() {
    let (node, before) = installed(&[("10-calico.conflist", LIST)], "--shape dropin");
    fs::remove_dir_all(node.conf("k8s-pod-network")).unwrap();
    assert_eq!(node.networks(), before);
    node.uninstall("");
    assert_eq!(node.programs(), ["gybe", "gybe-cni"]);
    assert_eq!(node.minutes_later().uninstall("--json").json()["finished"], true);
}

#[test]
fn f37_files_in_another_platforms_directories_are_reported_as_remaining() {
    let (node, _) = installed(&[("10-calico.conflist", LIST)], "");
    // This directory alone does not make the node an OpenShift node.
    fs::create_dir_all(node.root.join("etc/cni/multus/net.d")).unwrap();
    let dry = node.uninstall("--dry-run");
    assert!(dry.out.contains("write 10-calico.conflist"), "{dry:?}");
    fs::write(node.root.join("etc/os-release"), "ID=rhcos\n").unwrap();
    fs::create_dir_all(node.root.join("var/lib/cni/bin")).unwrap();
    let (conf, bin) = (node.root.join("etc/cni/net.d"), node.root.join("opt/cni/bin"));
    for words in ["", "--dry-run"] {
        let said = node.uninstall(words);
        for place in [&conf, &bin] {
            assert!(said.err.contains(&place.display().to_string()), "{said:?}");
        }
    }
    let said = node.uninstall("");
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.out.ends_with("not uninstalled: a conf file still names gybe-cni\n"), "{said:?}");
    node.uninstall("--conf-dir ROOT/etc/cni/net.d");
    let said = node.uninstall("--json");
    let told = said.json();
    assert_eq!((said.code, &told["finished"]), (0, &false.into()), "{told}");
    assert_eq!(told["elsewhere"]["programs"][0], bin.display().to_string());
    let said =
        node.minutes_later().uninstall("--conf-dir ROOT/etc/cni/net.d --bin-dir ROOT/opt/cni/bin --json");
    assert_eq!(said.json()["finished"], true, "{said:?}");
}

#[test]
fn f29_a_running_agents_sockets_stay_and_a_dead_ones_are_removed() {
    let (node, _) = installed(&[("10-calico.conflist", LIST)], "");
    let run = node.root.join("run/gybe");
    let (facts, log) = (run.join("facts.sock"), run.join("log.sock"));
    let alive = (UnixListener::bind(&facts).unwrap(), UnixDatagram::bind(&log).unwrap());
    fs::write(run.join("probe.json"), "{}").unwrap();
    node.uninstall("");
    let finished = || node.minutes_later().uninstall("--json").json()["finished"] == true;
    assert!(finished());
    assert!(facts.exists() && log.exists() && !run.join("probe.json").exists());
    drop(alive);
    assert!(finished() && !run.exists());
}
