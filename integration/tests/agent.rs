//! Plugin and node agent together, as built: an ADD that only the agent can decide.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it did not expect has nothing better to do"
)]

use gybe_installer::demo::namespace::Namespace;
use gybe_integration::programs::{Run, ours, path_of_ours, run};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

/// A running agent that knows the example's pod, gone when the test ends.
struct Agent {
    place: PathBuf,
    child: Child,
    stderr: BufReader<ChildStderr>,
}

/// Any user but root.
const STRANGER: u32 = 1000;

impl Agent {
    fn start(test: &str) -> Self {
        Self::run_by(0, test)
    }

    fn run_by(user: u32, test: &str) -> Self {
        let place = std::env::temp_dir().join(format!("gybe-agent-{test}-{}", std::process::id()));
        fs::create_dir_all(place.join("shop")).unwrap();
        fs::write(place.join("shop/cart-0.json"), include_str!("../../examples/pod.json")).unwrap();
        chown(&place, Some(user), Some(user)).unwrap();
        let mut child = gybe_node(&place, user);
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut first = String::new();
        stderr.read_line(&mut first).unwrap();
        assert!(first.contains("gybe node: serving"), "{first}");
        Self { place, child, stderr }
    }

    /// One of our programs where strangers can run it: where it was built they may not look.
    fn program(&self, name: &str) -> PathBuf {
        program(&self.place, name)
    }

    /// Ends it as a crash would, and gives what it had told.
    fn crash(&mut self) -> String {
        self.child.kill().unwrap();
        let mut told = String::new();
        self.stderr.read_to_string(&mut told).unwrap();
        told
    }
}

fn program(place: &Path, name: &str) -> PathBuf {
    let copy = place.join(name);
    if !copy.exists() {
        fs::copy(path_of_ours(name).unwrap(), &copy).unwrap();
    }
    copy
}

#[expect(clippy::disallowed_methods, reason = "an agent runs beside the test, not to its end")]
fn gybe_node(place: &Path, user: u32) -> Child {
    let socket = place.join("run/facts.sock");
    let mut command = Command::new(program(place, "gybe"));
    command.uid(user).gid(user);
    command.arg("node").arg("--pods-from").arg(place).arg("--socket").arg(socket);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.place);
    }
}

/// The example ADD, for this namespace and asking this agent; `annotations` as the runtime hands over.
fn add(agent: &Agent, pod: &Namespace, annotations: Option<Value>) -> Run {
    add_as(&["env", "-i"], agent, pod, annotations)
}

fn add_as(by: &[&str], agent: &Agent, pod: &Namespace, annotations: Option<Value>) -> Run {
    let mut add: Value = serde_json::from_str(include_str!("../../examples/add.json")).unwrap();
    add["env"]["CNI_NETNS"] = json!(pod.path());
    let entry = &mut add["stdin"];
    entry["facts"] = json!({ "socket": agent.place.join("run/facts.sock") });
    if let Some(annotations) = annotations {
        entry["runtimeConfig"]["io.kubernetes.cri.pod-annotations"] = annotations;
    }
    let set = add["env"].as_object().unwrap().iter();
    let set: Vec<_> = set.map(|(name, value)| format!("{name}={}", value.as_str().unwrap())).collect();
    let plugin = agent.program("gybe-cni");
    let by = by.iter().copied();
    let words: Vec<_> = by.chain(set.iter().map(String::as_str)).chain(plugin.to_str()).collect();
    run(words[0], &words[1..], &add["stdin"].to_string()).unwrap()
}

fn pod() -> Namespace {
    let pod = Namespace::new().unwrap();
    pod.run(|| run("ip", &["address", "add", "10.244.0.10/32", "dev", "lo"], "")).unwrap().unwrap();
    pod
}

fn inspected(pod: &Namespace) -> String {
    ours("gybe", &["inspect", "--netns", &pod.path().to_string_lossy()], "").unwrap().out
}

#[test]
fn a_pod_only_the_agent_knows_is_redirected_and_its_line_reaches_the_agent() {
    let (mut agent, pod) = (Agent::start("redirect"), pod());
    let ran = add(&agent, &pod, None);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(inspected(&pod).contains("outbound-to-proxy"), "{}", inspected(&pod));
    let told = agent.crash();
    let line = told.lines().find(|line| line.contains("gybe-cni cmdAdd")).unwrap_or_else(|| panic!("{told}"));
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!((line["pod"].as_str(), line["decision"].as_str()), (Some("shop/cart-0"), Some("redirect")));
}

#[test]
fn f14_without_its_agent_a_meshed_pod_is_refused_untouched_and_an_unmeshed_one_passes() {
    let (mut agent, pod) = (Agent::start("crash"), pod());
    agent.crash();
    let refused = add(&agent, &pod, None);
    let answer: Value = serde_json::from_str(&refused.out).unwrap();
    assert_eq!((refused.code, answer["code"].as_u64()), (Some(1), Some(11)), "{refused:?}");
    assert!(answer["msg"].as_str().unwrap().contains("GYBE-ADD-032: the node agent at"), "{answer}");
    assert!(inspected(&pod).starts_with("nothing of ours"), "{}", inspected(&pod));
    for unmeshed in [json!(null), json!({}), json!({ "example.com/x": "y" })] {
        let ran = add(&agent, &pod, Some(unmeshed));
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
}

#[test]
fn a08_a_stranger_at_the_socket_is_not_believed() {
    let (agent, pod) = (Agent::run_by(STRANGER, "stranger"), pod());
    let refused = add(&agent, &pod, None);
    assert!(
        refused.out.contains("GYBE-ADD-032") && refused.out.contains("is run by user 1000"),
        "{refused:?}"
    );
    assert!(inspected(&pod).starts_with("nothing of ours"), "{}", inspected(&pod));
}

#[test]
fn a_stranger_that_calls_is_told_nothing_whatever_the_sockets_mode() {
    let (mut agent, pod) = (Agent::start("caller"), pod());
    let as_stranger = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "env", "-i"];
    let refused = add_as(&as_stranger, &agent, &pod, None);
    assert!(refused.out.contains("GYBE-ADD-032") && refused.out.contains("Permission denied"), "{refused:?}");
    let socket = agent.place.join("run/facts.sock");
    fs::set_permissions(socket, fs::Permissions::from_mode(0o666)).unwrap();
    let refused = add_as(&as_stranger, &agent, &pod, None);
    assert!(refused.code == Some(1) && refused.out.contains("GYBE-ADD-032"), "{refused:?}");
    let told = agent.crash();
    assert!(told.contains("a caller was refused") && told.contains("1000"), "{told}");
}
