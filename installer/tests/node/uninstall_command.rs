//! `gybe uninstall`: what it removes, what stays for how long, and what it prints; it restores every byte of any conf
//! file.

use crate::{HostRoot, LIST, SINGLE, plugin_script};
use gybe_installer::host::observe::LOCK;
use gybe_test_support::wait_until;
use proptest::prelude::*;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::{fs, thread};

/// Installs on a new node with these arguments; returns the node, and its conf files before the install.
fn installed(
    files: &[(&str, &str)],
    arguments: &str,
) -> (HostRoot, std::collections::BTreeMap<String, Vec<u8>>) {
    let node = HostRoot::with(files);
    let before = node.conf_files();
    let ran = node.install(arguments);
    // Exit code 1 is allowed: this helper does not check whether a runtime uses the conf file.
    assert!([0, 1].contains(&ran.code) && ran.out.contains("wrote "), "{ran:?}");
    (node, before)
}

#[test]
fn f29_the_first_uninstall_removes_the_entry_and_the_second_the_programs() {
    let (node, before) = installed(&[("10-calico.conflist", LIST)], "");
    let first = node.uninstall("");
    assert_eq!((first.code, first.err.as_str()), (0, ""), "{first:?}");
    assert_eq!(node.conf_files(), before);
    assert_eq!(node.programs(), ["gybe", "gybe-cni"], "a sandbox may be starting");
    assert!(first.out.contains("s: the DEL of a sandbox that was just being made"), "{}", first.out);
    assert!(
        first.out.ends_with("s\n") && first.out.contains("to finish, run gybe uninstall again in "),
        "{}",
        first.out
    );
    let again = node.uninstall("--json").json();
    let until = again["stays"][0]["until"].as_str().unwrap();
    assert!(
        until.starts_with("for ") && until.contains("may need it"),
        "the second uninstall keeps the programs too: {again}"
    );
    assert_eq!(node.programs(), ["gybe", "gybe-cni"]);
    let second = node.after_grace_period().uninstall("");
    let lines = "removed program gybe-cni\nremoved program gybe\nremoved the lock file\nfinished: nothing of gybe is left\n";
    assert_eq!((second.code, second.out.as_str()), (0, lines));
    assert!(node.programs().is_empty() && !node.root.join("run/gybe").exists());
    let third = node.uninstall("");
    assert_eq!((third.code, third.out.as_str()), (0, "finished: nothing of gybe is left\n"));
}

#[test]
fn f29_the_plugin_stays_as_long_as_a_running_sandbox_names_it() {
    let (node, _) = installed(&[("10-calico.conflist", LIST)], "");
    node.add_sandbox("n-cart-eth0", &["calico", "portmap", "gybe-cni"]);
    node.uninstall("");
    for _ in 0..3 {
        let report = node.after_grace_period().uninstall("--json").json();
        assert_eq!((&report["out"], &report["finished"]), (&true.into(), &false.into()));
        let until = report["stays"][0]["until"].as_str().unwrap();
        assert!(until.starts_with("as long as sandboxes exist"), "{until}");
        assert_eq!(node.programs(), ["gybe", "gybe-cni"]);
    }
    node.end_sandbox("n-cart-eth0");
    assert_eq!(node.after_grace_period().uninstall("--json").json()["finished"], true);
    assert!(node.programs().is_empty());
}

#[test]
fn f29_with_an_unreadable_cache_the_plugin_stays_and_the_reason_is_reported() {
    let (node, _) = installed(&[("10-calico.conflist", LIST)], "");
    fs::remove_dir(node.root.join("var/lib/cni/results")).unwrap();
    for _ in 0..2 {
        let ran = node.uninstall("");
        assert!(ran.out.contains("gybe-cni stays until the node has been drained"), "{}", ran.out);
    }
    assert_eq!(node.programs(), ["gybe", "gybe-cni"]);
}

#[test]
fn f32_uninstall_finds_every_shape_and_name() {
    for (files, arguments) in [
        (&[("10-calico.conflist", LIST)][..], "--shape dropin"),
        (&[("10-calico.conflist", LIST)], "--shape standalone"),
        (&[("10-calico.conflist", LIST)], "--shape standalone --conf-name 99-mesh.conf"),
        (&[("10-db.conf", SINGLE)], ""),
        (&[("10-db.json", SINGLE)], ""),
        (&[("odd.file", LIST)], "--conf-name odd.file"),
        (&[("10-a.conf", SINGLE), ("10-a.conflist", LIST)], ""),
    ] {
        let (node, before) = installed(files, arguments);
        assert_ne!(node.conf_files(), before, "{arguments}");
        let ran = node.uninstall("");
        assert_eq!(ran.code, 0, "{arguments}: {ran:?}");
        assert_eq!(node.conf_files(), before, "{arguments}");
        assert_eq!(node.after_grace_period().uninstall("--json").json()["finished"], true, "{arguments}");
        assert!(node.programs().is_empty(), "{arguments}");
    }
}

#[test]
fn f30_files_of_a_newer_version_are_removed_too() {
    let newer = LIST.replace(
        "\n    }\n  ]",
        "\n    },\n    {\n      \"type\": \"gybe-cni\",\n      \"quic\": { \"zones\": [1e99] }\n    }\n  ]",
    );
    let node = HostRoot::with(&[("10-calico.conflist", &newer)]);
    node.put_conf("k8s-pod-network/zz-gybe-cni.conf", "{\"type\":\"gybe-cni\",\"lanes\":2}\n");
    node.write_program("opt/cni/bin/gybe-cni", &plugin_script("9"));
    node.write_program("opt/cni/bin/gybe", "#!/bin/sh\necho gybe 9\n");
    node.write_program("opt/cni/bin/istio-iptables", "#!/bin/sh\necho gybe 9\n");
    assert_eq!(node.uninstall("").code, 0);
    assert_eq!(
        node.conf_files().into_iter().collect::<Vec<_>>(),
        [("10-calico.conflist".into(), LIST.into())]
    );
    assert_eq!(
        fs::read_to_string(node.root.join("opt/cni/bin/gybe-cni")).unwrap(),
        plugin_script("9"),
        "it answers DEL"
    );
    assert_eq!(node.after_grace_period().uninstall("--json").json()["finished"], true);
    assert!(node.programs().is_empty());
}

#[test]
fn f06_a_broken_file_that_names_the_plugin_is_not_changed_and_keeps_the_programs() {
    let (node, _) = installed(&[("10-calico.conflist", LIST)], "");
    let broken = "{\"plugins\":[{\"type\":\"gybe-cni\"},]}";
    node.put_conf("90-x.conflist", broken);
    let ran = node.uninstall("");
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.out.contains("90-x.conflist still names gybe-cni"), "{}", ran.out);
    assert!(ran.out.ends_with("not uninstalled: a conf file still names gybe-cni\n"), "{}", ran.out);
    assert_eq!(fs::read_to_string(node.conf("90-x.conflist")).unwrap(), broken);
    assert_eq!(
        fs::read_to_string(node.conf("10-calico.conflist")).unwrap(),
        LIST,
        "the other file is restored"
    );
    assert_eq!(node.programs(), ["gybe", "gybe-cni"]);
    fs::remove_file(node.conf("90-x.conflist")).unwrap();
    node.uninstall("");
    node.after_grace_period().uninstall("");
    assert!(node.programs().is_empty());
}

#[test]
fn another_owners_program_of_a_further_name_stays() {
    let (node, _) = installed(&[("10-calico.conflist", LIST)], "");
    node.write_program("opt/cni/bin/istio-iptables", "#!/bin/sh\necho theirs\n");
    node.write_program("opt/cni/bin/istio-cni", "#!/bin/sh\necho theirs\n");
    node.uninstall("");
    assert_eq!(node.after_grace_period().uninstall("--json").json()["finished"], true);
    assert_eq!(node.programs(), ["istio-cni", "istio-iptables"]);
}

#[test]
fn a_pipe_under_the_plugins_name_blocks_no_uninstall() {
    let (node, before) = installed(&[("10-calico.conflist", LIST)], "");
    let plugin = node.root.join("opt/cni/bin/gybe-cni");
    fs::remove_file(&plugin).unwrap();
    nix::unistd::mkfifo(&plugin, nix::sys::stat::Mode::S_IRWXU).unwrap();
    node.uninstall("");
    assert_eq!(node.conf_files(), before);
}

#[test]
fn the_kubeconfig_goes_at_once_and_the_rest_of_the_run_directory_at_the_end() {
    let (node, _) = installed(&[("10-calico.conflist", LIST)], "");
    for name in ["kubeconfig", ".kubeconfig.gybe.tmp", "probe.json", "theirs"] {
        fs::write(node.root.join("run/gybe").join(name), "x").unwrap();
    }
    node.uninstall("");
    assert_eq!(node.files("run/gybe").into_keys().collect::<Vec<_>>(), ["probe.json", "theirs"]);
    node.after_grace_period().uninstall("");
    assert_eq!(node.files("run/gybe").into_keys().collect::<Vec<_>>(), ["theirs"]);
}

#[test]
fn while_another_gybe_holds_the_lock_nothing_changes() {
    let (node, _) = installed(&[("10-calico.conflist", LIST)], "");
    let held = fs::File::open(node.root.join("opt/cni/bin").join(LOCK)).unwrap();
    held.lock().unwrap();
    for ran in [node.install("--log-level debug"), node.uninstall("")] {
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.err.contains("another gybe is changing"), "{}", ran.err);
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
        let before = node.conf_files();
        let listener = UnixListener::bind(node.root.join("run/gybe/facts.sock")).unwrap();
        let agent = thread::spawn(move || {
            let (mut plugin, _) = listener.accept().unwrap();
            BufReader::new(&plugin).read_line(&mut String::new()).unwrap();
            plugin.write_all(format!("{answer}\n").as_bytes()).unwrap();
        });
        let ran = node.uninstall("");
        agent.join().unwrap();
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{answer}: {ran:?}");
        assert!(ran.err.contains("mode: leave"), "{ran:?}");
        assert_eq!(node.conf_files(), before, "{answer}");
    }
}

/// A sandbox whose ADD read the entry before its removal may have no cached result yet, but needs the plugin for DEL.
#[test]
fn f29_the_grace_period_applies_whichever_program_removed_the_entry() {
    let (node, before) = installed(&[("10-calico.conflist", LIST)], "--shape dropin");
    fs::remove_dir_all(node.conf("k8s-pod-network")).unwrap();
    assert_eq!(node.conf_files(), before);
    node.uninstall("");
    assert_eq!(node.programs(), ["gybe", "gybe-cni"]);
    assert_eq!(node.after_grace_period().uninstall("--json").json()["finished"], true);
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
    for arguments in ["", "--dry-run"] {
        let ran = node.uninstall(arguments);
        for directory in [&conf, &bin] {
            assert!(ran.err.contains(&directory.display().to_string()), "{ran:?}");
        }
    }
    let ran = node.uninstall("");
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.out.ends_with("not uninstalled: a conf file still names gybe-cni\n"), "{ran:?}");
    node.uninstall("--conf-dir ROOT/etc/cni/net.d");
    let ran = node.uninstall("--json");
    let report = ran.json();
    assert_eq!((ran.code, &report["finished"]), (0, &false.into()), "{report}");
    assert_eq!(report["elsewhere"]["programs"][0], bin.display().to_string());
    let ran = node
        .after_grace_period()
        .uninstall("--conf-dir ROOT/etc/cni/net.d --bin-dir ROOT/opt/cni/bin --json");
    assert_eq!(ran.json()["finished"], true, "{ran:?}");
}

#[test]
fn f29_the_sockets_of_a_running_agent_stay_and_those_without_a_listener_are_removed() {
    let (node, _) = installed(&[("10-calico.conflist", LIST)], "");
    let run = node.root.join("run/gybe");
    let (facts, log) = (run.join("facts.sock"), run.join("log.sock"));
    let alive = (UnixListener::bind(&facts).unwrap(), UnixDatagram::bind(&log).unwrap());
    fs::write(run.join("probe.json"), "{}").unwrap();
    node.uninstall("");
    let finished = || node.after_grace_period().uninstall("--json").json()["finished"] == true;
    assert!(finished());
    assert!(facts.exists() && log.exists() && !run.join("probe.json").exists());
    drop(alive);
    // A program that another test starts at this moment has copies of the sockets until it runs.
    wait_until("nothing listens", || {
        UnixStream::connect(&facts).is_err() && UnixDatagram::unbound().unwrap().connect(&log).is_err()
    });
    assert!(finished() && !run.exists());
}

/// Returns white space as hand-written and generated files have it.
fn blanks() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", " ", "\n", "\n  ", "\r\n\t", "\n\n    "]).prop_map(str::to_owned)
}

/// Returns a member whose spelling a JSON parser does not preserve: numbers, escapes, duplicate keys.
fn member() -> impl Strategy<Value = String> {
    let spellings = vec![
        "\"mtu\":1500",
        "\"big\":18446744073709551616",
        "\"x\" : 1.50",
        "\"a\\u0062\":\"\\u0041\\/\"",
        "\"n\":null",
    ];
    prop::sample::select(spellings).prop_map(str::to_owned)
}

fn plugin_text() -> impl Strategy<Value = String> {
    (blanks(), prop::collection::vec(member(), 0..3), blanks()).prop_map(|(before, members, after)| {
        let members: String = members.iter().map(|member| format!(",{before}{member}")).collect();
        format!("{{{before}\"type\":\"bridge\"{members}{after}}}")
    })
}

fn list() -> impl Strategy<Value = String> {
    (blanks(), prop::collection::vec(plugin_text(), 1..4), blanks(), blanks()).prop_map(
        |(a, plugins, b, c)| {
            let plugins = plugins.join(&format!("{b},{a}"));
            format!(
                "{{{a}\"name\":\"net\",{b}\"cniVersion\":\"0.3.1\",{c}\"plugins\":[{a}{plugins}{b}]{c}}}{a}"
            )
        },
    )
}

fn file() -> impl Strategy<Value = (&'static str, String)> {
    let single = || plugin_text().prop_map(|plugin| plugin.replacen('{', "{\"name\":\"net\",", 1));
    prop_oneof![
        list().prop_map(|text| ("10-net.conflist", text)),
        single().prop_map(|text| ("10-net.conf", text)),
        single().prop_map(|text| ("10-net.json", text)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn f33_install_then_uninstall_restores_every_byte(
        (name, text) in file(),
        shape in prop::sample::select(vec!["chained", "dropin", "standalone"]),
    ) {
        // Only a conflist has a drop-in directory.
        prop_assume!(shape != "dropin" || name.ends_with(".conflist"));
        let node = HostRoot::with(&[(name, &text)]);
        let before = node.conf_files();
        let ran = node.install(&format!("--shape {shape}"));
        prop_assert_ne!(ran.code, 2, "{:?}", ran);
        prop_assert_ne!(&node.conf_files(), &before);
        prop_assert_eq!(node.uninstall("").code, 0);
        prop_assert_eq!(node.conf_files(), before);
        prop_assert_eq!(node.after_grace_period().uninstall("--json").json()["finished"].clone(), serde_json::json!(true));
        prop_assert!(node.programs().is_empty());
    }
}
