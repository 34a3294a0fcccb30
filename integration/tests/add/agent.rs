//! A running agent, and ADDs that query it.

use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::programs::{Run, ours, path_of_ours, run};
use gybe_test_support::TestDir;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A running agent whose cache has the example's pod. Dropping it ends the agent.
pub(crate) struct Agent {
    // Dropped first: an agent that runs would write into a directory that is being removed.
    process: gybe_test_support::Agent,
    pub(crate) directory: TestDir,
}

/// The uid of an unprivileged user.
pub(crate) const UNPRIVILEGED: u32 = 1000;

impl Agent {
    pub(crate) fn start(test: &str) -> Self {
        Self::start_as(0, test)
    }

    pub(crate) fn start_as(user: u32, test: &str) -> Self {
        let directory = TestDir::new(&format!("agent-{test}"));
        directory.write("shop/cart-0.json", include_str!("../../../examples/pod.json"));
        chown(directory.path(), Some(user), Some(user)).unwrap();
        let process = gybe_test_support::Agent::start_serving(gybe_node(&directory, user));
        Self { directory, process }
    }

    /// Ends the agent with this signal, and starts another one on the same socket path.
    pub(crate) fn restart(&mut self, signal: Signal) {
        self.stop(signal);
        self.process = gybe_test_support::Agent::start_serving(gybe_node(&self.directory, 0));
    }

    pub(crate) fn stop(&mut self, signal: Signal) {
        let _ = self.process.stop(signal);
    }

    /// Ends the agent with SIGTERM, as the kubelet does, and returns its log.
    pub(crate) fn terminate(&mut self) -> Vec<Value> {
        self.stop(Signal::SIGTERM);
        self.process.whole_log()
    }
}

/// Copies one of Gybe's programs to a directory in which other users can run it; the build directory may be closed to
/// them.
fn program(directory: &Path, name: &str) -> PathBuf {
    let copy = directory.join(name);
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
fn gybe_node(directory: &Path, user: u32) -> Command {
    let socket = directory.join("run/facts.sock");
    let mut command = Command::new(program(directory, "gybe"));
    command.uid(user).gid(user);
    command.arg("node").arg("--pods-from").arg(directory).arg("--socket").arg(socket);
    command
}

/// Makes the example ADD for this namespace with this agent; `annotations` are those that the runtime passes.
pub(crate) fn add(agent: &Agent, pod: &Namespace, annotations: Option<Value>) -> Run {
    add_as(&["env", "-i"], &agent.directory, pod, annotations)
}

pub(crate) fn add_as(wrapper: &[&str], directory: &Path, pod: &Namespace, annotations: Option<Value>) -> Run {
    let mut add: Value = serde_json::from_str(include_str!("../../../examples/add.json")).unwrap();
    add["env"]["CNI_NETNS"] = json!(pod.path());
    let entry = &mut add["stdin"];
    entry["facts"] = json!({ "socket": directory.join("run/facts.sock"), "deadline_ms": 4000 });
    if let Some(annotations) = annotations {
        entry["runtimeConfig"]["io.kubernetes.cri.pod-annotations"] = annotations;
    }
    let set = add["env"].as_object().unwrap().iter();
    let set: Vec<_> = set.map(|(name, value)| format!("{name}={}", value.as_str().unwrap())).collect();
    let plugin = program(directory, "gybe-cni");
    let wrapper = wrapper.iter().copied();
    let words: Vec<_> = wrapper.chain(set.iter().map(String::as_str)).chain(plugin.to_str()).collect();
    run(words[0], &words[1..], &add["stdin"].to_string()).unwrap()
}

pub(crate) fn pod() -> Namespace {
    let pod = Namespace::new().unwrap();
    pod.run(|| run("ip", &["address", "add", "10.244.0.10/32", "dev", "lo"], "")).unwrap().unwrap();
    pod
}

pub(crate) fn inspect(pod: &Namespace) -> String {
    ours("gybe", &["inspect", "--netns", &pod.path().to_string_lossy()], "").unwrap().out
}
