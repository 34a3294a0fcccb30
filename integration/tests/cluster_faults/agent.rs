//! The node agent's process: `gybe node` with an API server, started and killed.

use crate::site::{NODE, PATIENCE, programs};
use gybe_api_server::ApiServer;
use gybe_integration::plugin_call::PluginDir;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

/// A running agent; dropping it kills the agent.
pub(crate) struct Agent {
    child: Child,
    /// Reads the agent's log continuously, because the agent would block on a full pipe.
    reader: Option<JoinHandle<()>>,
}

impl Agent {
    /// Starts an agent and waits until it serves. Its `/run` is the test directory's, with the service account's files in
    /// it; `/var/run` is a link to it.
    pub(crate) fn start(place: &PluginDir, server: &ApiServer) -> Self {
        let mut child = gybe_node(place, server);
        let (serving, served) = channel();
        let stderr = child.stderr.take().unwrap();
        let reader = Some(thread::spawn(move || follow(stderr, &serving)));
        let agent = Self { child, reader };
        served.recv_timeout(PATIENCE).unwrap_or_else(|why| panic!("the agent does not serve: {why}"));
        agent
    }

    /// Kills the agent with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.reader.take().map(JoinHandle::join);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
    }
}

fn follow(stderr: ChildStderr, serving: &Sender<()>) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        if line.contains("gybe node: serving") {
            let _ = serving.send(());
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the agent runs in the background of the test")]
fn gybe_node(place: &PluginDir, server: &ApiServer) -> Child {
    // The agent dies with the thread that started it, also if the test is killed.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private", "sh", "-c"]);
    command.arg("mount --bind \"$1\" /run && exec \"$2\" node --install=false --socket \"$3\"").arg("agent");
    command.arg(place.run()).arg(programs("gybe")).arg(place.run().join("facts.sock"));
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("KUBERNETES_NODE_NAME", NODE);
    command.env("KUBERNETES_SERVICE_HOST", server.address().ip().to_string());
    command.env("KUBERNETES_SERVICE_PORT", server.address().port().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}
