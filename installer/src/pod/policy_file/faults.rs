//! What can be wrong with a policy file, and how it is said: all of it, in one message.

use std::fmt;

/// One thing wrong with one name of a policy file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The name it stands under.
    pub key: String,
    /// What is wrong.
    pub why: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.why)
    }
}

/// Why a text is not a policy file.
#[derive(Debug, thiserror::Error)]
pub enum PolicyFileError {
    /// Not JSON, or JSON that is no object with each name once.
    #[error("the policy is not a JSON object with each name once")]
    NotAnObject(#[source] serde_json::Error),
    /// An object with faults; all of them are here, in the order they were found.
    #[error("the policy has {}: {}", Count(.0.len()), Joined(.0))]
    Faults(Vec<Fault>),
}

struct Count(usize);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} fault{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

struct Joined<'a>(&'a [Fault]);

impl fmt::Display for Joined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "; " };
            write!(f, "{comma}{fault}")?;
        }
        Ok(())
    }
}

/// The known name that is most like `wrong`, if any is like it at all.
pub(super) fn nearest<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|name| (strsim::jaro_winkler(&wrong.to_lowercase(), name), *name))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|(left, _), (right, _)| left.total_cmp(right))
        .map(|(_, name)| name)
}
