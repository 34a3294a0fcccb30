//! Shutdown or crash of the agent leaves the node unchanged, and the next agent continues from there; uninstall by
//! `mode: leave` in the ConfigMap, in an order that fails no pod.

use crate::node::{FILE, Node, PRIMARIES, PRIMARY};
use gybe_test_support::{Agent, wait_until};
use nix::sys::signal::Signal;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Returns the file attributes that a write or a rename would change.
fn inodes_and_change_times(node: &Node) -> Vec<(u64, i64, i64)> {
    let files = [node.conf_path(FILE), node.program_path("gybe-cni"), node.program_path("gybe")];
    let of = |path: &std::path::PathBuf| {
        let meta = fs::metadata(path).unwrap();
        (meta.ino(), meta.ctime(), meta.ctime_nsec())
    };
    files.iter().map(of).collect()
}

fn start_ready_agent(node: &Node) -> Agent {
    let agent = node.start_agent();
    wait_until("readiness", || agent.is_ready());
    agent
}

#[test]
fn f14_after_any_signal_all_files_stay_and_the_next_agent_writes_nothing() {
    let node = Node::new("ends");
    node.put_conf(FILE, PRIMARY);
    drop(start_ready_agent(&node));
    let before = inodes_and_change_times(&node);
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGKILL, Signal::SIGABRT] {
        let mut agent = start_ready_agent(&node);
        let status = agent.stop(signal);
        let clean = matches!(signal, Signal::SIGTERM | Signal::SIGINT);
        assert_eq!(status.success(), clean, "{signal}: {status}");
        assert_eq!(inodes_and_change_times(&node), before, "{signal}");
    }
}

#[test]
fn f14_an_agent_killed_during_its_first_pass_leaves_a_conf_file_that_loads() {
    let node = Node::new("killed");
    for n in 0..40_u64 {
        node.put_conf(FILE, PRIMARY);
        let _ = fs::remove_file(node.program_path("gybe-cni"));
        let mut child = node.command().stderr(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_micros(1500 * n));
        child.kill().unwrap();
        child.wait().unwrap();
        let text = node.conf_text(FILE);
        let chain: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(chain["plugins"][0]["type"], "calico", "{n}");
        // If the conf file names the plugin, the plugin runs.
        assert!(
            node.entry(FILE).is_none() || node.installed_build("gybe-cni") == "gybe-cni 1",
            "{n}: {text}"
        );
    }
    let agent = start_ready_agent(&node);
    assert!(node.entry(FILE).is_some());
    drop(agent);
    let names = || fs::read_dir(node.root.join("bin")).unwrap().map(|it| it.unwrap().file_name());
    let names: Vec<_> =
        names().filter(|name| !PRIMARIES.map(OsStr::new).contains(&name.as_os_str())).collect();
    assert_eq!(
        names.len(),
        3,
        "both programs and the lock file, and no temporary file of a killed agent: {names:?}"
    );
}

#[test]
fn f30_an_upgrade_and_a_downgrade_replace_program_and_entry() {
    let node = Node::new("upgrade");
    // The entry and the program of a future version.
    let newer_entry = r#"{ "type": "gybe-cni", "zones": [1], "facts": { "quic": true } }"#;
    node.put_conf(
        FILE,
        &PRIMARY.replace(
            "{\n      \"type\": \"calico\"\n    }",
            &format!("{{ \"type\": \"calico\" }}, {newer_entry}"),
        ),
    );
    node.write_image("3");
    let agent = start_ready_agent(&node);
    assert_eq!(node.installed_build("gybe-cni"), "gybe-cni 3");
    let entry = node.entry(FILE).unwrap();
    assert!(entry.get("zones").is_none() && entry["facts"].get("quic").is_none(), "{entry}");
    assert_eq!(node.conf_text(FILE).matches("gybe-cni").count(), 1);
    drop(agent);
    node.write_image("2");
    let _agent = start_ready_agent(&node);
    assert_eq!(
        (node.installed_build("gybe-cni"), node.installed_build("gybe")),
        ("gybe-cni 2".into(), "gybe 2".into())
    );
    assert_eq!(node.entry(FILE), Some(entry));
}

#[test]
fn f14_an_agent_that_cannot_create_a_socket_is_not_ready_and_without_both_not_healthy() {
    let node = Node::new("unserved");
    node.put_conf(FILE, PRIMARY);
    let agent = start_ready_agent(&node);
    let [facts, log] = ["facts.sock", "log.sock"].map(|name| node.root.join("run").join(name));
    // In one step, because otherwise the agent binds the path first.
    let occupy = |socket: &Path| {
        let theirs = node.root.join("run/theirs");
        fs::write(&theirs, "precious").unwrap();
        fs::rename(theirs, socket).unwrap();
    };
    occupy(&facts);
    wait_until("an end of its readiness", || agent.get("/readyz").0 == 503);
    let (_, text) = agent.get("/readyz");
    let why = format!("cannot serve at {}: another file that is not a socket has its name", facts.display());
    assert!(text.contains(&why), "{text}");
    agent.wait_for_message("the socket was removed, and cannot be created again");
    assert_eq!(agent.get("/healthz").0, 200, "a restart would not help");
    occupy(&log);
    wait_until("an end of its health", || agent.get("/healthz").0 == 503);
    fs::remove_file(&facts).unwrap();
    fs::remove_file(&log).unwrap();
    wait_until("readiness", || agent.is_ready() && agent.get("/healthz").0 == 200);
    assert!(std::os::unix::net::UnixStream::connect(facts).is_ok());
}

#[test]
fn f29_mode_leave_uninstalls_and_reports_when_it_is_done() {
    let node = Node::new("uninstall");
    node.set_configmap(&[("also_as", "istio-iptables")]);
    node.put_conf(FILE, PRIMARY);
    node.add_sandbox("one", &["calico", "gybe-cni"]);
    let agent = node.start_agent();
    wait_until("readiness", || agent.is_ready() && node.program_path("istio-iptables").exists());
    let before = node.conf_text(FILE);
    let refused = node.gybe("uninstall").arg("--run-dir").arg(node.root.join("run")).output().unwrap();
    assert_eq!((refused.status.code(), node.conf_text(FILE)), (Some(2), before), "{refused:?}");
    assert_eq!(agent.get("/left"), (503, "no uninstall requested\n".to_owned()));
    assert_eq!(agent.metric("gybe_left"), 0.0);
    node.set_configmap(&[("mode", "leave"), ("also_as", "istio-iptables")]);
    wait_until("the end of the uninstall", || agent.get("/left").0 == 200);
    assert_eq!(node.conf_text(FILE), PRIMARY, "byte for byte");
    assert_eq!(node.installed_build("gybe-cni"), "gybe-cni 1", "a sandbox exists, and more may be starting");
    assert!(node.program_path("gybe").exists(), "gybe uninstall may still be needed");
    assert!(!node.program_path("istio-iptables").exists());
    assert!(agent.get("/left").1.contains("gybe-cni stays"));
    // After its uninstall the agent restores nothing, so `gybe uninstall` is allowed.
    let run = node.root.join("run");
    let out = node.gybe("uninstall").arg("--run-dir").arg(&run).output().unwrap();
    assert_eq!((out.status.code(), String::from_utf8(out.stderr).unwrap()), (Some(0), String::new()));
    let (status, text) = agent.get("/readyz");
    assert!(status == 503 && text.contains("uninstalled"), "{status} {text}");
    assert_eq!(agent.metric("gybe_left"), 1.0);
    agent.wait_for_message("the plugin stays for existing sandboxes");
    // Pods that were starting still query their facts.
    assert!(node.root.join("run/facts.sock").exists());
    // An entry that another program restores is removed again.
    let entry =
        PRIMARY.replace("calico\"\n    }", "calico\"\n    },\n    {\n      \"type\": \"gybe-cni\"\n    }");
    node.put_conf(FILE, &entry);
    wait_until("its removal", || node.conf_text(FILE) == PRIMARY);
    // `mode: install` installs again.
    node.set_configmap(&[("mode", "install")]);
    wait_until("readiness", || agent.is_ready());
    assert!(node.entry(FILE).is_some() && node.program_path("gybe").exists());
}

#[test]
fn uninstall_without_an_install_changes_nothing() {
    let node = Node::new("leaves-nothing");
    node.set_configmap(&[("mode", "leave")]);
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    wait_until("the end of the uninstall", || agent.get("/left").0 == 200);
    assert_eq!(agent.get("/left").1, "uninstalled; no program stays\n");
    assert_eq!(node.conf_text(FILE), PRIMARY);
}
