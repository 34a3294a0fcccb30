//! Log lines as JSON on stderr, and to the node agent's log socket. Never on stdout, which carries the reply.
//! A line that cannot be written without waiting is dropped, so that logging never delays an ADD.
//!
//! `tracing-subscriber` would write much the same, and add 60 KB to the program for spans and filters that a
//! process per call does not need.

use crate::conf::LogLevel;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The target of the event that ends a call. It goes to the agent whatever the level is, to be counted: with
/// verb and microseconds, and without a message if the level suppresses it.
pub(crate) const CALL: &str = "call";

/// The verb of the call, and its start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallContext {
    pub(crate) verb: &'static str,
    pub(crate) started: Instant,
}

/// Returns the microseconds since `since`.
pub(crate) fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Starts logging from this level on, to stderr and to the agent's log socket. Only the first call in a
/// process has an effect.
pub(crate) fn start(level: LogLevel, agent: Option<PathBuf>, context: CallContext) {
    let least = match level {
        LogLevel::None => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    // Fails only if this function, or a program that uses the crate as a library, has set one before.
    let _ = tracing::subscriber::set_global_default(LineSubscriber { least, agent, context });
}

/// Truncates text that callers or pods control to 300 characters for a log line; JSON escapes it.
pub(crate) fn shorten(text: &str) -> String {
    text.chars().take(300).collect()
}

/// Writes each event as one line, and ignores spans.
struct LineSubscriber {
    least: LevelFilter,
    agent: Option<PathBuf>,
    context: CallContext,
}

impl LineSubscriber {
    fn is_logged(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.least
    }

    fn is_counted(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == CALL && self.agent.is_some()
    }
}

impl Subscriber for LineSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.is_logged(metadata) || self.is_counted(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        // Some calls end in a debug line.
        let counted = if self.agent.is_some() { LevelFilter::DEBUG } else { LevelFilter::OFF };
        Some(self.least.max(counted))
    }

    fn event(&self, event: &Event<'_>) {
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        let mut line = EventLine { message: String::new(), fields: String::new() };
        event.record(&mut line);
        if event.metadata().target() == CALL {
            let (verb, took) = (self.context.verb, micros(self.context.started));
            // Writing to a String cannot fail.
            let _ = write!(line.fields, ",\"verb\":\"{verb}\",\"took_us\":{took}");
        }
        if let (false, Some(agent)) = (self.is_logged(event.metadata()), &self.agent) {
            return send(&format!("{{{}}}", line.fields.trim_start_matches(',')), agent);
        }
        let (time, message) = (timestamp(SystemTime::now()), Value::from(line.message));
        let line =
            format!("{{\"time\":\"{time}\",\"level\":\"{level}\",\"msg\":{message}{}}}\n", line.fields);
        write(&line);
        if let Some(agent) = &self.agent {
            send(&line, agent);
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// An event's message, and its fields as `,"name":value`.
struct EventLine {
    message: String,
    fields: String,
}

impl EventLine {
    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            // Writing to a String cannot fail.
            (name, value) => drop(write!(self.fields, ",\"{name}\":{value}")),
        }
    }
}

impl Visit for EventLine {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }
}

/// Writes the line to stderr, unless the pipe is full. A pipe that is ready takes `PIPE_BUF` (4096) bytes without
/// waiting (pipe(7)). Lines are shorter, because text that callers and pods control goes through [`shorten`].
fn write(line: &str) {
    let mut stderr = io::stderr().lock();
    let mut ready = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    let is_full = poll(&mut ready, PollTimeout::ZERO) == Ok(0);
    if !is_full {
        let _ = stderr.write_all(line.as_bytes());
    }
}

/// Sends a line as one datagram, which is lost if the agent does not run or its socket is full.
fn send(line: &str, agent: &Path) {
    let sent = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to(line.trim_end().as_bytes(), agent)
    });
    // A failure to log cannot be logged.
    let _ = sent;
}

/// Returns a time in RFC 3339, in UTC with microseconds.
#[must_use]
pub fn timestamp(now: SystemTime) -> String {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z", since.subsec_micros())
}

/// Returns year, month and day of the date `days` days after 1970-01-01. The calculation starts years in March, so
/// that the leap day is the last day of a year, and uses cycles of 400 years.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (cycle, day_of_cycle) = (days / 146_097, days % 146_097);
    let year_of_cycle =
        (day_of_cycle - day_of_cycle / 1460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year = day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (cycle * 400 + year_of_cycle + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_is_rfc_3339() {
        for (micros, expected) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399_999_999, "2000-02-28T23:59:59.999999Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (951_868_800_000_001, "2000-03-01T00:00:00.000001Z"),
            (1_735_689_599_000_000, "2024-12-31T23:59:59.000000Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(timestamp(SystemTime::UNIX_EPOCH + Duration::from_micros(micros)), expected);
        }
    }

    #[test]
    fn the_longest_line_fits_a_pipe_that_is_ready() {
        let worst = Value::from(shorten(&"\u{1}".repeat(5000))).to_string();
        assert!(worst.len() * 2 + 300 < 4096, "{}", worst.len());
    }
}
