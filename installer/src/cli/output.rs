//! What a sub-command returns, its output or an error in one line, and the one function that writes it to stdout and
//! stderr.

use crate::cli::style;
use crate::pod::manifest::printable;
use anstream::AutoStream;
use gybe_netfilter::model::Hint;
use serde_json::Value;
use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::process::ExitCode;

/// The exit code, which scripts rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0: done, or the answer is yes.
    Yes,
    /// 1: the answer is no.
    No,
    /// 2: wrong arguments, or the command failed.
    Failed,
    /// 126: the pod is not redirected, or that is not determined. Istio's repair controller looks for this number.
    NotRedirected,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Yes => Self::SUCCESS,
            Exit::No => Self::from(1),
            Exit::Failed => Self::from(2),
            Exit::NotRedirected => Self::from(126),
        }
    }
}

/// The output of a sub-command that did not fail, as text and as JSON.
#[derive(Debug)]
pub(super) struct CommandOutput {
    /// May contain colours (`style`).
    pub(super) text: String,
    pub(super) json: Value,
    pub(super) exit: Exit,
    /// Lines for stderr, in both forms of the output.
    pub(super) notes: Vec<String>,
}

impl CommandOutput {
    /// An output with exit code 0 and without notes.
    pub(super) fn done(text: impl Into<String>, json: Value) -> Self {
        Self { text: text.into(), json, exit: Exit::Yes, notes: Vec::new() }
    }

    #[must_use]
    pub(super) fn with_notes(self, notes: Vec<String>) -> Self {
        Self { notes, ..self }
    }
}

/// Why a sub-command failed: a sentence, the error that caused it, and a hint.
#[derive(Debug)]
pub(super) struct CommandError {
    what: String,
    why: Option<Box<dyn Error + Send>>,
    hint: Option<Cow<'static, str>>,
}

impl CommandError {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), why: None, hint: None }
    }

    pub(super) fn because(what: impl Into<String>, why: impl Error + Send + 'static) -> Self {
        Self { what: what.into(), why: Some(Box::new(why)), hint: None }
    }

    /// An error with the hint of its cause.
    pub(super) fn hinted(what: impl Into<String>, why: impl Error + Hint + Send + 'static) -> Self {
        Self { what: what.into(), hint: why.hint(), why: Some(Box::new(why)) }
    }

    /// Replaces the hint.
    #[must_use]
    pub(super) fn with_hint(self, hint: impl Into<Cow<'static, str>>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    pub(super) fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

/// All layers in one line. Only this function joins them.
impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)?;
        let mut next = self.why.as_deref().map(|why| why as &dyn Error);
        while let Some(cause) = next {
            write!(f, ": {cause}")?;
            next = cause.source();
        }
        Ok(())
    }
}

/// The limit of an answer on stdin.
const MAX_ANSWER: u64 = 64;

/// Prints a command's output as text or as JSON, and returns its exit code.
pub(super) fn print(output: &CommandOutput, as_json: bool) -> Exit {
    output.notes.iter().for_each(|note| line_on_stderr(note));
    if as_json {
        on_stdout(&format!("{:#}\n", output.json), output.exit)
    } else {
        on_stdout(&output.text, output.exit)
    }
}

/// Returns the number of columns of the terminal on stdout; none for a pipe or a file.
pub(super) fn width() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0.into())
}

/// Prints why a command failed, and the hint.
pub(super) fn failure(failure: &CommandError) -> Exit {
    line_on_stderr(&format!("gybe: {failure}"));
    if let Some(hint) = failure.hint() {
        line_on_stderr(&format!("hint: {hint}"));
    }
    Exit::Failed
}

/// Asks on stderr, and returns whether the line on stdin is `y` or `yes`.
pub(super) fn confirm(question: &str) -> bool {
    let mut answer = String::new();
    let mut stderr = io::stderr().lock();
    let is_asked = write!(stderr, "{question} [y/N] ").and_then(|()| stderr.flush()).is_ok();
    is_asked
        && io::stdin().lock().take(MAX_ANSWER).read_line(&mut answer).is_ok()
        && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

/// Prints what the argument parser returned: help and version on stdout, everything else on stderr.
pub(super) fn usage(error: &clap::Error) -> Exit {
    let text = error.render();
    if error.use_stderr() {
        text.to_string().trim_end().lines().for_each(line_on_stderr);
        return Exit::Failed;
    }
    on_stdout(&text.ansi().to_string(), Exit::Yes)
}

/// Colours are kept on a terminal only (`AutoStream`). A closed pipe (`gybe inspect | head -1`) is not a failure.
fn on_stdout(text: &str, exit: Exit) -> Exit {
    let mut stdout = AutoStream::auto(io::stdout().lock());
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            failure(&CommandError::because("cannot write to stdout", error))
        }
        _ => exit,
    }
}

/// Control characters from files and arguments are escaped. An error is ignored: without stderr there is no
/// place left to report it.
pub(super) fn line_on_stderr(line: &str) {
    let _ = writeln!(AutoStream::auto(io::stderr().lock()), "{}", style::message(&printable(line)));
}
