//! The request by which the plugin hands over an ambient pod's open network namespace to the node agent, which passes it
//! to ztunnel: one more request of the facts socket, in the form that `wire` describes, with the namespace as its only
//! descriptor (`SCM_RIGHTS`, unix(7)). The agent responds when ztunnel has acknowledged the pod, or with the reason why
//! the pod is not in the mesh. The process that repairs pods makes the same request for a pod that runs, again when its
//! rules stand, and others when such a pod leaves the mesh. An agent without these requests responds with an error.
//! Pure.

use super::wire::{VERSION, WireError, check_version, malformed};
use crate::args::{ArgsError, Namespace, PodName};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// A hand-over without its descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandOverRequest {
    pub pod: AmbientPod,
    pub by: HandOverBy,
    /// How long the client waits for the response, in whole milliseconds.
    pub timeout: Duration,
}

#[derive(Deserialize)]
struct RequestJson {
    version: u32,
    ambient: PodJson,
    deadline_ms: u64,
    #[serde(default)]
    by: HandOverBy,
}

#[derive(Deserialize)]
struct PodJson {
    uid: String,
    namespace: String,
    name: String,
    service_account: String,
    #[serde(default)]
    addresses: Vec<IpAddr>,
}

/// Why a pod is not in the mesh, as the agent reports it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("reports: {text:?}")]
pub struct HandOverFault {
    pub cause: HandOverCause,
    /// The agent's sentence; of a refusal ztunnel's own text is a part.
    pub text: String,
}

/// The kinds of [`HandOverFault`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandOverCause {
    /// No ztunnel is connected to the agent.
    NotConnected,
    /// ztunnel did not answer before the deadline.
    NoAnswer,
    /// ztunnel refused the pod.
    Refused,
    /// Another one, of the agent itself.
    Other,
}

const CAUSES: [(&str, HandOverCause); 3] = [
    ("not-connected", HandOverCause::NotConnected),
    ("no-answer", HandOverCause::NoAnswer),
    ("refused", HandOverCause::Refused),
];

/// The process that hands a pod over, and why.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HandOverBy {
    /// The plugin: the pod starts.
    #[default]
    Add,
    /// The process that repairs pods: the pod runs, and its rules are written when ztunnel listens in it.
    Enrolment,
    /// The process that repairs pods: the pod runs, and its rules stand.
    Repair,
    /// The process that repairs pods: ztunnel has acknowledged the pod, and does not listen in it.
    Restart,
}

/// Encodes a request.
pub fn encode_request(pod: &AmbientPod, by: HandOverBy, timeout: Duration) -> String {
    let AmbientPod { uid, namespace, name, service_account, addresses } = pod;
    // Each name consists of letters, digits, `-` and `.`, so it needs no escapes.
    let names = [uid.as_str(), namespace.as_str(), name.as_str(), service_account.as_str()];
    let [uid, namespace, name, account] = names;
    let addresses: Vec<String> = addresses.iter().map(|address| format!("\"{address}\"")).collect();
    let (addresses, timeout) = (addresses.join(","), timeout.as_millis());
    let by = match by {
        HandOverBy::Add => "",
        HandOverBy::Enrolment => ",\"by\":\"enrolment\"",
        HandOverBy::Repair => ",\"by\":\"repair\"",
        HandOverBy::Restart => ",\"by\":\"restart\"",
    };
    format!(
        "{{\"version\":{VERSION},\"ambient\":{{\"uid\":\"{uid}\",\"namespace\":\"{namespace}\",\"name\":\"{name}\",\
         \"service_account\":\"{account}\",\"addresses\":[{addresses}]}},\"deadline_ms\":{timeout}{by}}}\n"
    )
}

/// Decodes a request; none when it is another request.
pub fn decode_request(json: &Value) -> Option<Result<HandOverRequest, WireError>> {
    json.get("ambient")?;
    let decoded = match RequestJson::deserialize(json) {
        Err(why) => Err(malformed(&why)),
        Ok(RequestJson { version, .. }) if version != VERSION => Err(WireError::Version(version)),
        Ok(RequestJson { ambient: pod, deadline_ms, by, .. }) => {
            AmbientPod::parse(&pod.uid, &pod.namespace, &pod.name, &pod.service_account)
                .map(|named| HandOverRequest {
                    pod: named.with_addresses(pod.addresses),
                    by,
                    timeout: Duration::from_millis(deadline_ms),
                })
                .map_err(|_| WireError::Malformed("has a name or a uid that is invalid in Kubernetes"))
        }
    };
    Some(decoded)
}

/// How far a running pod is that leaves the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaveStep {
    /// Its rules capture no new connection, and ztunnel serves it.
    Draining,
    /// ztunnel is to end its proxy of the pod.
    Left,
}

impl LeaveStep {
    /// The key of its request.
    fn key(self) -> &'static str {
        match self {
            Self::Draining => "ambient_draining",
            Self::Left => "ambient_left",
        }
    }
}

/// Encodes the request that a pod leaves the mesh; the response is that to a hand-over.
pub fn encode_leave(pod: &PodUid, step: LeaveStep) -> String {
    format!("{}\n", json!({ "version": VERSION, step.key(): pod.as_str() }))
}

/// Decodes the uid of a pod that leaves the mesh; none when it is another request.
pub fn decode_leave(json: &Value) -> Option<Result<(PodUid, LeaveStep), WireError>> {
    let mut steps = [LeaveStep::Draining, LeaveStep::Left].into_iter();
    let (uid, step) = steps.find_map(|step| Some((json.get(step.key())?, step)))?;
    let uid = PodUid::parse(uid.as_str().unwrap_or_default());
    let uid = uid.map_err(|_| WireError::Malformed("has a uid that is invalid in Kubernetes"));
    Some(check_version(json).and(uid).map(|uid| (uid, step)))
}

/// Encodes the response: ztunnel has acknowledged the pod, or why it is not in the mesh.
pub fn encode_response(response: &Result<(), HandOverFault>) -> String {
    let json = match response {
        Ok(()) => json!({ "version": VERSION, "ambient": true }),
        Err(HandOverFault { cause, text }) => {
            let cause = CAUSES.iter().find(|(_, known)| known == cause).map(|(name, _)| *name);
            json!({ "version": VERSION, "fault": text, "cause": cause })
        }
    };
    format!("{json}\n")
}

/// Decodes a response.
///
/// # Errors
/// When it is malformed, of another version, or the response to another request.
pub fn decode_response(bytes: &[u8]) -> Result<Result<(), HandOverFault>, WireError> {
    let response: Value = serde_json::from_slice(bytes).map_err(|why| malformed(&why))?;
    check_version(&response)?;
    let text = |key| response.get(key).and_then(Value::as_str);
    match text("fault") {
        Some(why) => {
            let cause = CAUSES.iter().find(|(name, _)| Some(*name) == text("cause"));
            let cause = cause.map_or(HandOverCause::Other, |(_, cause)| *cause);
            Ok(Err(HandOverFault { cause, text: truncated(why, MAX_CAUSE) }))
        }
        None if response.get("ambient") == Some(&Value::Bool(true)) => Ok(Ok(())),
        None => Err(WireError::Malformed("does not report a pod in the mesh")),
    }
}

/// The characters of an invalid name that are kept.
const MAX_NAME: usize = 100;

/// The characters of a cause that are kept: ztunnel's own text is a part of it.
const MAX_CAUSE: usize = 300;

/// The addresses of a pod that are kept.
const MAX_ADDRESSES: usize = 16;

/// A pod whose traffic ztunnel takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AmbientPod {
    pub uid: PodUid,
    pub namespace: Namespace,
    pub name: PodName,
    pub service_account: ServiceAccount,
    /// To which the kubelet's probes are exempt; empty where they are not known.
    pub addresses: Vec<IpAddr>,
}

/// A pod's `metadata.uid`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodUid(String);

/// The name of a service account: an RFC 1123 subdomain, as a pod's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccount(PodName);

/// Why a pod cannot be named to ztunnel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPod {
    #[error("the uid {0:?} is not 1 to {max} letters, digits and `-`", max = PodUid::MAX_BYTES)]
    Uid(String),
    #[error("{0:?} is not the name of a service account")]
    ServiceAccount(String),
    #[error(transparent)]
    Name(#[from] ArgsError),
}

impl AmbientPod {
    /// Parses the names.
    ///
    /// # Errors
    /// When one of them is invalid in Kubernetes.
    pub fn parse(uid: &str, namespace: &str, name: &str, service_account: &str) -> Result<Self, InvalidPod> {
        let account = PodName::parse(service_account);
        let account =
            account.map_err(|_| InvalidPod::ServiceAccount(truncated(service_account, MAX_NAME)))?;
        Ok(Self {
            uid: PodUid::parse(uid)?,
            namespace: Namespace::parse(namespace)?,
            name: PodName::parse(name)?,
            service_account: ServiceAccount(account),
            addresses: Vec::new(),
        })
    }

    /// Sets the addresses, at most 16: a pod has one or two per network.
    #[must_use]
    pub fn with_addresses(mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        self.addresses = addresses.into_iter().take(MAX_ADDRESSES).collect();
        self
    }
}

impl fmt::Display for AmbientPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl PodUid {
    /// A uid of the API server has 36; the uid of a pod of a file has 32.
    pub const MAX_BYTES: usize = 128;

    /// Parses a uid.
    ///
    /// # Errors
    /// When it is empty, too long, or has another character than a letter, a digit or `-`.
    pub fn parse(text: &str) -> Result<Self, InvalidPod> {
        let is_valid = (1..=Self::MAX_BYTES).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if is_valid { Ok(Self(text.to_owned())) } else { Err(InvalidPod::Uid(truncated(text, MAX_NAME))) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl ServiceAccount {
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

fn truncated(text: &str, length: usize) -> String {
    text.chars().take(length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(line: &[u8]) -> Option<Result<HandOverRequest, WireError>> {
        decode_request(&serde_json::from_slice(line).unwrap())
    }

    #[test]
    fn names_that_kubernetes_does_not_have_are_refused() {
        assert!(AmbientPod::parse("u-1", "shop", "cart-0", "default").is_ok());
        for [uid, namespace, name, account] in [
            ["", "shop", "cart-0", "default"],
            ["../u", "shop", "cart-0", "default"],
            [&"u".repeat(PodUid::MAX_BYTES + 1), "shop", "cart-0", "default"],
            ["u-1", "", "cart-0", "default"],
            ["u-1", "shop", "Cart", "default"],
            ["u-1", "shop", "cart-0", ""],
        ] {
            assert!(
                AmbientPod::parse(uid, namespace, name, account).is_err(),
                "{uid} {namespace} {name} {account}"
            );
        }
    }
    #[test]
    fn a_message_is_decoded_as_it_was_encoded() {
        let pod = AmbientPod::parse("u-1", "shop", "cart-0", "default").unwrap();
        let addresses = ["10.0.0.7", "fd00::7"].map(|address| address.parse().unwrap());
        let pod = pod.with_addresses(addresses);
        for by in [HandOverBy::Add, HandOverBy::Enrolment, HandOverBy::Repair, HandOverBy::Restart] {
            let request = HandOverRequest { pod: pod.clone(), by, timeout: Duration::from_millis(1950) };
            let encoded = encode_request(&request.pod, by, request.timeout);
            assert_eq!(decoded(encoded.as_bytes()), Some(Ok(request)));
        }
        let fault = |cause, text: &str| Err(HandOverFault { cause, text: text.to_owned() });
        let (other, refused) = (HandOverCause::Other, HandOverCause::Refused);
        let kinds = [HandOverCause::NotConnected, HandOverCause::NoAnswer, refused, other];
        for response in kinds.map(|kind| fault(kind, "why")).into_iter().chain([Ok(())]) {
            assert_eq!(decode_response(encode_response(&response).as_bytes()), Ok(response));
        }
        let first_release = br#"{"version": 1, "fault": "why"}"#;
        assert_eq!(decode_response(first_release), Ok(fault(other, "why")));
        let long = decode_response(encode_response(&fault(refused, &"x".repeat(5000))).as_bytes()).unwrap();
        assert_eq!(long.unwrap_err().text.len(), MAX_CAUSE);
    }

    #[test]
    fn other_requests_and_responses_are_never_taken_for_a_hand_over() {
        use crate::facts::wire;
        let facts = br#"{"version": 1, "namespace": "shop", "name": "cart-0", "uid": "u1"}"#;
        assert_eq!(decoded(facts), None);
        assert_eq!(decoded(br#"{"version": 1, "status": true}"#), None);
        let pod = AmbientPod::parse("u-1", "shop", "cart-0", "default").unwrap();
        let request = encode_request(&pod, HandOverBy::Add, Duration::ZERO);
        assert!(wire::decode_request(request.as_bytes()).is_err(), "an older agent responds with an error");
        for text in [
            "{}",
            r#"{"version": 1}"#,
            r#"{"version": 2, "ambient": true}"#,
            r#"{"version": 1, "ambient": 1}"#,
        ] {
            assert!(decode_response(text.as_bytes()).is_err(), "{text}");
        }
        let left = |line: &str| decode_leave(&serde_json::from_str(line).unwrap());
        for step in [LeaveStep::Draining, LeaveStep::Left] {
            assert_eq!(left(&encode_leave(&pod.uid, step)), Some(Ok((pod.uid.clone(), step))));
        }
        let leave = encode_leave(&pod.uid, LeaveStep::Draining);
        assert!(left(&request).is_none() && decoded(leave.as_bytes()).is_none());
        assert!(wire::decode_request(leave.as_bytes()).is_err(), "an older agent responds with an error");
        assert_eq!(left(&leave.replace("\"version\":1", "\"version\":2")), Some(Err(WireError::Version(2))));
        assert!(matches!(left(&leave.replace("u-1", "../u")), Some(Err(WireError::Malformed(_)))));
        let far_newer = br#"{"version": 4294967296, "ambient": true}"#;
        assert_eq!(decode_response(far_newer), Err(WireError::Version(u32::MAX)));
        let newer = request.replace("\"version\":1", "\"version\":2");
        assert_eq!(decoded(newer.as_bytes()), Some(Err(WireError::Version(2))));
        for (valid, invalid) in
            [("\"u-1\"", "\"../u\""), ("\"shop\"", "7"), ("\"deadline_ms\":0", "\"deadline_ms\":-1")]
        {
            let request = request.replace(valid, invalid);
            assert!(matches!(decoded(request.as_bytes()), Some(Err(WireError::Malformed(_)))), "{request}");
        }
    }
}
