//! What plugin and node agent say to each other: one line of JSON each way. Pure.
//!
//! The plugin asks about one pod, and says how long it waits; the agent answers with the pod's manifest,
//! trimmed to what the decision needs, or that it knows none, or why it cannot say, and closes.
//!
//! A member that one side does not know it leaves alone, so either may be the newer one. What an older
//! one could not leave alone needs another version.

use crate::args::{Namespace, PodName, PodRef};
use crate::pod::{Manifest, ManifestError, PodFacts, broken};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// The version of this language. One side that speaks another is told so, and nothing is guessed.
pub const VERSION: u32 = 1;

/// No question is longer: two names, a uid and a number.
pub const LONGEST_QUESTION: usize = 4096;

/// No answer is longer: the API server takes 3 MiB, most of it annotations.
pub const LONGEST_ANSWER: usize = 4 * 1024 * 1024;

/// What the agent is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// About whom.
    pub pod: PodRef,
    /// How long from now on the caller waits for the answer, in whole milliseconds; none where it does
    /// not say, as the first plugins did not.
    pub patience: Option<Duration>,
}

/// What the agent knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The pod.
    Pod(Box<PodFacts>),
    /// It knows no such pod, yet.
    Unknown,
    /// It cannot say.
    Fault(String),
}

/// Why words are not of this language.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// No JSON, or of another shape.
    #[error("nonsense: it {0}")]
    Nonsense(&'static str),
    /// Another version.
    #[error("in version {0}, not {VERSION}: bring plugin and agent to one release")]
    Version(u32),
    /// A pod that is none.
    #[error("of no use")]
    Manifest(#[from] ManifestError),
}

#[derive(Deserialize)]
struct WrittenAnswer {
    version: u32,
    pod: Option<Manifest>,
    fault: Option<String>,
}

/// Writes a question.
pub fn question(Question { pod, patience }: &Question) -> String {
    let (namespace, name) = (pod.namespace.as_str(), pod.name.as_str());
    let patience = patience.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
    let words = json!({
        "version": VERSION, "namespace": namespace, "name": name, "uid": pod.uid, "deadline_ms": patience,
    });
    format!("{words}\n")
}

/// Reads a question.
///
/// # Errors
/// When it is none, or in another version.
pub fn asked(line: &[u8]) -> Result<Question, WireError> {
    let words: Value = serde_json::from_slice(line).map_err(|fault| nonsense(&fault))?;
    let text = |key: &str| words.get(key).and_then(Value::as_str);
    match words.get("version").and_then(Value::as_u64).map(u32::try_from) {
        Some(Ok(VERSION)) => {}
        Some(version) => return Err(WireError::Version(version.unwrap_or(u32::MAX))),
        None => return Err(WireError::Nonsense("names no version")),
    }
    let name = |_| WireError::Nonsense("has a name that Kubernetes would not give");
    let pod = PodRef {
        namespace: Namespace::parse(text("namespace").unwrap_or_default()).map_err(name)?,
        name: PodName::parse(text("name").unwrap_or_default()).map_err(name)?,
        uid: text("uid").map(str::to_owned),
    };
    let patience = match words.get("deadline_ms") {
        None | Some(Value::Null) => None,
        Some(left) => Some(left.as_u64().ok_or(WireError::Nonsense("has a deadline that is none"))?),
    };
    Ok(Question { pod, patience: patience.map(Duration::from_millis) })
}

/// Writes an answer.
pub fn answer(answer: &Answer) -> String {
    let words = match answer {
        Answer::Pod(facts) => json!({ "version": VERSION, "pod": facts.to_manifest() }),
        Answer::Unknown => json!({ "version": VERSION }),
        Answer::Fault(why) => json!({ "version": VERSION, "fault": why }),
    };
    format!("{words}\n")
}

/// Reads an answer.
///
/// # Errors
/// When it is none, or in another version, or its pod is none.
pub fn answered(bytes: &[u8]) -> Result<Answer, WireError> {
    let words: WrittenAnswer = serde_json::from_slice(bytes).map_err(|fault| nonsense(&fault))?;
    match words {
        WrittenAnswer { version, .. } if version != VERSION => Err(WireError::Version(version)),
        WrittenAnswer { fault: Some(why), .. } => Ok(Answer::Fault(why.chars().take(100).collect())),
        WrittenAnswer { pod: Some(pod), .. } => Ok(Answer::Pod(Box::new(pod.facts()?))),
        _ => Ok(Answer::Unknown),
    }
}

/// Without a word of it: it may hold what no log should.
fn nonsense(fault: &serde_json::Error) -> WireError {
    WireError::Nonsense(broken(fault))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the first plugins ask, and some to come.
    const OTHERS: [&str; 2] = [
        r#"{"version": 1, "namespace": "shop", "name": "cart-0", "uid": "u1"}"#,
        r#"{"version": 1, "namespace": "shop", "name": "cart-0", "uid": "u1", "deadline_ms": 1950, "more": {}}"#,
    ];

    #[test]
    fn what_is_said_is_understood() {
        for patience in [None, Some(0), Some(1), Some(1950), Some(u64::MAX)] {
            let said = Question {
                patience: patience.map(Duration::from_millis),
                ..asked(OTHERS[0].as_bytes()).unwrap()
            };
            assert_eq!(asked(question(&said).as_bytes()), Ok(said));
        }
        let facts = PodFacts { name: "cart-0".to_owned(), ..PodFacts::default() };
        for said in [Answer::Pod(Box::new(facts)), Answer::Unknown, Answer::Fault("tired".to_owned())] {
            assert_eq!(answered(answer(&said).as_bytes()), Ok(said));
        }
    }

    #[test]
    fn f30_a_question_of_an_older_or_a_newer_release_is_understood_as_far_as_it_goes() {
        let patience = OTHERS.map(|words| asked(words.as_bytes()).unwrap().patience);
        assert_eq!(patience, [None, Some(Duration::from_millis(1950))]);
        // What the first agents make of ours: they look at these and at nothing else.
        let ours: Value = serde_json::from_str(&question(&asked(OTHERS[1].as_bytes()).unwrap())).unwrap();
        let older = ["version", "namespace", "name", "uid"].map(|key| &ours[key]);
        assert_eq!(older, [&json!(1), &json!("shop"), &json!("cart-0"), &json!("u1")]);
        let newer = br#"{"version": 1, "pod": null, "fault": null, "more": {}}"#;
        assert_eq!(answered(newer), Ok(Answer::Unknown));
    }

    #[test]
    fn another_version_is_told_and_nothing_is_guessed() {
        let question = br#"{"version": 2, "namespace": "shop", "name": "cart-0"}"#;
        assert_eq!(asked(question), Err(WireError::Version(2)));
        assert_eq!(answered(br#"{"version": 2, "pod": null}"#), Err(WireError::Version(2)));
    }

    #[test]
    fn what_is_not_of_the_language_is_refused() {
        for words in ["", "x", "[]", "{}", r#"{"version": "1"}"#, r#"{"version": 1, "name": "../x"}"#] {
            assert!(asked(words.as_bytes()).is_err(), "{words}");
        }
        for deadline in ["-1", "1.5", "\"1\"", "[]"] {
            let words = OTHERS[1].replace("1950", deadline);
            assert_eq!(
                asked(words.as_bytes()),
                Err(WireError::Nonsense("has a deadline that is none")),
                "{words}"
            );
        }
        for words in [
            "",
            "x",
            "{}",
            r#"{"version": -1}"#,
            r#"{"version": 1, "pod": {}}"#,
            r#"{"version": 1, "pod": 5}"#,
        ] {
            assert!(answered(words.as_bytes()).is_err(), "{words}");
        }
    }
}
