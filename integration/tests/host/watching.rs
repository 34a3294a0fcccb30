//! `gybe probe --host --watch`: it keeps running, and probes again if the report is removed.

use crate::world::{CAPABILITIES, Container, Host};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

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
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for line in stderr.lines().map_while(Result::ok) {
            let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
            if tell.send(line).is_err() {
                return;
            }
        }
    });
    told
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
    fs::remove_file(host.kept()).unwrap();
    assert_eq!(watcher.next()["msg"], "gybe probe: probed the node");
    assert_eq!(host.findings()["backends"].as_object().unwrap().len(), 3);
    kill(Pid::from_raw(watcher.child.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(watcher.child.wait().unwrap().code(), Some(0));
    assert!(watcher.lines.recv().is_err(), "nothing else was told");
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
    fs::remove_file(host.kept()).unwrap();
    assert_eq!(new.next()["msg"], probed);
    drop(new);
    // The old one has written nothing since, and now probes.
    let messages: Vec<_> = [old.next(), old.next()].iter().map(|line| line["msg"].clone()).collect();
    assert_eq!(messages, ["gybe probe: another probe leads on this node; waiting", probed]);
}
