//! Whether the connections of a network namespace are redirected as a policy asks: the one answer of
//! `verify`, CHECK, `trace` and `doctor`.
//!
//! Acts on the namespace of the calling thread and only reads.

use crate::backend::{BackendKind, Inventory};
use crate::choose::Way;
use crate::policy::RedirectPolicy;
use crate::presence::Presence;
use crate::redirection::{Deviation, Redirection, RedirectionError};

/// What a namespace should hold.
#[derive(Debug, Clone, Copy)]
pub enum Desired<'p> {
    /// The rules of this policy.
    Policy(&'p RedirectPolicy),
    /// No rule of ours: the pod is not in the mesh.
    LeftAlone,
    /// The caller does not know the pod.
    NotKnown,
}

/// The answer in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Every connection that should be redirected is.
    Redirected,
    /// The namespace has no rules of ours and should have none, as far as that is known.
    NotMeshed,
    /// At least one connection that should be redirected is not.
    NotRedirected,
    /// Another mesh's rules redirect it.
    ByOthers,
    /// It cannot be known.
    Unknown,
}

impl Answer {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redirected => "redirected",
            Self::NotMeshed => "not-meshed",
            Self::NotRedirected => "not-redirected",
            Self::ByOthers => "by-others",
            Self::Unknown => "unknown",
        }
    }
}

/// The answer and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The answer.
    pub answer: Answer,
    /// Why, one sentence each; the first is the one to print where there is room for one line. Empty
    /// when there is nothing to say.
    pub reasons: Vec<String>,
    /// How our own rules and routes differ from the desired ones, one sentence each.
    pub differences: Vec<String>,
    /// What changes no redirected connection and is worth knowing, one sentence each.
    pub notes: Vec<String>,
}

/// Why one line is enough for a namespace without any rule of ours.
const NO_RULES: &str = "no Gybe rules in this namespace";

impl Verdict {
    /// An answer with one reason.
    pub fn because(answer: Answer, reason: impl Into<String>) -> Self {
        Self { answer, reasons: vec![reason.into()], differences: Vec::new(), notes: Vec::new() }
    }

    /// Is the namespace as it should be?
    pub fn holds(&self) -> bool {
        matches!(self.answer, Answer::Redirected | Answer::NotMeshed) && self.differences.is_empty()
    }
}

/// How our own rules are read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reading<'k> {
    /// The backend whose rules are read; `None` for whichever has written.
    pub only: Option<BackendKind>,
    /// Backends that are known to write every rule on this node, conntrack zones included.
    pub whole: &'k [BackendKind],
}

/// Judges the namespace of the calling thread.
///
/// # Errors
/// When its rules or routes cannot be read, or the programs that read ours are missing.
pub fn judge_namespace(desired: Desired<'_>, reading: Reading<'_>) -> Result<Verdict, RedirectionError> {
    let presence = Presence::look()?;
    if let Some(foreign) = presence.foreign.first() {
        return Ok(Verdict::because(Answer::ByOthers, foreign.to_string()));
    }
    let kinds = reading.only.map_or_else(|| presence.ours.clone(), |kind| vec![kind]);
    let none = presence.ours.is_empty();
    let differences = match (desired, kinds.first()) {
        (Desired::NotKnown, _) | (_, None) => Vec::new(),
        (Desired::LeftAlone, _) => leftovers(&kinds)?,
        (Desired::Policy(_), _) if none => Vec::new(),
        (Desired::Policy(policy), Some(kind)) => deviations(policy, *kind, reading.whole)?,
    };
    let differences: Vec<String> = differences.iter().map(ToString::to_string).collect();
    let (answer, reason) = match desired {
        Desired::Policy(_) if none => (Answer::NotRedirected, Some(NO_RULES)),
        Desired::NotKnown if none => (Answer::NotMeshed, Some(NO_RULES)),
        Desired::LeftAlone if differences.is_empty() => (Answer::NotMeshed, None),
        Desired::LeftAlone => {
            (Answer::Redirected, Some("rules of ours are there for a pod that is left alone"))
        }
        _ if differences.is_empty() => (Answer::Redirected, None),
        _ => (Answer::NotRedirected, Some("our own rules or routes were changed")),
    };
    Ok(Verdict {
        answer,
        reasons: reason.map(str::to_owned).into_iter().collect(),
        differences,
        notes: Vec::new(),
    })
}

fn deviations(
    policy: &RedirectPolicy,
    kind: BackendKind,
    whole: &[BackendKind],
) -> Result<Vec<Deviation>, RedirectionError> {
    let backend = kind.find()?;
    let way = match whole.contains(&kind) {
        true => Way::Whole,
        false => Redirection::way_written(policy, &*backend)?,
    };
    Redirection::by_way(policy, way).differences(&*backend)
}

/// Every rule of ours is one too many.
fn leftovers(kinds: &[BackendKind]) -> Result<Vec<Deviation>, RedirectionError> {
    let mut all = Vec::new();
    for kind in kinds {
        let found = kind.find()?.inspect()?;
        all.extend(Inventory::default().differences(&found).into_iter().map(Deviation::Rules));
    }
    Ok(all)
}
