//! What the agent tells on stderr, one JSON object a line: its own news, and what plugins sent.
//!
//! A pipe that nobody reads is full after 64 KiB, and whoever writes to it then waits for ever (pipe(7)).
//! To write without waiting is no way out: O_NONBLOCK belongs to the open file, which stderr shares with
//! others (open(2)). So a thread writes that nobody waits for, and there is a bound on what is behind it.

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

/// So many lines may be behind the one that is being written; a plugin's has 4 KiB at most.
const BEHIND: usize = 1024;

/// How long the end waits for what has been told.
const PATIENCE: Duration = Duration::from_secs(1);

/// Has lines written whole, and keeps nobody who tells one.
#[derive(Debug)]
pub(crate) struct Journal {
    /// None when it ends.
    lines: Option<SyncSender<String>>,
    /// How many found no place since it was last told.
    lost: Arc<AtomicU64>,
    /// Hangs up when all is written.
    written: Mutex<Receiver<Infallible>>,
}

impl Default for Journal {
    fn default() -> Self {
        let ((lines, told), (writing, written)) = (sync_channel(BEHIND), channel());
        let lost = Arc::<AtomicU64>::default();
        let missed = Arc::clone(&lost);
        // Signals are for the agent's own loop; a thread begins with its maker's mask (signal(7)).
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
        // Where there is no thread, whoever tells writes.
        let _ = thread::Builder::new().name("journal".to_owned()).spawn(move || {
            let _until_all_is_written = writing;
            write_all(&told, &missed);
        });
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
        Self { lines: Some(lines), lost, written: Mutex::new(written) }
    }
}

impl Journal {
    /// Tells something of the agent's own.
    pub(crate) fn tell(&self, level: &str, message: &str, more: Value) {
        self.pass_on(&line(level, message, more));
    }

    /// Tells a line as it is; one without a time gets that of now.
    pub(crate) fn relay(&self, mut line: Map<String, Value>) {
        if !line.get("time").is_some_and(Value::is_string) {
            line.insert("time".to_owned(), now());
        }
        self.pass_on(&Value::Object(line));
    }

    fn pass_on(&self, line: &Value) {
        match self.lines.as_ref().map(|lines| lines.try_send(format!("{line}\n"))) {
            Some(Err(TrySendError::Full(_))) => drop(self.lost.fetch_add(1, Ordering::Relaxed)),
            Some(Err(TrySendError::Disconnected(line))) => write(&line),
            Some(Ok(())) | None => {}
        }
    }
}

impl Drop for Journal {
    /// Waits for what has been told, but not for a reader who does not come.
    fn drop(&mut self) {
        self.lines = None;
        let _ = self.written.get_mut().unwrap_or_else(PoisonError::into_inner).recv_timeout(PATIENCE);
    }
}

/// Until nobody tells any more.
fn write_all(told: &Receiver<String>, lost: &AtomicU64) {
    for line in told {
        write(&line);
        let lost = lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            write(&format!("{}\n", self::line("warn", LOST, json!({ "lines": lost }))));
        }
    }
}

const LOST: &str = "gybe: lines were lost, because nobody read those before them";

fn line(level: &str, message: &str, more: Value) -> Value {
    let members = [("time", now()), ("level", level.into()), ("msg", message.into())];
    let mut line: Map<String, Value> =
        members.map(|(key, value)| (key.to_owned(), value)).into_iter().collect();
    if let Value::Object(more) = more {
        line.extend(more);
    }
    Value::Object(line)
}

/// RFC 3339 in UTC, as the plugin's lines have it.
fn now() -> Value {
    timestamp(SystemTime::now()).into()
}

/// In one piece: stderr has no buffer, and each part of a line would be a write of its own.
fn write(line: &str) {
    // There is nobody left to tell when stderr is closed.
    let _ = io::stderr().write_all(line.as_bytes());
}
