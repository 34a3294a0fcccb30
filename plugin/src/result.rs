//! The result of ADD: prevResult with every member, converted to the configuration's version.
//!
//! prevResult is not modelled, so that an address plugin's new field reaches the runtime. The differences
//! between versions are in `result/convert.rs`.

pub mod convert;

use convert::{ConvertError, Format, convert};
use gybe_netfilter::model::Hint;
use serde_json::{Value, json};
use std::borrow::Cow;

/// Why there is no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResultError {
    /// prevResult is not an object.
    #[error("prevResult must be a JSON object")]
    NotAnObject,
    /// `cniVersion` of another type.
    #[error("prevResult's cniVersion must be a string")]
    VersionNotText,
    /// A version whose format differs from the configuration's.
    #[error("prevResult has version {found:?}, but a config of version {config} takes {}", .takes.join(", "))]
    OtherFormat {
        /// prevResult's version, truncated.
        found: String,
        /// The configuration's version.
        config: String,
        /// The versions of the same format.
        takes: &'static [&'static str],
    },
    /// prevResult is not a valid result.
    #[error("prevResult cannot be passed on")]
    Convert(#[from] ConvertError),
    /// There is no prevResult, and before 0.3.0 a result must have an address.
    #[error("there is no prevResult, and a result of version {0} cannot be empty")]
    NoResult(String),
}

impl Hint for ResultError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::NoResult(_) => {
                Some("place gybe-cni behind an address plugin, in a list of version 0.3.1 or newer".into())
            }
            Self::OtherFormat { .. } => {
                Some("the plugin before gybe-cni must answer in the list's cniVersion".into())
            }
            Self::NotAnObject | Self::VersionNotText | Self::Convert(_) => None,
        }
    }
}

/// Returns the result of ADD: prevResult in the configuration's version.
///
/// # Errors
/// When prevResult is invalid or of another format, or when it is missing and the version has no empty result.
pub fn for_reply(prev_result: Option<Value>, config: &str) -> Result<Value, ResultError> {
    let members = match prev_result {
        None => return empty(config),
        Some(Value::Object(members)) => members,
        Some(_) => return Err(ResultError::NotAnObject),
    };
    let found = match members.get("cniVersion") {
        None | Some(Value::Null) => config,
        Some(version) => version.as_str().ok_or(ResultError::VersionNotText)?,
    };
    // Runtimes convert the result before they call; one in another format is another plugin's fault, which
    // the reference library refuses too.
    match Format::of(config) {
        Some(form) if form.versions().contains(&found) => Ok(Value::Object(convert(members, form, config)?)),
        form => Err(ResultError::OtherFormat {
            found: found.chars().take(32).collect(),
            config: config.to_owned(),
            takes: form.map_or(&[], Format::versions),
        }),
    }
}

fn empty(version: &str) -> Result<Value, ResultError> {
    match version {
        "0.1.0" | "0.2.0" => Err(ResultError::NoResult(version.to_owned())),
        // These versions print a struct `dns` even when it is empty (docs/RULES.md, section 6).
        "0.3.0" | "0.3.1" | "0.4.0" => Ok(json!({ "cniVersion": version, "dns": {} })),
        _ => Ok(json!({ "cniVersion": version })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network_conf::NetworkConf;

    fn reply(config: &str, prev_result: &str) -> Result<Value, ResultError> {
        let entry = format!(r#"{{"cniVersion": "{config}", "name": "n", "prevResult": {prev_result}}}"#);
        let mut network = NetworkConf::parse(entry.as_bytes()).unwrap();
        for_reply(network.take_prev_result(), network.version())
    }

    #[test]
    fn every_member_of_prev_result_is_passed_on() {
        let before = json!({
            "cniVersion": "1.1.0", "ips": [{ "address": "10.0.0.1/24", "x": null }],
            "interfaces": [{ "name": "eth0", "mtu": 1450, "socketPath": "/s" }],
            "io.example/made-up": { "deep": [1, 2.5, "ü", 18446744073709551615u64] },
        });
        assert_eq!(reply("1.1.0", &before.to_string()).unwrap(), before);
    }

    #[test]
    fn the_result_has_the_configurations_version_if_the_formats_are_equal() {
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
            let reply = reply(config, before);
            assert_eq!(reply.is_ok(), works, "{before} in {config}");
            assert!(!works || reply.unwrap()["cniVersion"] == config, "{before} in {config}");
        }
    }

    #[test]
    fn without_prev_result_the_result_is_empty_where_the_version_allows_it() {
        for (config, expected) in [
            ("0.2.0", None),
            ("0.3.1", Some(json!({ "cniVersion": "0.3.1", "dns": {} }))),
            ("1.1.0", Some(json!({ "cniVersion": "1.1.0" }))),
        ] {
            assert_eq!(reply(config, "null").ok(), expected, "{config}");
        }
    }
}
