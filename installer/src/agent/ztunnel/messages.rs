//! ZDS, the protocol between ztunnel and the node agent: one protobuf message in each packet (package
//! `istio.workload.zds`, proto3). Pure.
//!
//! ztunnel sends a hello first, and then one response for each request of the agent. A response has no id, so it belongs
//! to the one request that is not answered yet.

use gybe_plugin::facts::ambient::{AmbientPod, PodUid};
use prost::{DecodeError, Message};

/// The longest message of either side: ztunnel reads no more of a packet.
pub const MAX_MESSAGE: usize = 1024;

/// The only version of the protocol.
const V1: i32 = 1;

#[derive(Clone, PartialEq, Message)]
struct Hello {
    #[prost(int32, tag = "1")]
    version: i32,
}

#[derive(Clone, PartialEq, Message)]
struct WorkloadRequest {
    #[prost(oneof = "Payload", tags = "1, 2, 3, 5")]
    payload: Option<Payload>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Payload {
    #[prost(message, tag = "1")]
    Add(AddWorkload),
    #[prost(message, tag = "2")]
    Del(DelWorkload),
    #[prost(message, tag = "3")]
    SnapshotSent(SnapshotSent),
    #[prost(message, tag = "5")]
    Keep(KeepWorkload),
}

#[derive(Clone, PartialEq, Message)]
struct AddWorkload {
    #[prost(string, tag = "1")]
    uid: String,
    #[prost(message, optional, tag = "2")]
    workload: Option<Workload>,
}

#[derive(Clone, PartialEq, Message)]
struct Workload {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(string, tag = "3")]
    service_account: String,
}

#[derive(Clone, PartialEq, Message)]
struct DelWorkload {
    #[prost(string, tag = "2")]
    uid: String,
}

#[derive(Clone, PartialEq, Message)]
struct SnapshotSent {}

#[derive(Clone, PartialEq, Message)]
struct KeepWorkload {
    #[prost(string, tag = "1")]
    uid: String,
}

#[derive(Clone, PartialEq, Message)]
struct WorkloadResponse {
    #[prost(oneof = "ResponsePayload", tags = "1")]
    payload: Option<ResponsePayload>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum ResponsePayload {
    #[prost(message, tag = "1")]
    Ack(Ack),
}

#[derive(Clone, PartialEq, Message)]
struct Ack {
    #[prost(string, tag = "1")]
    error: String,
}

/// Why a message of ztunnel is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("a packet is longer than {MAX_MESSAGE} bytes or contains file descriptors")]
    TooLong,
    #[error("a message cannot be decoded")]
    Malformed(#[from] DecodeError),
    #[error("a response is no acknowledgement")]
    NoAcknowledgement,
    #[error("the version of the protocol is {0}, and only version {V1} is supported")]
    Version(i32),
}

/// Encodes a request to start the proxy of a pod, whose network namespace is sent with it.
pub(super) fn add(pod: &AmbientPod) -> Vec<u8> {
    let workload = Workload {
        name: pod.name.as_str().to_owned(),
        namespace: pod.namespace.as_str().to_owned(),
        service_account: pod.service_account.as_str().to_owned(),
    };
    encode(Payload::Add(AddWorkload { uid: pod.uid.as_str().to_owned(), workload: Some(workload) }))
}

/// Encodes a request to keep the proxy of a pod; valid only before [`snapshot_sent`].
pub(super) fn keep(uid: &PodUid) -> Vec<u8> {
    encode(Payload::Keep(KeepWorkload { uid: uid.as_str().to_owned() }))
}

/// Encodes a request to end the proxy of a pod.
pub(super) fn del(uid: &PodUid) -> Vec<u8> {
    encode(Payload::Del(DelWorkload { uid: uid.as_str().to_owned() }))
}

/// Encodes the end of the snapshot: ztunnel ends the proxies of all pods that the snapshot did not name.
pub(super) fn snapshot_sent() -> Vec<u8> {
    encode(Payload::SnapshotSent(SnapshotSent {}))
}

fn encode(payload: Payload) -> Vec<u8> {
    WorkloadRequest { payload: Some(payload) }.encode_to_vec()
}

/// Decodes the first packet of a connection.
///
/// # Errors
/// When it is malformed or of another version.
pub fn decode_hello(packet: &[u8]) -> Result<(), MessageError> {
    match Hello::decode(packet)?.version {
        V1 => Ok(()),
        version => Err(MessageError::Version(version)),
    }
}

/// Decodes a response: the acknowledgement, or ztunnel's reason against it.
///
/// # Errors
/// When it is malformed.
pub fn decode_response(packet: &[u8]) -> Result<Result<(), String>, MessageError> {
    match WorkloadResponse::decode(packet)?.payload {
        Some(ResponsePayload::Ack(Ack { error })) if error.is_empty() => Ok(Ok(())),
        Some(ResponsePayload::Ack(Ack { error })) => Ok(Err(error)),
        None => Err(MessageError::NoAcknowledgement),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, namespace: &str, name: &str, service_account: &str) -> AmbientPod {
        AmbientPod::parse(uid, namespace, name, service_account).unwrap()
    }

    #[test]
    fn requests_are_the_bytes_that_ztunnel_decodes() {
        let uid = PodUid::parse("u-1").unwrap();
        assert_eq!(snapshot_sent(), b"\x1a\x00");
        assert_eq!(keep(&uid), b"\x2a\x05\x0a\x03u-1");
        assert_eq!(del(&uid), b"\x12\x05\x12\x03u-1");
        let expected = b"\x0a\x14\x0a\x03u-1\x12\x0d\x0a\x01p\x12\x02ns\x1a\x04acct";
        assert_eq!(add(&pod("u-1", "ns", "p", "acct")), expected);
    }

    #[test]
    fn the_longest_names_fit_a_packet() {
        let label = "n".repeat(63);
        let subdomain = ["a".repeat(200), "b".repeat(52)].join(".");
        let longest = pod(&"u".repeat(PodUid::MAX_BYTES), &label, &subdomain, &subdomain);
        assert!(add(&longest).len() <= MAX_MESSAGE);
    }

    #[test]
    fn a_hello_has_version_1() {
        assert_eq!(decode_hello(b"\x08\x01"), Ok(()));
        assert_eq!(decode_hello(b"\x08\x01\x12\x01x"), Ok(()), "a later release may add fields");
        assert_eq!(decode_hello(b""), Err(MessageError::Version(0)));
        assert_eq!(decode_hello(b"\x08\x02"), Err(MessageError::Version(2)));
        assert!(matches!(decode_hello(b"\xff"), Err(MessageError::Malformed(_))));
    }

    #[test]
    fn a_response_is_an_acknowledgement_or_a_reason() {
        assert_eq!(decode_response(b"\x0a\x00"), Ok(Ok(())));
        assert_eq!(decode_response(b"\x0a\x04\x0a\x02no"), Ok(Err("no".to_owned())));
        assert_eq!(decode_response(b""), Err(MessageError::NoAcknowledgement));
        for malformed in [&b"\x0a"[..], b"\x0a\x02\x0a", b"\x0a\x03\x0a\x01\xff", b"hello"] {
            assert!(matches!(decode_response(malformed), Err(MessageError::Malformed(_))), "{malformed:x?}");
        }
    }
}
