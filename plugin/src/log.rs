//! Log lines as JSON on stderr. Never stdout: that is the protocol's. And never at the price of an
//! ADD: a line that cannot be written at once is lost.

use crate::conf::LogLevel;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, Write};
use std::os::fd::AsFd;
use tracing::level_filters::LevelFilter;

/// Lines from this level on go to stderr from now on; the first call of a process counts.
pub(crate) fn start(level: LogLevel) {
    let filter = match level {
        LogLevel::None => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let lines = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_target(false)
        .with_max_level(filter)
        .with_writer(|| Patient)
        .finish();
    // Another subscriber is there already only where somebody uses this crate as a library.
    let _ = tracing::subscriber::set_global_default(lines);
}

/// Stderr, as long as somebody reads it.
struct Patient;

impl Write for Patient {
    /// A pipe that is ready takes `PIPE_BUF` (4096) bytes without waiting (pipe(7)). Lines are
    /// shorter, because what they are told about is cut by [`brief`].
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let stderr = io::stderr();
        let mut ready = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut ready, PollTimeout::ZERO) {
            Ok(0) => Ok(line.len()),
            _ => stderr.lock().write(line),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What of a text goes into a line: escaped, and cut where nobody reads on.
pub(crate) fn brief(text: &str) -> String {
    text.chars().flat_map(char::escape_debug).take(400).collect()
}
