//! The log of the agent and of the probe: one JSON object a line on stderr, our own lines and those of the plugin.
//!
//! A pipe without a reader is full after 64 KiB, and its writer then blocks for ever (pipe(7)). Non-blocking writes are
//! not possible: O_NONBLOCK belongs to the open file description, which stderr shares with other processes (open(2)).
//! So one thread writes, from a bounded queue, and no other thread waits for it.

use gybe_plugin::timestamp;
use nix::sys::signal::{SigSet, SigmaskHow};
use serde_json::{Map, Value, json};
use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

/// The number of lines that may wait behind the one that is being written; a plugin's line has at most 4 KiB.
const QUEUE: usize = 1024;

/// How long the end of the process waits for queued lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

const LOST: &str = "gybe: lines were lost because stderr was not read";

/// The severity of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Info,
    Warn,
    Error,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// A log whose lines are written whole, and that never blocks its callers.
#[derive(Debug)]
pub(crate) struct Log {
    /// None while the log is dropped.
    queue: Option<SyncSender<String>>,
    /// The lines that found the queue full since the last report of lost lines.
    lost: Arc<AtomicU64>,
    /// Disconnected when all lines are written.
    written: Mutex<Receiver<Infallible>>,
}

impl Default for Log {
    fn default() -> Self {
        let ((queue, queued), (writing, written)) = (sync_channel(QUEUE), channel());
        let lost = Arc::<AtomicU64>::default();
        let lost_lines = Arc::clone(&lost);
        // The agent's loop handles signals; a new thread inherits its creator's mask (signal(7)).
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
        // Without a thread the callers write themselves.
        let _ = thread::Builder::new().name("log".to_owned()).spawn(move || {
            let _until_all_is_written = writing;
            write_all(&queued, &lost_lines);
        });
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
        Self { queue: Some(queue), lost, written: Mutex::new(written) }
    }
}

impl Log {
    pub(crate) fn info(&self, message: &str, fields: Value) {
        self.log(Level::Info, message, fields);
    }

    pub(crate) fn warn(&self, message: &str, fields: Value) {
        self.log(Level::Warn, message, fields);
    }

    pub(crate) fn error(&self, message: &str, fields: Value) {
        self.log(Level::Error, message, fields);
    }

    /// Logs a line of our own; `fields` is a JSON object.
    pub(crate) fn log(&self, level: Level, message: &str, fields: Value) {
        self.enqueue(&line(level, message, fields));
    }

    /// Logs another program's line unchanged; a line without a time gets the current one.
    pub(crate) fn forward(&self, mut line: Map<String, Value>) {
        if !line.get("time").is_some_and(Value::is_string) {
            line.insert("time".to_owned(), now());
        }
        self.enqueue(&Value::Object(line));
    }

    fn enqueue(&self, line: &Value) {
        match self.queue.as_ref().map(|queue| queue.try_send(format!("{line}\n"))) {
            Some(Err(TrySendError::Full(_))) => drop(self.lost.fetch_add(1, Ordering::Relaxed)),
            Some(Err(TrySendError::Disconnected(line))) => write(&line),
            Some(Ok(())) | None => {}
        }
    }
}

impl Drop for Log {
    /// Waits until the queue is written, but not for ever: stderr may have no reader.
    fn drop(&mut self) {
        self.queue = None;
        let _ = self.written.get_mut().unwrap_or_else(PoisonError::into_inner).recv_timeout(FLUSH_TIMEOUT);
    }
}

/// Writes until the log is dropped.
fn write_all(queued: &Receiver<String>, lost: &AtomicU64) {
    for text in queued {
        write(&text);
        let lost = lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            write(&format!("{}\n", line(Level::Warn, LOST, json!({ "lines": lost }))));
        }
    }
}

fn line(level: Level, message: &str, fields: Value) -> Value {
    let members = [("time", now()), ("level", level.name().into()), ("msg", message.into())];
    let mut line: Map<String, Value> =
        members.map(|(key, value)| (key.to_owned(), value)).into_iter().collect();
    if let Value::Object(fields) = fields {
        line.extend(fields);
    }
    Value::Object(line)
}

/// Returns the time in RFC 3339 and UTC, as the plugin's lines have it.
fn now() -> Value {
    timestamp(SystemTime::now()).into()
}

/// Writes in one system call: stderr has no buffer, and each part of a line would be a write of its own.
fn write(line: &str) {
    // A closed stderr cannot be reported anywhere.
    let _ = io::stderr().write_all(line.as_bytes());
}
