//! A node and its cluster: the API server, the agent, the files between them, the pods, and what goes on in the
//! background of a test.

use gybe_api_server::{ApiServer, Bearer, Network, Request, ServiceAccount, Token, Validity};
use gybe_integration::plugin_call::PluginDir;
use gybe_integration::programs::path_of_ours;
use gybe_test_support::{Agent, PATIENCE, cluster_environment};
use serde_json::{Value, json};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// The agent's node.
pub(crate) const NODE: &str = "node-1";

pub(crate) struct TestNode {
    pub(crate) server: ApiServer,
    pub(crate) account: ServiceAccount,
    pub(crate) directory: PluginDir,
    pub(crate) agent: Option<Agent>,
}

/// Returns the command that starts the agent. Its `/run` is the test directory's, with the service account's files in
/// it; `/var/run` is a link to it.
#[expect(clippy::disallowed_methods, reason = "the agent runs in the background of the test")]
fn gybe_node(directory: &PluginDir, server: &ApiServer) -> Command {
    // The agent dies with the thread that started it, also if the test is killed.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private", "sh", "-c"]);
    command.arg("mount --bind \"$1\" /run && exec \"$2\" node --install=false --socket \"$3\"").arg("agent");
    command.arg(directory.run()).arg(path_of_ours("gybe").unwrap()).arg(directory.run().join("facts.sock"));
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .envs(cluster_environment(server.address()));
    command
}

/// Starts an agent and waits until it serves.
pub(crate) fn start_agent(directory: &PluginDir, server: &ApiServer) -> Agent {
    Agent::start_serving(gybe_node(directory, server))
}

impl TestNode {
    /// Creates a cluster with as many pods on the node as the kubelet allows, and 100,000 on other nodes.
    pub(crate) fn new(test: &str) -> Self {
        let (server, directory) = (ApiServer::start().unwrap(), PluginDir::new(test));
        let account = directory.run().join("secrets/kubernetes.io/serviceaccount");
        let account = server.service_account(&account).unwrap();
        server.set_generated_pods(100_000);
        for number in 0..KNOWN {
            server.put_pod(meshed_pod(&known(number)));
        }
        Self { server, account, directory, agent: None }
    }

    /// As [`TestNode::new`], with an agent that has listed the pods.
    pub(crate) fn with_agent(test: &str) -> Self {
        let mut node = Self::new(test);
        node.start_agent();
        node.wait_for_watch(0);
        node
    }

    pub(crate) fn start_agent(&mut self) {
        self.agent = Some(start_agent(&self.directory, &self.server));
    }

    /// Kills the agent with SIGKILL; its socket files stay.
    pub(crate) fn kill_agent(&mut self) {
        drop(self.agent.take().unwrap());
    }

    /// Waits until the agent has opened more than `after` watches: an agent lists before its first watch.
    pub(crate) fn wait_for_watch(&self, after: usize) {
        let watched = self.server.wait_for_requests(PATIENCE, |requests| watches(requests) > after);
        assert!(watched, "{:#?}", self.server.requests().last());
    }

    /// Returns the number of watches opened so far.
    pub(crate) fn watches(&self) -> usize {
        watches(&self.server.requests())
    }

    /// Ends every connection, so that each later request needs a new one.
    pub(crate) fn cut_connections(&self) {
        self.server.set_network(Network::Refusing).unwrap();
        self.server.set_network(Network::Open).unwrap();
    }

    /// Replaces all tokens with one of this validity, and ends the watch that used an earlier one.
    pub(crate) fn replace_tokens(&self, validity: Validity) {
        let token = self.server.tokens().issue(validity);
        self.server.tokens().accept_only(&[&token]);
        self.account.write(&token).unwrap();
        self.cut_connections();
    }

    /// Writes a new token into the file while the last is still valid, as the kubelet does, and ends the watch that
    /// uses the last.
    pub(crate) fn rotate(&self, last: &Token) -> Token {
        let next = self.server.tokens().issue(Validity::Valid);
        self.account.write(&next).unwrap();
        self.server.tokens().accept_only(&[last, &next]);
        self.server.cut_watches();
        next
    }

    /// Reports whether the server has answered a request with this token, or does so within this time.
    pub(crate) fn is_used(&self, token: &Token, within: Duration) -> bool {
        let bearer = Bearer::Token(token.number);
        let used = |request: &Request| request.bearer == bearer && request.code == Some(200);
        self.server.wait_for_requests(within, |requests| requests.iter().any(used))
    }
}

fn watches(requests: &[Request]) -> usize {
    requests.iter().filter(|request| request.is_watch() && request.code == Some(200)).count()
}

/// Returns the name of a pod that exists from the start. There are as many as the kubelet allows by default.
pub(crate) fn known(number: usize) -> String {
    format!("known-{}", number % KNOWN)
}

const KNOWN: usize = 110;

/// Returns the example's pod under another name, on this node.
pub(crate) fn meshed_pod(name: &str) -> Value {
    let mut pod: Value = serde_json::from_str(include_str!("../../../examples/pod.json")).unwrap();
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["uid"] = json!(uid(name));
    pod["spec"]["nodeName"] = json!(NODE);
    pod
}

/// Returns a uid that is unique for the pod's name.
pub(crate) fn uid(name: &str) -> String {
    let bytes = name.bytes().rev().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("5f1d6c1e-70b7-4d3c-9a51-{bytes:0<12.12}")
}

/// The number of background events so far.
pub(crate) type Times = AtomicUsize;

/// Runs `work` while the agent restarts in a loop. Each agent runs until it has listed, and for one pause more; then
/// it is killed, and the next one starts after a pause.
pub(crate) fn restarting<T>(node: &TestNode, work: impl FnOnce(&Times) -> T) -> T {
    repeat_during(work, |pause| {
        let before = node.watches();
        let agent = start_agent(&node.directory, &node.server);
        node.wait_for_watch(before);
        pause.wait(Duration::from_millis(300));
        drop(agent);
        pause.wait(Duration::from_millis(50));
    })
}

/// Runs `work` while the token rotates in a loop; the agent uses each token.
pub(crate) fn rotating<T>(node: &TestNode, work: impl FnOnce(&Times) -> T) -> T {
    let mut token = node.server.tokens().issue(Validity::Valid);
    repeat_during(work, |pause| {
        token = node.rotate(&token);
        // A watch that began during the rotation has the last token, and would keep it for minutes.
        while !node.is_used(&token, Duration::from_millis(50)) && !pause.is_over() {
            node.server.cut_watches();
        }
    })
}

struct Pause(Receiver<()>);

impl Pause {
    /// Waits for this time, or until `work` has ended.
    fn wait(&self, moment: Duration) {
        let _ = self.0.recv_timeout(moment);
    }

    fn is_over(&self) -> bool {
        self.0.recv_timeout(Duration::ZERO) == Err(RecvTimeoutError::Disconnected)
    }
}

/// Ends the wait for a number of events when the loop has ended and no more can come.
struct NoMoreEvents<'a>(&'a Times);

impl Drop for NoMoreEvents<'_> {
    fn drop(&mut self) {
        self.0.store(usize::MAX, Ordering::Relaxed);
    }
}

fn repeat_during<T>(work: impl FnOnce(&Times) -> T, mut event: impl FnMut(&Pause) + Send) -> T {
    let (times, (stop, stopped)) = (&Times::new(0), channel());
    thread::scope(|scope| {
        let pause = Pause(stopped);
        scope.spawn(move || {
            let _guard = NoMoreEvents(times);
            while !pause.is_over() {
                event(&pause);
                times.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Stops the loop also if `work` panics, because the scope waits for the loop's thread.
        let _stops = stop;
        work(times)
    })
}
