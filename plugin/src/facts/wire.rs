//! The protocol between plugin and node agent: one line of JSON in each direction. Pure.
//!
//! The plugin requests one pod, with its timeout. The agent responds with the pod's manifest, trimmed to what
//! the decision needs, or without a pod if it knows none, or with an error, and closes the connection.
//!
//! Either side ignores unknown members, so either may be the newer release. A change that an older release
//! must not ignore needs another version. During an upgrade plugin and agent may differ by one version, so a release
//! with version N also speaks N-1: its agent responds in the version of the request, and its plugin sends a request
//! again in N-1 when the response is an error in N-1. `integration/vectors/facts` has a recording of each version, and
//! a test fails when the recording of the current version or of the one before is missing or is answered otherwise.

use crate::args::{Namespace, PodName, PodRef};
use crate::pod::{Ambient, Manifest, ManifestError, PodFacts, describe_json_error};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// The version of the protocol. A message of another version is an error.
pub const VERSION: u32 = 1;

/// The longest request: two names, a uid and a number.
pub const MAX_REQUEST_BYTES: usize = 4096;

/// The longest response: the API server accepts pods of 3 MiB, most of it annotations.
pub const MAX_RESPONSE_BYTES: usize = 4 * 1024 * 1024;

/// A request for one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FactsRequest {
    /// The pod.
    pub pod: PodRef,
    /// How long the client waits for the response, in whole milliseconds; the first releases do not send it.
    pub timeout: Option<Duration>,
    /// Whether the client evaluates `ambient` in the response. Without it the agent sends no ambient pod, because such a
    /// client would leave the pod alone. An agent older than ambient mode ignores this, and sends no `ambient`.
    pub knows_ambient: bool,
}

/// The agent's response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FactsResponse {
    /// The pod.
    Pod(Box<PodFacts>),
    /// The agent does not know the pod, yet.
    Unknown,
    /// The agent cannot find out.
    Error(String),
    /// A manifest that may be the pod's cannot be used. The first releases read it as `Error`.
    BrokenManifest(String),
}

/// Why a message is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message ends before its JSON does.
    #[error("incomplete")]
    Incomplete,
    /// Not JSON, or a member of the wrong type.
    #[error("malformed: it {0}")]
    Malformed(&'static str),
    /// Another version of the protocol.
    #[error("in version {0}, not {VERSION}: install plugin and agent of one release")]
    Version(u32),
    /// The pod is not a manifest.
    #[error("not usable")]
    Manifest(#[from] ManifestError),
}

#[derive(Deserialize)]
struct ResponseJson {
    version: u32,
    pod: Option<Manifest>,
    /// Beside a pod: an object with the reason, and with the service account of an ambient pod.
    #[serde(default)]
    ambient: Value,
    fault: Option<String>,
    #[serde(default)]
    manifest: bool,
}

/// Encodes a request.
pub fn encode_request(FactsRequest { pod, timeout, knows_ambient }: &FactsRequest) -> String {
    let (namespace, name) = (pod.namespace.as_str(), pod.name.as_str());
    let timeout = timeout.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
    let mut json = json!({
        "version": VERSION, "namespace": namespace, "name": name, "uid": pod.uid, "deadline_ms": timeout,
    });
    if let (true, Some(members)) = (knows_ambient, json.as_object_mut()) {
        members.insert("knows_ambient".to_owned(), true.into());
    }
    format!("{json}\n")
}

/// Decodes a request.
///
/// # Errors
/// When it is malformed or of another version.
pub fn decode_request(line: &[u8]) -> Result<FactsRequest, WireError> {
    request_of(&parse_request(line)?)
}

/// Parses the line of any request.
///
/// # Errors
/// When it is not JSON.
pub fn parse_request(line: &[u8]) -> Result<Value, WireError> {
    serde_json::from_slice(line).map_err(|error| malformed(&error))
}

/// Decodes a parsed request.
///
/// # Errors
/// When it is malformed or of another version.
pub fn request_of(json: &Value) -> Result<FactsRequest, WireError> {
    let text = |key: &str| json.get(key).and_then(Value::as_str);
    check_version(json)?;
    let name = |_| WireError::Malformed("has a name that is invalid in Kubernetes");
    let pod = PodRef {
        namespace: Namespace::parse(text("namespace").unwrap_or_default()).map_err(name)?,
        name: PodName::parse(text("name").unwrap_or_default()).map_err(name)?,
        uid: text("uid").map(str::to_owned),
    };
    let timeout = match json.get("deadline_ms") {
        None | Some(Value::Null) => None,
        Some(left) => Some(
            left.as_u64()
                .ok_or(WireError::Malformed("has a deadline that is not a number of milliseconds"))?,
        ),
    };
    let knows_ambient = json.get("knows_ambient") == Some(&Value::Bool(true));
    Ok(FactsRequest { pod, timeout: timeout.map(Duration::from_millis), knows_ambient })
}

/// Checks the version of a parsed message.
pub(super) fn check_version(json: &Value) -> Result<(), WireError> {
    match json.get("version").and_then(Value::as_u64).map(u32::try_from) {
        Some(Ok(VERSION)) => Ok(()),
        Some(version) => Err(WireError::Version(version.unwrap_or(u32::MAX))),
        None => Err(WireError::Malformed("has no version")),
    }
}

/// Encodes a response.
pub fn encode_response(answer: &FactsResponse) -> String {
    let json = match answer {
        FactsResponse::Pod(facts) => {
            let mut json = json!({ "version": VERSION, "pod": facts.to_manifest() });
            let ambient = match &facts.ambient {
                Ambient::Unknown | Ambient::Undecided(_) => None,
                Ambient::No { why } => Some(json!({ "why": why })),
                Ambient::Yes { service_account, why } => {
                    Some(json!({ "service_account": service_account, "why": why }))
                }
            };
            if let (Some(ambient), Some(members)) = (ambient, json.as_object_mut()) {
                members.insert("ambient".to_owned(), ambient);
            }
            json
        }
        FactsResponse::Unknown => json!({ "version": VERSION }),
        FactsResponse::Error(why) => json!({ "version": VERSION, "fault": why }),
        FactsResponse::BrokenManifest(why) => json!({ "version": VERSION, "fault": why, "manifest": true }),
    };
    format!("{json}\n")
}

/// Decodes a response.
///
/// # Errors
/// When it is malformed, of another version, or its pod is not a manifest.
pub fn decode_response(bytes: &[u8]) -> Result<FactsResponse, WireError> {
    let response: ResponseJson = serde_json::from_slice(bytes).map_err(|error| malformed(&error))?;
    match response {
        ResponseJson { version, .. } if version != VERSION => Err(WireError::Version(version)),
        ResponseJson { fault: Some(why), manifest, .. } => {
            let why = why.chars().take(100).collect();
            Ok(if manifest { FactsResponse::BrokenManifest(why) } else { FactsResponse::Error(why) })
        }
        ResponseJson { pod: Some(pod), ambient, .. } => {
            Ok(FactsResponse::Pod(Box::new(PodFacts { ambient: decode_ambient(&ambient)?, ..pod.facts()? })))
        }
        _ => Ok(FactsResponse::Unknown),
    }
}

fn decode_ambient(ambient: &Value) -> Result<Ambient, WireError> {
    let text = |key| ambient.get(key).and_then(Value::as_str).map(str::to_owned);
    match (text("why"), text("service_account")) {
        (Some(why), Some(service_account)) => Ok(Ambient::Yes { service_account, why }),
        (Some(why), None) => Ok(Ambient::No { why }),
        _ if ambient.is_null() => Ok(Ambient::Unknown),
        (None, _) => Err(WireError::Malformed("does not say why a pod is ambient or not")),
    }
}

/// Describes the fault without quoting the message, which may hold a secret.
pub(super) fn malformed(fault: &serde_json::Error) -> WireError {
    match fault.is_eof() {
        true => WireError::Incomplete,
        false => WireError::Malformed(describe_json_error(fault)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request of the first release, and one of a future release.
    const REQUESTS: [&str; 2] = [
        r#"{"version": 1, "namespace": "shop", "name": "cart-0", "uid": "u1"}"#,
        r#"{"version": 1, "namespace": "shop", "name": "cart-0", "uid": "u1", "deadline_ms": 1950, "more": {}}"#,
    ];

    #[test]
    fn a_message_is_decoded_as_it_was_encoded() {
        for timeout in [None, Some(0), Some(1), Some(1950), Some(u64::MAX)] {
            let request = FactsRequest {
                timeout: timeout.map(Duration::from_millis),
                ..decode_request(REQUESTS[0].as_bytes()).unwrap()
            };
            assert_eq!(decode_request(encode_request(&request).as_bytes()), Ok(request));
        }
        let facts = PodFacts { name: "cart-0".to_owned(), ..PodFacts::default() };
        for response in [
            FactsResponse::Pod(Box::new(facts)),
            FactsResponse::Unknown,
            FactsResponse::Error("overloaded".to_owned()),
            FactsResponse::BrokenManifest("shop/cart-0.json: not JSON".to_owned()),
        ] {
            assert_eq!(decode_response(encode_response(&response).as_bytes()), Ok(response));
        }
    }

    #[test]
    fn f30_members_of_an_older_or_a_newer_release_are_decoded_and_unknown_ones_ignored() {
        let timeout = REQUESTS.map(|text| decode_request(text.as_bytes()).unwrap().timeout);
        assert_eq!(timeout, [None, Some(Duration::from_millis(1950))]);
        // The first release of the agent reads these members only.
        let request: Value =
            serde_json::from_str(&encode_request(&decode_request(REQUESTS[1].as_bytes()).unwrap())).unwrap();
        let older = ["version", "namespace", "name", "uid"].map(|key| &request[key]);
        assert_eq!(older, [&json!(1), &json!("shop"), &json!("cart-0"), &json!("u1")]);
        let newer = br#"{"version": 1, "pod": null, "fault": null, "more": {}}"#;
        assert_eq!(decode_response(newer), Ok(FactsResponse::Unknown));
    }

    #[test]
    fn another_version_is_an_error() {
        let question = br#"{"version": 2, "namespace": "shop", "name": "cart-0"}"#;
        assert_eq!(decode_request(question), Err(WireError::Version(2)));
        assert_eq!(decode_response(br#"{"version": 2, "pod": null}"#), Err(WireError::Version(2)));
    }

    #[test]
    fn malformed_messages_are_refused() {
        for text in ["", "x", "[]", "{}", r#"{"version": "1"}"#, r#"{"version": 1, "name": "../x"}"#] {
            assert!(decode_request(text.as_bytes()).is_err(), "{text}");
        }
        for deadline in ["-1", "1.5", "\"1\"", "[]"] {
            let text = REQUESTS[1].replace("1950", deadline);
            assert_eq!(
                decode_request(text.as_bytes()),
                Err(WireError::Malformed("has a deadline that is not a number of milliseconds")),
                "{text}"
            );
        }
        for text in [
            "",
            "x",
            "{}",
            r#"{"version": -1}"#,
            r#"{"version": 1, "pod": {}}"#,
            r#"{"version": 1, "pod": 5}"#,
        ] {
            assert!(decode_response(text.as_bytes()).is_err(), "{text}");
        }
    }
}
