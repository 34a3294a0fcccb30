//! A node's host as the agent's containers see it: pods on a node that has only iptables-legacy, the placement of
//! the real plugin while it runs, and `gybe probe --host`, which runs the host's programs, stores the report on the
//! host, and names missing capabilities.

#![cfg(test)]

mod container;
mod legacy;
mod programs;

use crate::container::{CAPABILITIES, Container, Host};
use gybe_integration::programs::ours;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const NFT: &str = "/usr/sbin/xtables-nft-multi";

#[test]
fn f23_the_hosts_own_programs_are_probed_and_the_report_is_stored_there() {
    let (host, container) = (Host::without("programs", &[NFT]), Container::new("programs"));
    let ran = container.sh(&(container.probe(&host, &CAPABILITIES) + " --keep --json"));
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:#?}");
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    for profile in ["v4", "v4+v6", "dns", "tproxy", "lists"] {
        for backend in ["nft", "iptables-legacy"] {
            assert_eq!(
                report["backends"][backend][profile]["finding"], "works",
                "{backend} {profile}: {report:#}"
            );
        }
        let why = report["backends"]["iptables-nft"][profile]["why"].as_str().unwrap_or_default();
        assert_eq!(why, "no iptables-nft programs for IPv4 on this node", "{profile}");
    }
    assert_eq!(report["untried"], serde_json::json!([]));
    assert_eq!(host.report()["backends"], report["backends"]);
    assert!(container.has_no_report());
}

#[test]
fn without_the_hosts_pid_namespace_a_mounted_proc_suffices() {
    let (host, container) = (Host::without("proc", &[NFT]), Container::new("proc"));
    let ran = container.sh(&(container.probe_by_mounted_proc(&host, &CAPABILITIES) + " --keep"));
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:#?}");
    assert_eq!(host.report()["backends"]["iptables-legacy"]["v4"]["finding"], "works");
    assert!(container.has_no_report());
}

#[test]
fn a_stored_report_does_not_replace_the_probe() {
    let (host, container) = (Host::without("fresh", &[NFT]), Container::new("fresh"));
    container.sh(&container.probe(&host, &CAPABILITIES));
    let mut earlier = host.report();
    earlier["backends"]["nft"]["v4"] =
        serde_json::json!({ "finding": "misbehaves", "what": "of an earlier probe" });
    fs::write(host.report_path(), earlier.to_string()).unwrap();
    assert_eq!(container.sh(&container.probe(&host, &CAPABILITIES)).code, Some(0));
    assert_eq!(host.report()["backends"]["nft"]["v4"]["finding"], "works");
}

#[test]
fn f36_without_a_capability_the_probe_names_it_and_stores_nothing() {
    let (host, container) = (Host::without("caps", &[]), Container::new("caps"));
    for lacking in CAPABILITIES {
        let rest: Vec<&str> = CAPABILITIES.into_iter().filter(|name| *name != lacking).collect();
        let ran = container.sh(&container.probe(&host, &rest));
        assert_eq!(ran.code, Some(2), "{lacking}: {ran:#?}");
        let name = lacking.to_uppercase();
        assert!(
            ran.err.contains(&format!("this process lacks capabilities to probe the host: CAP_{name} (")),
            "{}",
            ran.err
        );
        assert!(ran.err.ends_with(&format!("capabilities: {name}\n")), "{}", ran.err);
    }
    assert!(!host.report_path().exists() && container.has_no_report());
}

#[test]
fn without_the_hosts_processes_a_hint_names_the_mount() {
    let ran = ours("gybe", &["probe", "--host", "--mount-namespace", "/proc/self/ns/mnt"], "").unwrap();
    assert_eq!(ran.code, Some(2), "{ran:#?}");
    assert!(ran.err.contains("is the mount namespace that gybe itself runs in"), "{}", ran.err);
    assert!(ran.err.contains("hint: in a pod mount the host's /proc"), "{}", ran.err);
}

#[test]
fn f11_a_report_that_must_be_stored_and_cannot_be_is_a_failure() {
    let host = Host::without("unkept", &[]);
    let container = Container::new("unkept");
    // A file in place of the directory, which makes creating it fail as a read-only /run would.
    fs::write(host.report_path().parent().unwrap(), "").unwrap();
    let probe = container.probe(&host, &CAPABILITIES);
    let ran = container.sh(&format!("{probe} --keep"));
    assert_eq!(ran.code, Some(2), "{ran:#?}");
    assert!(ran.err.starts_with("gybe: the findings cannot be kept in /run/gybe: "), "{}", ran.err);
    let ran = container.sh(&probe);
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    assert!(ran.err.contains("note: the findings cannot be kept in /run/gybe"), "{}", ran.err);
}

/// A running `gybe probe --watch`; dropping it ends the process.
struct Watcher {
    child: Child,
    lines: Receiver<Value>,
}

impl Watcher {
    fn start(host: &Host, container: &Container) -> Self {
        let mut child = container.start(&(container.probe(host, &CAPABILITIES) + " --watch --keep"));
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Self { child, lines: lines_of(stderr) }
    }

    fn next(&self) -> Value {
        self.lines.recv_timeout(Duration::from_secs(60)).unwrap()
    }
}

/// Reads the log lines in the background; the test receives each with a deadline.
fn lines_of(stderr: BufReader<ChildStderr>) -> Receiver<Value> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in stderr.lines().map_while(Result::ok) {
            let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_removed_report_is_probed_again_until_sigterm() {
    let (host, container) = (Host::without("watch", &[]), Container::new("watch"));
    let mut watcher = Watcher::start(&host, &container);
    let first = watcher.next();
    assert_eq!(
        (&first["msg"], &first["backend"]),
        (&"gybe probe: probed the node".into(), &"nft".into()),
        "{first}"
    );
    // The plugin removes the report after a backend's first "not supported" error.
    fs::remove_file(host.report_path()).unwrap();
    assert_eq!(watcher.next()["msg"], "gybe probe: probed the node");
    assert_eq!(host.report()["backends"].as_object().unwrap().len(), 3);
    kill(Pid::from_raw(watcher.child.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(watcher.child.wait().unwrap().code(), Some(0));
    assert!(watcher.lines.recv().is_err(), "no other line was logged");
}

#[test]
fn of_two_probes_the_newer_one_writes_the_report_and_the_other_one_continues_when_it_ends() {
    let (host, container) = (Host::without("two-probes", &[]), Container::new("two-probes"));
    let probed = "gybe probe: probed the node";
    let old = Watcher::start(&host, &container);
    assert_eq!(old.next()["msg"], probed);
    let new = Watcher::start(&host, &container);
    assert_eq!(new.next()["msg"], "gybe probe: another probe leads on this node; waiting");
    assert_eq!(old.next()["msg"], "gybe probe: hands over to a newer probe of this node");
    assert_eq!(new.next()["msg"], probed);
    fs::remove_file(host.report_path()).unwrap();
    assert_eq!(new.next()["msg"], probed);
    drop(new);
    // The old one has written nothing since, and now probes.
    let messages: Vec<_> = [old.next(), old.next()].iter().map(|line| line["msg"].clone()).collect();
    assert_eq!(messages, ["gybe probe: another probe leads on this node; waiting", probed]);
}
