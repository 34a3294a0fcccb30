//! Log lines as JSON on stderr. Never stdout: that is the protocol's.

use crate::conf::LogLevel;
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
        .with_writer(std::io::stderr)
        .finish();
    // Another subscriber is there already only where somebody uses this crate as a library.
    let _ = tracing::subscriber::set_global_default(lines);
}
