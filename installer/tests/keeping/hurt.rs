//! Unwritable directories and full disks: the agent reports each with a remedy, and existing files keep working.

use crate::node::{Node, PRIMARY};
use gybe_installer::host::apply::NodeLock;
use gybe_test_support::wait_until;
use std::fs;
use std::os::unix::fs::symlink;

const FILE: &str = "10-calico.conflist";

#[test]
fn f37_a_conf_directory_that_is_elsewhere_is_named_with_what_helps() {
    let mut node = Node::new("elsewhere");
    node.sets("MOUNTED_CNI_NET_DIR", &node.root.join("none").display().to_string());
    let agent = node.agent();
    let told = agent.wait_for_message("there is no conf directory");
    assert!(told["hint"].as_str().unwrap().contains("cni-conf"), "{told}");
    assert!(node.program("gybe-cni").exists(), "what can be done is done");
}

#[test]
fn f13_a_conf_directory_behind_a_link_is_followed_when_the_link_moves() {
    let mut node = Node::new("link");
    for folder in ["blue", "green"] {
        fs::create_dir(node.root.join(folder)).unwrap();
        fs::write(node.root.join(folder).join(FILE), PRIMARY).unwrap();
    }
    let link = node.root.join("link");
    symlink("blue", &link).unwrap();
    node.sets("MOUNTED_CNI_NET_DIR", &link.display().to_string());
    let agent = node.agent();
    let has_entry = |folder: &str| {
        fs::read_to_string(node.root.join(folder).join(FILE)).is_ok_and(|text| text.contains("gybe-cni"))
    };
    wait_until("an entry", || has_entry("blue"));
    symlink("green", node.root.join("link.new")).unwrap();
    fs::rename(node.root.join("link.new"), &link).unwrap();
    wait_until("an entry in the other", || has_entry("green"));
    wait_until("readiness", || agent.is_ready());
}

/// A mount pins the directory's inode, so the mounted directory is no longer the one at its path.
#[test]
fn f13_a_conf_directory_that_was_deleted_under_its_mount_ends_the_agents_health() {
    let mut node = Node::new("deleted");
    node.puts(FILE, PRIMARY);
    let directory = node.root.join("net.d");
    let held = fs::File::open(&directory).unwrap();
    let mount = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&held));
    node.sets("MOUNTED_CNI_NET_DIR", &mount);
    let agent = node.agent();
    wait_until("an entry", || node.entry(FILE).is_some() && agent.is_ready());
    assert_eq!(agent.get("/healthz").0, 200);
    fs::remove_dir_all(&directory).unwrap();
    fs::create_dir(&directory).unwrap();
    node.puts(FILE, PRIMARY);
    wait_until("an end of its health", || agent.get("/healthz").0 == 503);
    let text = agent.get("/healthz").1;
    assert!(text.contains("the conf directory was deleted on the host"), "{text}");
    agent.wait_for_message("the conf directory was deleted on the host");
    assert!(node.entry(FILE).is_none(), "it cannot be reached from here");
}

#[test]
fn f37_a_name_that_is_a_directory_is_reported_and_retried_with_pauses() {
    let node = Node::new("occupied");
    node.puts(FILE, PRIMARY);
    fs::create_dir_all(node.program("gybe-cni").join("not-empty")).unwrap();
    let agent = node.agent();
    agent.wait_for_line(|line| line["level"] == "error");
    let turns = agent.metric("gybe_passes_total");
    std::thread::sleep(std::time::Duration::from_secs(3));
    let more = agent.metric("gybe_passes_total") - turns;
    assert!(more <= 6.0, "{more} turns in 3 s: our own attempts wake us");
    assert!(agent.metric("istio_cni_installs_total{result=\"COPY_BINARIES_FAILURE\"}") > 0.0);
    fs::remove_dir_all(node.program("gybe-cni")).unwrap();
    wait_until("readiness", || agent.is_ready());
}

#[test]
fn the_agent_waits_for_the_lock_and_reports_how_to_find_its_holder() {
    let node = Node::new("locked");
    node.puts(FILE, PRIMARY);
    let other = NodeLock::take(&node.root.join("bin")).unwrap();
    let agent = node.started();
    agent.wait_for_line(|line| line["msg"] == "gybe node: listens" && line["for"] == "health");
    let told = agent.wait_for_message("another gybe is changing");
    assert!(told["hint"].as_str().unwrap().contains("lslocks"), "{told}");
    assert!(!agent.is_ready() && node.entry(FILE).is_none());
    drop(other);
    wait_until("readiness", || agent.is_ready());
}

#[test]
fn a_directory_without_programs_keeps_the_agent_from_starting_and_is_named_with_what_helps() {
    let mut node = Node::new("empty-image");
    node.sets("GYBE_PROGRAMS_DIR", "/nonexistent");
    let agent = node.started();
    let told =
        agent.wait_for_line(|line| line["text"].as_str().is_some_and(|text| text.contains("cannot start")));
    let told = told["text"].as_str().unwrap();
    assert!(told.contains("/nonexistent/gybe") && !told.contains('\n'), "{told}");
    agent.wait_for_line(|line| line["text"].as_str().is_some_and(|text| text.contains("GYBE_PROGRAMS_DIR")));
}
