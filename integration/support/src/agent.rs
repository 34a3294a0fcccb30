//! A node agent as a process: its log, its pages, its end.

use crate::{PATIENCE, http, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The message of the line the agent logs when its facts socket accepts connections.
pub const SERVING: &str = "gybe node: serving";

/// What every JSON web token begins with: `{"`, in base64.
const TOKEN: &str = "eyJ";

/// A running `gybe node`; killed with the value.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    log: Mutex<Log>,
}

/// What a thread has read of the agent's stderr. It reads all the time: an agent whose stderr is full would
/// lose lines.
#[derive(Debug)]
struct Log {
    received: Receiver<Value>,
    lines: Vec<Value>,
    /// The index of the first line that [`Agent::next_line`] has not returned yet.
    next: usize,
    /// Stderr, while it is not read.
    unread: Option<BufReader<ChildStderr>>,
    sender: Option<Sender<Value>>,
}

/// Where an agent has its directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// As on a node, below its root directory.
    Node,
    /// Each by a short name below the directory of a test. The probe's files are apart from the agent's.
    Short,
}

/// The variables that name the directories of the agent's container, and those directories in each layout.
const HOST_FOLDERS: [(&str, &str, &str); 9] = [
    ("MOUNTED_CNI_NET_DIR", "etc/cni/net.d", "net.d"),
    ("MOUNTED_CNI_BIN_DIR", "opt/cni/bin", "bin"),
    ("MOUNTED_CNI_CACHE_DIR", "var/lib/cni", "cache"),
    ("GYBE_PROGRAMS_DIR", "image", "image"),
    ("GYBE_CONFIG_DIR", "config", "config"),
    ("GYBE_SERVICE_ACCOUNT_DIR", "account", "account"),
    ("GYBE_PROBE_DIR", "run/gybe", "probe"),
    ("GYBE_ISTIO_RUN_DIR", "var/run/istio-cni", "istio"),
    ("CNI_AGENT_RUN_DIR", "run/gybe", "run"),
];

/// Returns the environment of an agent that has its directories below `root`, without a cluster; it listens at any free
/// port of 127.0.0.1.
#[must_use]
pub fn agent_environment(root: &Path, layout: Layout) -> BTreeMap<String, String> {
    let folders = HOST_FOLDERS.map(|(name, on_a_node, short)| {
        let folder = match layout {
            Layout::Node => on_a_node,
            Layout::Short => short,
        };
        (name, root.join(folder).display().to_string())
    });
    let fixed = [
        ("HEALTH_ADDRESS", "127.0.0.1:0"),
        ("MONITORING_ADDRESS", "127.0.0.1:0"),
        ("POD_NAMESPACE", "gybe-system"),
    ];
    let all = folders.into_iter().chain(fixed.map(|(name, value)| (name, value.to_owned())));
    all.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the environment of a program that belongs to the node `node-1` in the cluster of this API server.
#[must_use]
pub fn cluster_environment(server: SocketAddr) -> [(&'static str, String); 3] {
    [
        ("KUBERNETES_NODE_NAME", "node-1".to_owned()),
        ("KUBERNETES_SERVICE_HOST", server.ip().to_string()),
        ("KUBERNETES_SERVICE_PORT", server.port().to_string()),
    ]
}

impl Agent {
    /// Starts `command`, which is `gybe node` with its arguments and environment, or a program that runs it.
    /// It starts in the network namespace of the calling thread.
    #[must_use]
    pub fn start(command: Command) -> Self {
        let agent = Self::start_unread(command);
        agent.read_log();
        agent
    }

    /// Starts `command` and leaves its log unread until [`Agent::read_log`], as a container runtime that hangs.
    #[must_use]
    pub fn start_unread(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let unread = child.stderr.take().map(BufReader::new);
        let (sender, received) = channel();
        let log = Log { received, lines: Vec::new(), next: 0, unread, sender: Some(sender) };
        Self { child, log: Mutex::new(log) }
    }

    /// Starts `command` and waits until the agent serves.
    #[must_use]
    pub fn start_serving(command: Command) -> Self {
        let agent = Self::start(command);
        agent.wait_for_message(SERVING);
        agent
    }

    /// Starts to read its log.
    pub fn read_log(&self) {
        let mut log = self.lock();
        let (Some(stderr), Some(sender)) = (log.unread.take(), log.sender.take()) else { return };
        // Ends with the pipe, that is with the agent and all its children.
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or_else(|_| json!({ "text": line }));
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        // A test that panics with the log may still look at it while it unwinds.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything it has logged so far.
    pub fn log(&self) -> Vec<Value> {
        let mut log = self.lock();
        while let Ok(line) = log.received.try_recv() {
            log.push(line);
        }
        log.lines.clone()
    }

    /// Waits for a line like that and returns it: the first one since the agent started.
    pub fn wait_for_line(&self, is_like: impl Fn(&Value) -> bool) -> Value {
        let mut log = self.lock();
        let index = log.find(0, is_like);
        log.lines[index].clone()
    }

    /// Waits for a line whose message contains `part`: the first one since the agent started.
    pub fn wait_for_message(&self, part: &str) -> Value {
        self.wait_for_line(|line| {
            ["msg", "why"].iter().any(|key| line[key].as_str().is_some_and(|text| text.contains(part)))
        })
    }

    /// Waits for the next line: the first one that neither this method nor [`Agent::next_message`] has passed.
    pub fn next_line(&self) -> Value {
        self.lock().find_next(|_| true)
    }

    /// Waits for the next line of exactly this message, and passes those before it.
    pub fn next_message(&self, message: &str) -> Value {
        self.lock().find_next(|line| line["msg"] == message)
    }

    /// Waits until the process has closed its log, and returns all of it.
    pub fn whole_log(&self) -> Vec<Value> {
        let deadline = Instant::now() + PATIENCE;
        let mut log = self.lock();
        loop {
            match log.receive(deadline) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => panic!("it has not ended within {PATIENCE:?}"),
                Err(RecvTimeoutError::Disconnected) => return log.lines.clone(),
            }
        }
    }

    /// Its anonymous memory in KiB.
    ///
    /// # Panics
    /// When it has ended.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }

    /// The number of its open files.
    ///
    /// # Panics
    /// When it has ended.
    #[must_use]
    pub fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Sends it a signal and waits for its end.
    pub fn stop(&mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        self.child.wait().unwrap()
    }

    /// Ends it as the kubelet does, by SIGTERM, and waits for its end.
    pub fn terminate(&mut self) -> ExitStatus {
        self.stop(Signal::SIGTERM)
    }

    /// Its exit status, once it has ended by itself.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits until it has ended by itself.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// The address at which it listens for `purpose`: `health` or `metrics`. Waits until it does.
    pub fn address(&self, purpose: &str) -> String {
        let line = self.wait_for_line(|line| line["msg"] == "gybe node: listens" && line["for"] == purpose);
        line["address"].as_str().unwrap().to_owned()
    }

    /// Status and body of one of its pages.
    pub fn get(&self, path: &str) -> (u16, String) {
        let purpose = if matches!(path, "/metrics" | "/status") { "metrics" } else { "health" };
        http::get(&self.address(purpose), path)
    }

    /// The value of the metric with this name and labels.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").1;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
    }

    /// Reports whether `/readyz` answers 200.
    pub fn is_ready(&self) -> bool {
        self.get("/readyz").0 == 200
    }

    /// Waits until the agent has completed a pass over its node.
    pub fn wait_for_first_pass(&self) {
        wait_until("the first pass is over", || !self.get("/readyz").1.contains("first pass"));
    }
}

impl Log {
    fn find_next(&mut self, is_like: impl Fn(&Value) -> bool) -> Value {
        let index = self.find(self.next, is_like);
        self.next = index + 1;
        self.lines[index].clone()
    }

    /// The index of the first line like that at or behind `from`, waited for.
    fn find(&mut self, mut from: usize, is_like: impl Fn(&Value) -> bool) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(index) = self.lines[from..].iter().position(&is_like) {
                return from + index;
            }
            from = self.lines.len();
            self.receive(deadline).unwrap_or_else(|why| panic!("{why}: {:#?}", self.lines));
        }
    }

    fn receive(&mut self, deadline: Instant) -> Result<(), RecvTimeoutError> {
        let line = self.received.recv_timeout(deadline.saturating_duration_since(Instant::now()))?;
        self.push(line);
        Ok(())
    }

    fn push(&mut self, line: Value) {
        assert!(!line.to_string().contains(TOKEN), "a token in the log: {line}");
        self.lines.push(line);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
