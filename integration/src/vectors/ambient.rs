//! The flow vectors of ambient pods: every connection under each of 64 policies. `vectors/ambient/README.md` describes
//! the files.

use super::{Flow, RecordedConnection, RecordedPolicy, expect_count, read};
use crate::failure::Failure;
use gybe_installer::pod::policy_file::AnyPolicyFile;
use gybe_netfilter::model::policy::AmbientPolicy;

/// An ambient policy, and the outcome of every connection under it.
#[derive(Debug, Clone)]
pub struct AmbientVector {
    pub name: String,
    pub policy: AmbientPolicy,
    /// In the order in which they are made.
    pub flows: Vec<Flow>,
}

const CONNECTIONS: usize = 157;
const POLICIES: usize = 64;

/// Returns the recorded vectors.
///
/// # Errors
/// When a file cannot be read, is incomplete or contradicts another.
pub fn recorded() -> Result<Vec<AmbientVector>, Failure> {
    let connections: Vec<RecordedConnection> = read("ambient/connections.json")?;
    expect_count("connections", CONNECTIONS, connections.len())?;
    let policies: Vec<RecordedPolicy> = read("ambient/policies.json")?;
    expect_count("policies", POLICIES, policies.len())?;
    policies.iter().map(|policy| vector(policy, &connections)).collect()
}

fn vector(recorded: &RecordedPolicy, connections: &[RecordedConnection]) -> Result<AmbientVector, Failure> {
    let name = recorded.name.clone();
    let file = AnyPolicyFile::from_entries(&recorded.options).map_err(|why| Failure::because(&name, why))?;
    let AnyPolicyFile::Ambient(policy) = file else {
        return Err(Failure::new(format!("the options of {name} are not those of an ambient pod")));
    };
    Ok(AmbientVector { policy, flows: recorded.flows(connections)?, name })
}
