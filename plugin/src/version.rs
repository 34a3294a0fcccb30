//! VERSION, and the configuration versions that each verb accepts.

use crate::request::Verb;
use serde_json::{Value, json};

/// The CNI versions that the plugin supports, oldest first.
pub const SUPPORTED: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

pub const NEWEST: &str = "1.1.0";

/// A text in every build of gybe-cni and in no other CNI plugin: it identifies a gybe-cni of another release.
pub const BUILD_MARK: &str = "gybe-cni, the CNI plugin of Gybe: 4e02c5d1b7";

/// Why a verb is refused for a configuration of this version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// Not `major.minor.patch`.
    #[error("cniVersion {0:?} is not a version like 1.0.0")]
    NotAVersion(String),
    /// An unsupported version. Versions match by their exact text.
    #[error("incompatible CNI versions: config is {config:?}, plugin supports {all}", all = SUPPORTED.join(", "))]
    Unsupported {
        /// `cniVersion`, truncated.
        config: String,
    },
    /// A version older than the verb.
    #[error("config version {version:?} does not allow {verb}, which came with {since}")]
    TooOldFor {
        /// `cniVersion`.
        version: String,
        /// The verb.
        verb: Verb,
        /// The CNI version that introduced the verb.
        since: &'static str,
    },
}

/// Returns the result of VERSION.
pub fn result() -> Value {
    json!({ "cniVersion": NEWEST, "supportedVersions": SUPPORTED })
}

/// Checks that the plugin supports this version of the configuration, and that `verb` exists in it.
///
/// # Errors
/// When the version is unsupported, or older than the verb.
pub fn check(verb: Verb, version: &str) -> Result<(), VersionError> {
    if let Some(since) = introduced_in(verb) {
        let not_a_version = || VersionError::NotAVersion(truncated(version));
        let number = numbers(version).ok_or_else(not_a_version)?;
        if numbers(since).is_some_and(|since| number < since) {
            return Err(VersionError::TooOldFor { version: truncated(version), verb, since });
        }
    }
    if SUPPORTED.contains(&version) {
        Ok(())
    } else {
        Err(VersionError::Unsupported { config: truncated(version) })
    }
}

/// A version as an error shows it.
fn truncated(version: &str) -> String {
    version.chars().take(32).collect()
}

/// The version that introduced a verb; none for a verb of every version.
fn introduced_in(verb: Verb) -> Option<&'static str> {
    match verb {
        Verb::Add | Verb::Del | Verb::Version => None,
        Verb::Check => Some("0.4.0"),
        Verb::Gc | Verb::Status => Some("1.1.0"),
    }
}

/// Parses up to three numbers; missing ones are 0, as in libcni.
fn numbers(version: &str) -> Option<[i64; 3]> {
    let mut parts = version.split('.');
    let first = parts.next()?.parse().ok()?;
    let mut rest = [0, 0];
    for (number, part) in rest.iter_mut().zip(parts.by_ref()) {
        *number = part.parse().ok()?;
    }
    let [second, third] = rest;
    parts.next().is_none().then_some([first, second, third])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verb_is_accepted_from_the_version_that_introduced_it() {
        for version in SUPPORTED {
            for (verb, since) in [
                (Verb::Add, "0.1.0"),
                (Verb::Del, "0.1.0"),
                (Verb::Check, "0.4.0"),
                (Verb::Gc, "1.1.0"),
                (Verb::Status, "1.1.0"),
            ] {
                assert_eq!(
                    check(verb, version).is_ok(),
                    numbers(version) >= numbers(since),
                    "{verb} {version}"
                );
            }
        }
    }

    #[test]
    fn versions_match_by_their_exact_text() {
        for version in ["1", "1.0", "1.0.0.0", "1.2.0", "2.0.0", "01.0.0", "abc", " 1.0.0"] {
            for verb in [Verb::Add, Verb::Check, Verb::Del, Verb::Gc, Verb::Status] {
                assert!(check(verb, version).is_err(), "{verb} {version}");
            }
        }
    }
}
