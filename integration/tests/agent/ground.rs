//! A running agent, and ADDs that query it.

use gybe_installer::testnet::namespace::Namespace;
use gybe_integration::programs::{Run, ours, path_of_ours, run};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

/// A running agent whose cache has the example's pod. Dropping it ends the agent.
pub(crate) struct Agent {
    pub(crate) place: PathBuf,
    child: Child,
    stderr: BufReader<ChildStderr>,
}

/// The uid of an unprivileged user.
pub(crate) const STRANGER: u32 = 1000;

impl Agent {
    pub(crate) fn start(test: &str) -> Self {
        Self::run_by(0, test)
    }

    pub(crate) fn run_by(user: u32, test: &str) -> Self {
        let place = std::env::temp_dir().join(format!("gybe-agent-{test}-{}", std::process::id()));
        fs::create_dir_all(place.join("shop")).unwrap();
        fs::write(place.join("shop/cart-0.json"), include_str!("../../../examples/pod.json")).unwrap();
        chown(&place, Some(user), Some(user)).unwrap();
        let (child, stderr) = serving(&place, user);
        Self { place, child, stderr }
    }

    /// Ends the agent with this signal, and starts another one on the same socket path.
    pub(crate) fn start_again(&mut self, after: Signal) {
        self.signal(after);
        self.child.wait().unwrap();
        (self.child, self.stderr) = serving(&self.place, 0);
    }

    /// Kills the agent with SIGKILL.
    pub(crate) fn crash(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// Ends the agent with SIGTERM, as the kubelet does, and returns its log.
    pub(crate) fn end(&mut self) -> String {
        self.signal(Signal::SIGTERM);
        let mut told = String::new();
        self.stderr.read_to_string(&mut told).unwrap();
        told
    }
}

/// Copies one of Gybe's programs to a directory in which other users can run it; the build directory may be closed to
/// them.
fn program(place: &Path, name: &str) -> PathBuf {
    let copy = place.join(name);
    if !copy.exists() {
        // A child process copies it: children that this process forks meanwhile would inherit a file open for writing,
        // and running the program would fail with ETXTBSY until their exec.
        let source = path_of_ours(name).unwrap();
        let words = [source.to_str().unwrap(), copy.to_str().unwrap()];
        assert_eq!(run("cp", &words, "").unwrap().code, Some(0));
    }
    copy
}

#[expect(clippy::disallowed_methods, reason = "the agent runs in the background of the test")]
fn gybe_node(place: &Path, user: u32) -> Child {
    let socket = place.join("run/facts.sock");
    let mut command = Command::new(program(place, "gybe"));
    command.uid(user).gid(user);
    command.arg("node").arg("--pods-from").arg(place).arg("--socket").arg(socket);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Starts an agent and waits for its log line that it serves.
fn serving(place: &Path, user: u32) -> (Child, BufReader<ChildStderr>) {
    let mut child = gybe_node(place, user);
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut first = String::new();
    stderr.read_line(&mut first).unwrap();
    assert!(first.contains("gybe node: serving"), "{first}");
    (child, stderr)
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.place);
    }
}

/// Makes the example ADD for this namespace with this agent; `annotations` are those that the runtime passes.
pub(crate) fn add(agent: &Agent, pod: &Namespace, annotations: Option<Value>) -> Run {
    add_as(&["env", "-i"], &agent.place, pod, annotations)
}

pub(crate) fn add_as(by: &[&str], place: &Path, pod: &Namespace, annotations: Option<Value>) -> Run {
    let mut add: Value = serde_json::from_str(include_str!("../../../examples/add.json")).unwrap();
    add["env"]["CNI_NETNS"] = json!(pod.path());
    let entry = &mut add["stdin"];
    entry["facts"] = json!({ "socket": place.join("run/facts.sock"), "deadline_ms": 4000 });
    if let Some(annotations) = annotations {
        entry["runtimeConfig"]["io.kubernetes.cri.pod-annotations"] = annotations;
    }
    let set = add["env"].as_object().unwrap().iter();
    let set: Vec<_> = set.map(|(name, value)| format!("{name}={}", value.as_str().unwrap())).collect();
    let plugin = program(place, "gybe-cni");
    let by = by.iter().copied();
    let words: Vec<_> = by.chain(set.iter().map(String::as_str)).chain(plugin.to_str()).collect();
    run(words[0], &words[1..], &add["stdin"].to_string()).unwrap()
}

pub(crate) fn pod() -> Namespace {
    let pod = Namespace::new().unwrap();
    pod.run(|| run("ip", &["address", "add", "10.244.0.10/32", "dev", "lo"], "")).unwrap().unwrap();
    pod
}

pub(crate) fn inspected(pod: &Namespace) -> String {
    ours("gybe", &["inspect", "--netns", &pod.path().to_string_lossy()], "").unwrap().out
}
