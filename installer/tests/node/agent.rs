//! A running agent with a directory of its own, both gone when the test ends.

use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

pub(crate) struct Agent {
    pub(crate) directory: PathBuf,
    pub(crate) stderr: BufReader<ChildStderr>,
    child: Child,
}

/// A directory of the test's own.
pub(crate) fn scratch(test: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("gybe-node-{test}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(directory.join("pods/shop")).unwrap();
    directory
}

impl Agent {
    /// Starts one and waits until it serves.
    pub(crate) fn start(directory: PathBuf) -> Self {
        let mut child = gybe_node(&directory).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut agent = Self { directory, stderr, child };
        let first = agent.line();
        assert_eq!(first["msg"], "gybe node: serving", "{first}");
        agent
    }

    pub(crate) fn line(&mut self) -> Value {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|fault| panic!("{fault}: {line}"))
    }

    pub(crate) fn pid(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap())
    }

    pub(crate) fn terminate(&mut self) -> ExitStatus {
        nix::sys::signal::kill(self.pid(), nix::sys::signal::Signal::SIGTERM).unwrap();
        self.child.wait().unwrap()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("run/facts.sock")
    }

    /// Writes a manifest.
    pub(crate) fn holds(&self, file: &str, text: &str) {
        fs::write(self.directory.join("pods").join(file), text).unwrap();
    }

    /// Sends bytes, and reads the answer to its end.
    pub(crate) fn hears(&self, words: &[u8]) -> String {
        let mut call = UnixStream::connect(self.socket()).unwrap();
        call.write_all(words).unwrap();
        let mut answer = String::new();
        // Whoever was hung up on hears nothing.
        let _ = call.read_to_string(&mut answer);
        answer
    }

    /// Asks about a pod.
    pub(crate) fn asked(&self, namespace: &str, name: &str, uid: &str) -> Value {
        let question = json!({ "version": 1, "namespace": namespace, "name": name, "uid": uid });
        serde_json::from_str(&self.hears(format!("{question}\n").as_bytes())).unwrap()
    }
}

#[expect(clippy::disallowed_methods, reason = "the program under test is a program")]
pub(crate) fn gybe_node(directory: &std::path::Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gybe"));
    command.arg("node").arg("--pods-from").arg(directory.join("pods"));
    command.arg("--socket").arg(directory.join("run/facts.sock")).stdout(Stdio::null());
    command
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A pod as Istio's injector leaves it.
pub(crate) fn meshed(name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "shop", "name": name, "uid": uid,
            "annotations": { "sidecar.istio.io/status": "{}", "example.com/other": "x" },
        },
        "spec": { "containers": [{ "name": "app" }, { "name": "istio-proxy", "args": ["proxy", "sidecar"] }] },
    })
}
