//! One pod for the plugin, which holds no client: a question line in, an answer line out, as plugin and
//! agent speak it.

use super::access::Cluster;
use super::asks;
use super::errands::{ErrandError, ask};
use super::pods;
use crate::error::chain;
use gybe_plugin::facts::wire::{self, FactsResponse, WireError};
use std::time::Instant;

/// Answers a question about a pod by asking the API server once.
///
/// # Errors
/// When it is no question. What goes wrong with a question is its answer.
pub fn pod_facts(cluster: &Cluster, question: &[u8], until: Instant) -> Result<String, WireError> {
    let pod = wire::decode_request(question)?.pod;
    let asked = pods::one(&pod).map_err(ErrandError::from);
    let answer = match asked.and_then(|request| ask(cluster, request, until)) {
        Ok(manifest) => asks::answer(Ok(manifest), ""),
        Err(ErrandError::Api(fault)) => asks::answer(Err(fault), ""),
        Err(ErrandError::Cluster(fault)) => FactsResponse::Error(chain(&fault)),
    };
    Ok(wire::encode_response(&answer))
}
