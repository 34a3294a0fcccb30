//! A running agent, what it tells, and what it answers.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A busy machine is slow; nothing waits as long when all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A running agent; killed when the test ends.
pub(crate) struct Agent {
    child: Child,
    lines: Receiver<Value>,
    pub(crate) heard: Vec<Value>,
}

impl Agent {
    pub(crate) fn of(mut child: Child) -> Self {
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (tell, lines) = channel();
        // Ends with the pipe, that is with the child.
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or_else(|_| json!({ "text": line }));
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines, heard: Vec::new() }
    }

    /// Everything told so far.
    pub(crate) fn all(&mut self) -> &[Value] {
        self.heard.extend(self.lines.try_iter());
        &self.heard
    }

    /// The first line like that, waited for, also one that was heard before.
    pub(crate) fn hears(&mut self, like: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        let mut from = 0;
        loop {
            if let Some(line) = self.heard[from..].iter().find(|line| like(line)) {
                return line.clone();
            }
            from = self.heard.len();
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => self.heard.push(line),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("nothing like that in {:#?}", self.heard)
                }
            }
        }
    }

    /// A line whose message contains this.
    pub(crate) fn tells(&mut self, words: &str) -> Value {
        self.hears(|line| line["msg"].as_str().is_some_and(|message| message.contains(words)))
    }

    pub(crate) fn pid(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap())
    }

    pub(crate) fn kill(&mut self, signal: nix::sys::signal::Signal) -> ExitStatus {
        nix::sys::signal::kill(self.pid(), signal).unwrap();
        self.child.wait().unwrap()
    }

    pub(crate) fn address(&self, of: &str) -> String {
        let line = self.heard.iter().find(|line| line["for"] == of).unwrap();
        line["address"].as_str().unwrap().to_owned()
    }

    /// Status and body of a page.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let of = if path == "/metrics" { "metrics" } else { "health" };
        let answer = asks(&self.address(of), &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// One number of the metrics.
    pub(crate) fn number(&self, name: &str) -> f64 {
        let text = self.get("/metrics").1;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.get("/readyz").0 == 200
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What comes back for a request; whoever was hung up on gets what came until then.
pub(crate) fn asks(address: &str, request: &str) -> String {
    let mut caller = TcpStream::connect(address).unwrap();
    caller.set_read_timeout(Some(PATIENCE)).unwrap();
    caller.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = caller.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

/// Waits until it is so.
pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what} does not come about");
        std::thread::sleep(Duration::from_millis(2));
    }
}
