//! Two agents on a node, as during an upgrade or a rollback: one leads, and only that one changes the node.

use crate::node::{FILE, Node, PRIMARY};
use gybe_test_support::{Agent, http, wait_until, with_slowdown};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

const HANDS_OVER: &str = "gybe node: hands over to a newer agent of this node";

/// An agent, and the directory of its pod.
struct AgentPod {
    agent: Agent,
    directory: PathBuf,
}

impl AgentPod {
    fn start(node: &Node, pod: &str) -> Self {
        let directory = node.root.join(pod);
        fs::create_dir_all(&directory).unwrap();
        let mut command = node.command();
        command.env("GYBE_POD_DIR", &directory).env("POD_NAME", pod);
        Self { agent: Agent::start(command), directory }
    }

    /// Runs the kubelet's probe; returns its output when the agent answers.
    fn query(&self, question: &str) -> Option<Value> {
        #[expect(clippy::disallowed_methods, reason = "the program under test is a program")]
        let mut command = Command::new(env!("CARGO_BIN_EXE_gybe"));
        let command = command.args(["--json", "agent-status", question]).env("GYBE_POD_DIR", &self.directory);
        let output = command.output().unwrap();
        let json: Value = serde_json::from_slice(&output.stdout).ok()?;
        assert_eq!(output.status.success(), json[question] == true, "{json}");
        Some(json)
    }

    fn is_ready(&self) -> bool {
        self.query("ready").is_some_and(|json| json["ready"] == true)
    }

    fn leads(&self) -> bool {
        self.query("ready").is_some_and(|json| json["standby"] == false)
    }

    fn wait_until_ready(&self) {
        wait_until("readiness", || self.is_ready());
    }

    fn wait_until_it_leads(&self) {
        wait_until("the lead and readiness", || self.leads() && self.is_ready());
    }

    /// Returns the lines that report a change of the node.
    fn changes(&self) -> Vec<Value> {
        let log = self.agent.log().into_iter();
        log.filter(|line| line["msg"].as_str().is_some_and(|message| message.contains("changed the node")))
            .collect()
    }
}

/// A node on which both agents are configured with the same two ports.
fn node(test: &str) -> Node {
    let mut node = Node::new(test);
    // At an address that the other tests do not bind.
    let free = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), 0)).unwrap());
    for (name, free) in ["HEALTH_ADDRESS", "MONITORING_ADDRESS"].iter().zip(&free) {
        node.set_env(name, &free.local_addr().unwrap().to_string());
    }
    node.put_conf(FILE, PRIMARY);
    node
}

fn page(node: &Node, path: &str) -> Option<String> {
    let name = if path == "/metrics" { "MONITORING_ADDRESS" } else { "HEALTH_ADDRESS" };
    let answer = std::panic::catch_unwind(|| http::get(&node.environment[name], path)).ok()?;
    (answer.0 == 200).then_some(answer.1)
}

/// Returns what a write or a rename changes of Gybe's files.
fn stamps(node: &Node) -> Vec<(u64, i64, i64)> {
    let files = [node.conf_path(FILE), node.program_path("gybe-cni"), node.program_path("gybe")];
    let of = |path: &PathBuf| {
        let meta = fs::metadata(path).unwrap();
        (meta.ino(), meta.ctime(), meta.ctime_nsec())
    };
    files.iter().map(of).collect()
}

#[test]
fn of_two_agents_only_the_newer_one_changes_the_node_in_an_upgrade_and_in_a_rollback() {
    let node = node("surge");
    let mut old = AgentPod::start(&node, "pod-1");
    old.wait_until_it_leads();
    for (pod, build) in [("pod-2", "2"), ("pod-3", "1")] {
        node.write_image(build);
        let new = AgentPod::start(&node, pod);
        new.wait_until_it_leads();
        assert!(
            old.is_ready() && !old.leads(),
            "it knows the node's pods, and leads again if the other one ends"
        );
        assert_eq!(
            (node.installed_build("gybe-cni"), node.installed_build("gybe")),
            (format!("gybe-cni {build}"), format!("gybe {build}"))
        );
        wait_until("the page", || page(&node, "/readyz").is_some());
        let (before, changes) = (stamps(&node), (old.changes(), new.changes().len()));
        let until = Instant::now() + Duration::from_secs(5);
        while Instant::now() < until {
            assert_eq!(stamps(&node), before);
            assert!(page(&node, "/readyz").is_some_and(|text| text == "ready\n"));
            sleep(Duration::from_millis(50));
        }
        // Of another owner's rewrite, too, only one of the two is aware.
        node.put_conf(FILE, PRIMARY);
        wait_until("a repair", || node.entry(FILE).is_some());
        wait_until("its report", || new.changes().len() == changes.1 + 1);
        assert_eq!(old.changes(), changes.0);
        assert_eq!(page(&node, "/metrics").unwrap().matches("gybe_conflict{").count(), 2);
        for line in page(&node, "/metrics").unwrap().lines().filter(|line| line.starts_with("gybe_conflict{"))
        {
            assert!(line.ends_with(" 0"), "{line}");
        }
        let before = stamps(&node);
        assert!(old.agent.terminate().success());
        assert_eq!(stamps(&node), before);
        assert!(new.is_ready() && new.leads() && node.root.join("run/facts.sock").exists());
        old = new;
    }
}

#[test]
fn the_facts_socket_is_served_while_the_lead_passes() {
    let node = node("surge-facts");
    let _pod = node.add_pod("cart-0");
    let old = AgentPod::start(&node, "pod-1");
    old.wait_until_it_leads();
    let asked = std::sync::atomic::AtomicBool::new(true);
    let (answers, new) = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut answers = 0;
            while asked.load(std::sync::atomic::Ordering::Relaxed) {
                let answer = node.query("istio-system", "cart-0", "cart-0");
                assert_eq!(answer["pod"]["metadata"]["name"], "cart-0", "{answer}");
                answers += 1;
            }
            answers
        });
        let new = AgentPod::start(&node, "pod-2");
        new.wait_until_it_leads();
        asked.store(false, std::sync::atomic::Ordering::Relaxed);
        (client.join().unwrap(), new)
    });
    assert!(answers > 10 && new.leads(), "{answers}");
}

#[test]
fn when_the_leader_is_killed_the_other_agent_leads_at_once() {
    let node = node("surge-killed");
    let mut old = AgentPod::start(&node, "pod-1");
    old.wait_until_it_leads();
    let mut new = AgentPod::start(&node, "pod-2");
    new.wait_until_it_leads();
    let (took, slowdown) = with_slowdown(|| {
        let killed = Instant::now();
        new.agent.stop(Signal::SIGKILL);
        old.wait_until_it_leads();
        killed.elapsed()
    });
    assert!(took < Duration::from_secs(2).mul_f64(slowdown), "{took:?}, slowdown {slowdown:.2}");
    node.put_conf(FILE, PRIMARY);
    wait_until("a repair", || node.entry(FILE).is_some());
    // The kubelet starts the new pod's container again.
    let new = AgentPod::start(&node, "pod-2");
    new.wait_until_it_leads();
    // It does the same with the old pod's, which does not take the lead back.
    old.agent.stop(Signal::SIGKILL);
    let restarted = AgentPod::start(&node, "pod-1");
    restarted.agent.wait_for_message("another agent leads on this node");
    wait_until("an answer", || restarted.query("healthy").is_some_and(|json| json["healthy"] == true));
    sleep(Duration::from_secs(1));
    assert!(new.leads() && !restarted.leads() && !restarted.is_ready());
}

#[test]
fn a_newcomer_that_is_killed_at_any_moment_leaves_the_lead_to_the_old_agent() {
    let node = node("surge-mid");
    let old = AgentPod::start(&node, "pod-1");
    old.wait_until_it_leads();
    let threads = || fs::read_dir(format!("/proc/{}/task", old.agent.pid())).unwrap().count();
    let threads_before = threads();
    let hand_overs = || old.agent.log().iter().filter(|line| line["msg"] == HANDS_OVER).count();
    let mut killed = 0;
    // A busy machine may start all of them too slowly to take the lead within these times; then later ones live longer.
    while killed < 25 || hand_overs() == 0 && killed < 100 {
        let mut new = AgentPod::start(&node, &format!("pod-2-{killed}"));
        sleep(Duration::from_millis(8 * killed));
        killed += 1;
        new.agent.stop(Signal::SIGKILL);
        old.wait_until_it_leads();
        node.put_conf(FILE, PRIMARY);
        wait_until("a repair", || node.entry(FILE).is_some());
    }
    wait_until("the ports", || page(&node, "/metrics").is_some());
    wait_until("the end of the threads of each term but the last", || threads() <= threads_before);
    // Some were killed before the lead passed, and some afterwards.
    assert!((1..25).contains(&hand_overs()), "{}", hand_overs());
}

#[test]
fn an_agent_without_valid_settings_does_not_take_the_lead_from_one_that_works() {
    let node = node("surge-invalid");
    let mut old = AgentPod::start(&node, "pod-1");
    old.wait_until_it_leads();
    node.set_configmap(&[("mode", "sideways")]);
    old.agent.wait_for_message("the settings cannot be followed");
    let new = AgentPod::start(&node, "pod-2");
    new.agent.wait_for_message("another agent leads on this node");
    sleep(Duration::from_secs(1));
    assert!(old.leads() && old.is_ready() && !new.leads() && !new.is_ready());
    old.agent.stop(Signal::SIGKILL);
    wait_until("the lead", || new.leads());
    assert!(
        !new.is_ready() && node.entry(FILE).is_some(),
        "it answers queries, and leaves the node as it is"
    );
    node.set_configmap(&[("mode", "install")]);
    new.wait_until_ready();
}

#[test]
fn an_agent_that_waits_ends_at_once_and_removes_nothing() {
    let node = node("surge-ends");
    let old = AgentPod::start(&node, "pod-1");
    old.wait_until_it_leads();
    let mut restarted = AgentPod::start(&node, "pod-0");
    restarted.wait_until_it_leads();
    // The pod that waits is the older one now.
    let before = stamps(&node);
    assert!(restarted.agent.terminate().success());
    old.wait_until_it_leads();
    assert_eq!(stamps(&node), before);
    assert!(node.root.join("run/facts.sock").exists());
    wait_until("the page", || page(&node, "/readyz").is_some());
}

#[test]
fn a_leader_whose_lock_file_is_removed_makes_it_again_and_a_newer_agent_still_waits_for_it() {
    let node = node("surge-lock");
    let old = AgentPod::start(&node, "pod-1");
    old.wait_until_it_leads();
    for file in ["leader.lock", "leader.sock"] {
        fs::remove_file(node.root.join("run").join(file)).unwrap();
        wait_until("the file", || node.root.join("run").join(file).exists());
    }
    // No ADD needs these sockets.
    fs::remove_file(old.directory.join("status.sock")).unwrap();
    wait_until("the status", || old.leads());
    let lost = page(&node, "/metrics").unwrap();
    assert!(lost.contains("gybe_sockets_lost_total{socket=\"facts\"} 0"), "{lost}");
    let new = AgentPod::start(&node, "pod-2");
    new.wait_until_it_leads();
    wait_until("the hand-over", || old.agent.log().iter().any(|line| line["msg"] == HANDS_OVER));
    assert!(!old.leads());
}
