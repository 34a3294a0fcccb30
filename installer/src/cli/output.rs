//! What a sub-command returns: its output, or an error that is printed in one line.

use gybe_netfilter::model::Hint;
use serde_json::Value;
use std::borrow::Cow;
use std::error::Error;
use std::fmt;
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
    /// 126: the pod is not redirected. Istio's repair controller looks for this number.
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
