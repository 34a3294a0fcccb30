//! Missing and replaced directories, a held lock, an image without programs, and no free file descriptors: the agent
//! reports each with a remedy and continues once the fault is gone.

use crate::node::{FILE, Node, PRIMARY};
use crate::with_api_server::Cluster;
use gybe_installer::host::apply::NodeLock;
use gybe_test_support::{Agent, PATIENCE, wait_until};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn f37_a_missing_conf_directory_is_reported_with_a_hint() {
    let mut node = Node::new("elsewhere");
    node.set_env("MOUNTED_CNI_NET_DIR", &node.root.join("none").display().to_string());
    let agent = node.start_agent();
    let line = agent.wait_for_message("there is no conf directory");
    assert!(line["hint"].as_str().unwrap().contains("cni-conf"), "{line}");
    assert!(node.program_path("gybe-cni").exists(), "the programs are placed nevertheless");
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
    node.set_env("MOUNTED_CNI_NET_DIR", &link.display().to_string());
    let agent = node.start_agent();
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
    node.put_conf(FILE, PRIMARY);
    let directory = node.root.join("net.d");
    let held = fs::File::open(&directory).unwrap();
    let mount = format!("/proc/{}/fd/{}", std::process::id(), held.as_raw_fd());
    node.set_env("MOUNTED_CNI_NET_DIR", &mount);
    let agent = node.start_agent();
    wait_until("an entry", || node.entry(FILE).is_some() && agent.is_ready());
    assert_eq!(agent.get("/healthz").0, 200);
    fs::remove_dir_all(&directory).unwrap();
    fs::create_dir(&directory).unwrap();
    node.put_conf(FILE, PRIMARY);
    wait_until("an end of its health", || agent.get("/healthz").0 == 503);
    let text = agent.get("/healthz").1;
    assert!(text.contains("the conf directory was deleted on the host"), "{text}");
    agent.wait_for_message("the conf directory was deleted on the host");
    assert!(node.entry(FILE).is_none(), "the new directory is not mounted");
}

#[test]
fn f37_a_name_that_is_a_directory_is_reported_and_retried_with_pauses() {
    let node = Node::new("occupied");
    node.put_conf(FILE, PRIMARY);
    fs::create_dir_all(node.program_path("gybe-cni").join("not-empty")).unwrap();
    let agent = node.start_agent();
    agent.wait_for_line(|line| line["level"] == "error");
    let reason = "- still to do: place program gybe-cni: cannot ";
    let has_reason = |line: &str| {
        line.starts_with(reason) && line.contains("EISDIR") && line.contains("; a directory has this name")
    };
    wait_until("the error of the last attempt", || agent.get("/readyz").1.lines().any(has_reason));
    let (passes, since) = (agent.metric("gybe_passes_total"), Instant::now());
    std::thread::sleep(Duration::from_secs(3));
    let more = agent.metric("gybe_passes_total") - passes;
    let most = 2.0 * since.elapsed().as_secs_f64();
    assert!(more <= most, "{more} passes where {most} are allowed: its own attempts wake the agent");
    assert!(agent.metric("istio_cni_installs_total{result=\"COPY_BINARIES_FAILURE\"}") > 0.0);
    fs::remove_dir_all(node.program_path("gybe-cni")).unwrap();
    wait_until("readiness", || agent.is_ready());
}

#[test]
fn the_agent_waits_for_the_lock_and_reports_how_to_find_its_holder() {
    let node = Node::new("locked");
    node.put_conf(FILE, PRIMARY);
    let other = NodeLock::take(&node.root.join("bin")).unwrap();
    let agent = node.spawn_agent();
    agent.wait_for_line(|line| line["msg"] == "gybe node: listens" && line["for"] == "health");
    let line = agent.wait_for_message("another gybe is changing");
    assert!(line["hint"].as_str().unwrap().contains("lslocks"), "{line}");
    assert!(!agent.is_ready() && node.entry(FILE).is_none());
    drop(other);
    wait_until("readiness", || agent.is_ready());
}

#[test]
fn without_programs_in_its_image_the_agent_does_not_start_and_prints_a_hint() {
    let mut node = Node::new("empty-image");
    node.set_env("GYBE_PROGRAMS_DIR", "/nonexistent");
    let agent = node.spawn_agent();
    let line =
        agent.wait_for_line(|line| line["text"].as_str().is_some_and(|text| text.contains("cannot start")));
    let error = line["text"].as_str().unwrap();
    assert!(error.contains("/nonexistent/gybe") && !error.contains('\n'), "{error}");
    agent.wait_for_line(|line| line["text"].as_str().is_some_and(|text| text.contains("GYBE_PROGRAMS_DIR")));
}

#[expect(clippy::disallowed_methods, reason = "prlimit(2) has no safe wrapper here")]
fn limit_descriptors(agent: &Agent, descriptors: &str) {
    let pid = agent.pid().to_string();
    let mut prlimit = Command::new("prlimit");
    let status = prlimit.args(["--pid", &pid, &format!("--nofile={descriptors}:")]).status().unwrap();
    assert!(status.success());
}

/// Returns the processor time used so far in hundredths of a second (proc_pid_stat(5), fields 14 and 15).
fn processor_ticks(agent: &Agent) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/stat", agent.pid())).unwrap();
    let fields = text.rsplit(") ").next().unwrap().split(' ');
    fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

#[test]
fn without_file_descriptors_the_agent_does_not_spin_and_continues_once_they_are_back() {
    let node = Node::new("exhausted");
    node.put_conf(FILE, PRIMARY);
    let agent = node.start_agent();
    wait_until("readiness", || agent.is_ready());
    let plugin = || fs::metadata(node.program_path("gybe-cni")).unwrap().ino();
    let before = plugin();
    // Descriptors 0 to 2 are in use, so a limit of 3 leaves none.
    limit_descriptors(&agent, "3");
    let mut plugin_call = UnixStream::connect(node.root.join("run/facts.sock")).unwrap();
    plugin_call.write_all(b"{\"version\":1,\"namespace\":\"shop\",\"name\":\"cart-0\"}\n").unwrap();
    let _other_agent = UnixStream::connect(node.root.join("run/leader.sock")).unwrap();
    let mut probe = TcpStream::connect(agent.address("health")).unwrap();
    probe.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    node.put_conf(FILE, PRIMARY);
    agent.wait_for_message("no file descriptors are left");
    let (ticks, lasting) = (processor_ticks(&agent), Duration::from_secs(3));
    std::thread::sleep(lasting);
    let ticks = processor_ticks(&agent) - ticks;
    println!("without descriptors for {lasting:?}: {} ms of processor time", 10 * ticks);
    assert!(ticks < 100, "{ticks} hundredths of a second in {lasting:?}");
    assert!(node.entry(FILE).is_none());
    limit_descriptors(&agent, "1024");
    let since = Instant::now();
    wait_until("an entry again", || node.entry(FILE).is_some());
    // The next regular pass would come after ten seconds.
    assert!(since.elapsed() < Duration::from_secs(9), "{:?}", since.elapsed());
    plugin_call.set_read_timeout(Some(PATIENCE)).unwrap();
    probe.set_read_timeout(Some(PATIENCE)).unwrap();
    for answer in [&mut plugin_call as &mut dyn Read, &mut probe] {
        let mut text = [0; 16];
        assert!(answer.read(&mut text).unwrap() > 0, "the waiting clients are answered");
    }
    wait_until("readiness", || agent.is_ready());
    assert_eq!(plugin(), before, "a program that could not be read is not replaced");
    assert_eq!(agent.metric("gybe_foreign_rewrites_total{what=\"programs\"}"), 0.0);
}

#[test]
fn an_agent_that_cannot_wait_ends_with_an_error_and_uninstalls_nothing() {
    let cluster = Cluster::new("cannot-wait");
    cluster.node.set_configmap(&[("mode", "leave")]);
    let mut agent = cluster.node.start_agent();
    agent.wait_for_message("gybe node: uninstalled");
    // poll(2): EINVAL, because there are more descriptors than the process may have.
    limit_descriptors(&agent, "2");
    assert!(!agent.wait().success());
    let log = agent.whole_log();
    let message = |line: &Value| line["msg"].as_str().unwrap_or_default().to_owned();
    assert!(!log.iter().any(|line| message(line).contains("the DaemonSet is gone")), "{log:?}");
}
