//! What a sub-command comes back with: an answer, or a failure told in one line. Prints nothing.

use gybe_netfilter::hint::Hint;
use serde_json::Value;
use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::process::ExitCode;

/// How the program ends; part of its contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0: done, or the answer is yes.
    Yes,
    /// 1: the question was answered, and the answer is no.
    No,
    /// 2: wrong arguments, or it could not be done.
    Failed,
    /// 126: the pod is not redirected. Istio's repair looks for this number.
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

/// The outcome of a sub-command that worked, in both forms.
#[derive(Debug)]
pub(super) struct Answer {
    /// For a person.
    pub(super) text: String,
    /// For a program.
    pub(super) json: Value,
    /// Yes or no.
    pub(super) exit: Exit,
    /// What a person should know beside the answer; goes to stderr.
    pub(super) notes: Vec<String>,
}

impl Answer {
    /// An answer that is a yes, without notes.
    pub(super) fn yes(text: impl Into<String>, json: Value) -> Self {
        Self { text: text.into(), json, exit: Exit::Yes, notes: Vec::new() }
    }

    /// The same answer with notes.
    #[must_use]
    pub(super) fn noting(self, notes: Vec<String>) -> Self {
        Self { notes, ..self }
    }
}

/// Why a sub-command could not do its work: a sentence of its own, and what is behind it.
#[derive(Debug)]
pub(super) struct Failure {
    what: String,
    why: Option<Box<dyn Error>>,
    hint: Option<Cow<'static, str>>,
}

impl Failure {
    /// A failure nothing else is behind.
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), why: None, hint: None }
    }

    /// A failure and its cause.
    pub(super) fn because(what: impl Into<String>, why: impl Error + 'static) -> Self {
        Self { what: what.into(), why: Some(Box::new(why)), hint: None }
    }

    /// A failure whose cause may know what to do about it.
    pub(super) fn hinted(what: impl Into<String>, why: impl Error + Hint + 'static) -> Self {
        Self { what: what.into(), hint: why.hint(), why: Some(Box::new(why)) }
    }

    /// The same failure with a hint that replaces the cause's.
    #[must_use]
    pub(super) fn with_hint(self, hint: impl Into<Cow<'static, str>>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// What to do about it.
    pub(super) fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

/// All layers in one line: the only place where they are joined.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)?;
        let mut next: Option<&dyn Error> = self.why.as_deref();
        while let Some(cause) = next {
            write!(f, ": {cause}")?;
            next = cause.source();
        }
        Ok(())
    }
}
