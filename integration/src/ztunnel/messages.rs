//! The messages of ZDS, read and written independently of the agent's (`zds.proto`, package `istio.workload.zds`).

use prost::{DecodeError, Message};

#[derive(Clone, PartialEq, Message)]
pub(super) struct WorkloadRequest {
    #[prost(oneof = "Payload", tags = "1, 2, 3, 5")]
    pub(super) payload: Option<Payload>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Payload {
    #[prost(message, tag = "1")]
    Add(AddWorkload),
    #[prost(message, tag = "2")]
    Del(DelWorkload),
    #[prost(message, tag = "3")]
    SnapshotSent(Empty),
    #[prost(message, tag = "5")]
    Keep(KeepWorkload),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AddWorkload {
    #[prost(string, tag = "1")]
    pub(super) uid: String,
    #[prost(message, optional, tag = "2")]
    pub(super) workload_info: Option<WorkloadInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WorkloadInfo {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(string, tag = "3")]
    service_account: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DelWorkload {
    #[prost(string, tag = "2")]
    pub(super) uid: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeepWorkload {
    #[prost(string, tag = "1")]
    pub(super) uid: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Empty {}

#[derive(Clone, PartialEq, Message)]
struct WorkloadResponse {
    #[prost(message, optional, tag = "1")]
    ack: Option<Ack>,
}

#[derive(Clone, PartialEq, Message)]
struct Ack {
    #[prost(string, tag = "1")]
    error: String,
}

pub(super) fn decode(packet: &[u8]) -> Result<WorkloadRequest, DecodeError> {
    WorkloadRequest::decode(packet)
}

pub(super) fn response(answer: &Result<(), String>) -> Vec<u8> {
    let error = answer.as_ref().err().cloned().unwrap_or_default();
    WorkloadResponse { ack: Some(Ack { error }) }.encode_to_vec()
}
