//! A running agent that reads its pods from the manifests in a directory.

use gybe_test_support::{SERVING, TestDir, facts, wait_until};
use serde_json::{Value, json};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

pub(crate) struct ManifestAgent {
    // Dropped first: an agent that runs would write into a directory that is being removed.
    process: gybe_test_support::Agent,
    pub(crate) directory: Arc<TestDir>,
}

pub(crate) fn directory_of(test: &str) -> TestDir {
    TestDir::new(&format!("node-{test}")).with_subdirectories(&["pods/shop"])
}

impl ManifestAgent {
    /// Starts an agent and waits until it serves.
    pub(crate) fn start(directory: impl Into<Arc<TestDir>>) -> Self {
        let agent = Self::spawn(directory.into());
        agent.read_log();
        assert_eq!(agent.next_line()["msg"], SERVING);
        agent
    }

    /// Starts an agent in a new directory, does not read its log, and waits until it has both sockets.
    pub(crate) fn start_unread(directory: TestDir) -> Self {
        let agent = Self::spawn(directory.into());
        wait_until("the sockets are there", || {
            agent.directory.join("run/log.sock").exists() && agent.socket().exists()
        });
        agent
    }

    fn spawn(directory: Arc<TestDir>) -> Self {
        let process = gybe_test_support::Agent::start_unread(gybe_node(&directory));
        Self { directory, process }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("run/facts.sock")
    }

    /// Writes a manifest.
    pub(crate) fn put(&self, file: &str, text: &str) {
        self.directory.write(Path::new("pods").join(file), text);
    }

    /// Sends bytes to the facts socket and returns the reply.
    pub(crate) fn send(&self, bytes: &[u8]) -> String {
        facts::send(&self.socket(), bytes)
    }

    /// Queries a pod.
    pub(crate) fn query(&self, namespace: &str, name: &str, uid: &str) -> Value {
        facts::query(&self.socket(), &facts::request(namespace, name, uid))
    }
}

impl Deref for ManifestAgent {
    type Target = gybe_test_support::Agent;

    fn deref(&self) -> &Self::Target {
        &self.process
    }
}

impl DerefMut for ManifestAgent {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.process
    }
}

#[expect(clippy::disallowed_methods, reason = "the program under test is a program")]
pub(crate) fn gybe_node(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gybe"));
    command.arg("node").arg("--pods-from").arg(directory.join("pods"));
    command.arg("--socket").arg(directory.join("run/facts.sock"));
    command
}

/// Returns a pod as Istio's injector changes it.
pub(crate) fn injected_pod(name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "shop", "name": name, "uid": uid,
            "annotations": { "sidecar.istio.io/status": "{}", "example.com/other": "x" },
        },
        "spec": { "containers": [{ "name": "app" }, { "name": "istio-proxy", "args": ["proxy", "sidecar"] }] },
    })
}
