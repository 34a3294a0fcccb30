//! A node agent as a process: its log, its pages, its end.

use crate::{PATIENCE, http, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

/// The message of the line the agent logs when its facts socket accepts connections.
pub const SERVING: &str = "gybe node: serving";

/// What every JSON web token begins with: `{"`, in base64.
const TOKEN: &str = "eyJ";

/// A running `gybe node`; killed with the value.
///
/// A thread reads its log all the time: an agent whose stderr is full would stop.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    received: Receiver<Value>,
    log: Vec<Value>,
    /// The first line that [`Agent::next_line`] has not returned yet.
    next: usize,
}

impl Agent {
    /// Starts `command`, which is `gybe node` with its arguments and environment, or a program that runs it.
    /// It starts in the network namespace of the calling thread.
    #[must_use]
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, received) = channel();
        // Ends with the pipe, that is with the agent and all its children.
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line_of_log(&line)).is_err() {
                    return;
                }
            }
        });
        Self { child, received, log: Vec::new(), next: 0 }
    }

    /// Starts `command` and waits until the agent serves.
    #[must_use]
    pub fn start_serving(command: Command) -> Self {
        let mut agent = Self::start(command);
        agent.wait_for_message(SERVING);
        agent
    }

    /// Everything it has logged so far.
    pub fn log(&mut self) -> &[Value] {
        while let Ok(line) = self.received.try_recv() {
            self.push(line);
        }
        &self.log
    }

    /// Waits for a line like that and returns it: the first one since the agent started.
    pub fn wait_for_line(&mut self, is_like: impl Fn(&Value) -> bool) -> Value {
        let index = self.position(0, is_like);
        self.log[index].clone()
    }

    /// Waits for a line whose message contains `part`: the first one since the agent started.
    pub fn wait_for_message(&mut self, part: &str) -> Value {
        self.wait_for_line(|line| line["msg"].as_str().is_some_and(|message| message.contains(part)))
    }

    /// Waits for the next line: the first one that neither this method nor [`Agent::next_message`] has passed.
    pub fn next_line(&mut self) -> Value {
        self.next_like(|_| true)
    }

    /// Waits for the next line of exactly this message, and passes those before it.
    pub fn next_message(&mut self, message: &str) -> Value {
        self.next_like(|line| line["msg"] == message)
    }

    fn next_like(&mut self, is_like: impl Fn(&Value) -> bool) -> Value {
        let index = self.position(self.next, is_like);
        self.next = index + 1;
        self.log[index].clone()
    }

    /// The index of the first line like that at or behind `from`, waited for.
    fn position(&mut self, mut from: usize, is_like: impl Fn(&Value) -> bool) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(index) = self.log[from..].iter().position(&is_like) {
                return from + index;
            }
            from = self.log.len();
            match self.received.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.push(line),
                Err(RecvTimeoutError::Timeout) => panic!("no such line within {PATIENCE:?}: {:#?}", self.log),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("it ended without such a line: {:#?}", self.log)
                }
            }
        }
    }

    fn push(&mut self, line: Value) {
        assert!(!line.to_string().contains(TOKEN), "a token in the log: {line}");
        self.log.push(line);
    }

    /// Waits until the process has closed its log, and returns all of it.
    pub fn whole_log(&mut self) -> &[Value] {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.received.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.push(line),
                Err(RecvTimeoutError::Timeout) => panic!("it has not ended within {PATIENCE:?}"),
                Err(RecvTimeoutError::Disconnected) => return &self.log,
            }
        }
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
    pub fn address(&mut self, purpose: &str) -> String {
        let line = self.wait_for_line(|line| line["msg"] == "gybe node: listens" && line["for"] == purpose);
        line["address"].as_str().unwrap().to_owned()
    }

    /// Status and body of one of its pages.
    pub fn get(&mut self, path: &str) -> (u16, String) {
        let purpose = if path == "/metrics" { "metrics" } else { "health" };
        http::get(&self.address(purpose), path)
    }

    /// The value of the metric with this name and labels.
    pub fn metric(&mut self, name: &str) -> f64 {
        let text = self.get("/metrics").1;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
    }

    /// Reports whether `/readyz` answers 200.
    pub fn is_ready(&mut self) -> bool {
        self.get("/readyz").0 == 200
    }

    /// Waits until the agent has completed a pass over its node.
    pub fn wait_for_first_pass(&mut self) {
        wait_until("the first pass is over", || !self.get("/readyz").1.contains("first pass"));
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn line_of_log(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|_| json!({ "text": line }))
}
