//! prevResult, handed on: every member survives, only its version may follow the configuration's.
//!
//! Nothing of it is modelled: an address plugin's new field must reach the runtime through us. How
//! versions differ in writing is in `result/convert.rs`.

pub mod convert;

use convert::{ConvertError, Form, convert};
use gybe_netfilter::hint::Hint;
use serde_json::{Value, json};
use std::borrow::Cow;

/// Why there is no result to hand on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResultError {
    /// A prevResult that is no result.
    #[error("prevResult must be a JSON object")]
    NotAnObject,
    /// `cniVersion` of another type.
    #[error("prevResult's cniVersion must be a string")]
    VersionNotText,
    /// A version written otherwise than the configuration's.
    #[error("prevResult has version {found:?}, but a config of version {config} takes {}", .takes.join(", "))]
    OtherFamily {
        /// What it says.
        found: String,
        /// What the configuration says.
        config: String,
        /// What would do.
        takes: &'static [&'static str],
    },
    /// A prevResult that says what no result says.
    #[error("prevResult cannot be handed on")]
    Convert(#[from] ConvertError),
    /// Before 0.3.0 a result must have an address, and there is none.
    #[error("there is no prevResult, and a result of version {0} cannot be empty")]
    NothingToSay(String),
}

impl Hint for ResultError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::NothingToSay(_) => {
                Some("gybe-cni stands behind an address plugin, in a list of version 0.3.1 or newer".into())
            }
            Self::OtherFamily { .. } => {
                Some("the plugin before gybe-cni must answer in the list's cniVersion".into())
            }
            Self::NotAnObject | Self::VersionNotText | Self::Convert(_) => None,
        }
    }
}

/// The result ADD answers with: what was there before, in the version of the configuration.
///
/// # Errors
/// When there is a prevResult that is none, or of a version that is written otherwise, or when
/// there is none and the version knows no empty result.
pub fn to_hand_on(before: Option<Value>, config: &str) -> Result<Value, ResultError> {
    let before = match before {
        None => return empty(config),
        Some(Value::Object(before)) => before,
        Some(_) => return Err(ResultError::NotAnObject),
    };
    let found = match before.get("cniVersion") {
        None | Some(Value::Null) => config,
        Some(version) => version.as_str().ok_or(ResultError::VersionNotText)?,
    };
    // Runtimes convert before they call; a result in other words is another plugin's mistake, and
    // the reference refuses it.
    match Form::of(config) {
        Some(form) if form.versions().contains(&found) => Ok(Value::Object(convert(before, form, config)?)),
        form => Err(ResultError::OtherFamily {
            found: found.chars().take(32).collect(),
            config: config.to_owned(),
            takes: form.map_or(&[], Form::versions),
        }),
    }
}

fn empty(version: &str) -> Result<Value, ResultError> {
    match version {
        "0.1.0" | "0.2.0" => Err(ResultError::NothingToSay(version.to_owned())),
        // These versions print a struct `dns` even when it is empty (docs/RULES.md, section 6).
        "0.3.0" | "0.3.1" | "0.4.0" => Ok(json!({ "cniVersion": version, "dns": {} })),
        _ => Ok(json!({ "cniVersion": version })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Network;

    fn answer(config: &str, before: &str) -> Result<Value, ResultError> {
        let entry = format!(r#"{{"cniVersion": "{config}", "name": "n", "prevResult": {before}}}"#);
        let mut network = Network::parse(entry.as_bytes()).unwrap();
        to_hand_on(network.take_prev_result(), network.version())
    }

    #[test]
    fn every_member_of_a_prev_result_survives() {
        let before = json!({
            "cniVersion": "1.1.0", "ips": [{ "address": "10.0.0.1/24", "x": null }],
            "interfaces": [{ "name": "eth0", "mtu": 1450, "socketPath": "/s" }],
            "io.example/made-up": { "deep": [1, 2.5, "ü", 18446744073709551615u64] },
        });
        assert_eq!(answer("1.1.0", &before.to_string()).unwrap(), before);
    }

    #[test]
    fn the_version_follows_the_config_inside_a_family() {
        for (config, before, works) in [
            ("0.3.1", r#"{"cniVersion": "0.4.0"}"#, true),
            ("0.4.0", r#"{"cniVersion": "0.3.0"}"#, true),
            ("1.0.0", r#"{"cniVersion": "1.1.0"}"#, true),
            ("1.1.0", r#"{"cniVersion": "1.0.0"}"#, true),
            ("1.0.0", r#"{}"#, true),
            ("1.0.0", r#"{"cniVersion": null}"#, true),
            ("0.2.0", r#"{"cniVersion": "0.1.0"}"#, true),
            ("1.0.0", r#"{"cniVersion": ""}"#, false),
            ("1.0.0", r#"{"cniVersion": "0.4.0"}"#, false),
            ("0.4.0", r#"{"cniVersion": "1.0.0"}"#, false),
            ("0.4.0", r#"{"cniVersion": "0.2.0"}"#, false),
            ("1.1.0", r#"{"cniVersion": 1}"#, false),
            ("1.1.0", r#"[]"#, false),
            ("1.1.0", r#""x""#, false),
        ] {
            let answer = answer(config, before);
            assert_eq!(answer.is_ok(), works, "{before} in {config}");
            assert!(!works || answer.unwrap()["cniVersion"] == config, "{before} in {config}");
        }
    }

    #[test]
    fn nothing_before_is_an_empty_result_where_there_is_one() {
        for (config, want) in [
            ("0.2.0", None),
            ("0.3.1", Some(json!({ "cniVersion": "0.3.1", "dns": {} }))),
            ("1.1.0", Some(json!({ "cniVersion": "1.1.0" }))),
        ] {
            assert_eq!(answer(config, "null").ok(), want, "{config}");
        }
    }
}
