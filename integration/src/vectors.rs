//! The flow vectors: 144 connections recorded under each of 70 policies, and further flows for rules that no
//! recorded flow needs. `vectors/rules/README.md` describes the files. `ambient` has those of ambient pods.

pub mod ambient;

use crate::failure::Failure;
use gybe_demo::testnet::outcome::{ConnectionOutcome, ParseOutcomeError};
use gybe_installer::pod::policy_file::PolicyFile;
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::policy::RedirectPolicy;
use gybe_netfilter::model::ruleset::Transport;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// A policy, and the outcome of every connection under it.
#[derive(Debug, Clone)]
pub struct Vector {
    pub name: String,
    pub policy: RedirectPolicy,
    /// In the order in which they are made.
    pub flows: Vec<Flow>,
}

/// A connection, and its outcomes.
#[derive(Debug, Clone)]
pub struct Flow {
    pub id: String,
    pub from: Location,
    pub transport: Transport,
    pub to: SocketAddr,
    /// The user and group of its socket.
    pub owner: Owner,
    /// The address that its socket is bound to before it connects.
    pub source: Option<IpAddr>,
    /// The port that its socket is bound to before it connects.
    pub source_port: Option<u16>,
    /// `SO_MARK` of its socket, which is then transparent.
    pub mark: Option<u32>,
    pub without_rules: ConnectionOutcome,
    /// Where Istio's backends differ, what its iptables rules do.
    pub with_rules: ConnectionOutcome,
}

/// A namespace of the recorded network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Location {
    /// The redirected pod.
    Pod,
    /// The network outside, behind the pod's `eth0`.
    Peer,
    /// A virtual machine behind its `eth1`.
    Vm,
    /// A second network behind its `net1`.
    Sec,
}

/// Returns the recorded vectors: 30 policies chosen by hand, then 40 drawn at random.
///
/// # Errors
/// When a file cannot be read, is incomplete or contradicts another.
pub fn recorded() -> Result<Vec<Vector>, Failure> {
    let connections: Vec<RecordedConnection> = read("rules/connections.json")?;
    expect_count("connections", CONNECTIONS, connections.len())?;
    written_policies()?.iter().map(|policy| policy.vector(&connections)).collect()
}

/// Returns the recorded vectors, each with the further flows for its policy, and then the further policies.
///
/// # Errors
/// When a file cannot be read, is incomplete or contradicts another.
pub fn all() -> Result<Vec<Vector>, Failure> {
    let mut vectors = recorded()?;
    let further: Vec<Further> = read("rules/further.json")?;
    for group in &further {
        match group {
            Further::Flows { policies, flows } => {
                for vector in vectors.iter_mut().filter(|vector| policies.contains(&vector.name)) {
                    vector.flows.extend(parse_flows(&vector.name, flows)?);
                }
            }
            Further::Policy { name, options, flows } => {
                let (policy, flows) = (parse_policy(name, options)?, parse_flows(name, flows)?);
                vectors.push(Vector { name: name.clone(), policy, flows });
            }
        }
    }
    Ok(vectors)
}

/// Returns the recorded policies as policy files, by name.
///
/// # Errors
/// When a file cannot be read or is incomplete.
pub fn policy_files() -> Result<BTreeMap<String, String>, Failure> {
    let file = |policy: RecordedPolicy| (policy.name, Value::Object(policy.options).to_string());
    Ok(written_policies()?.into_iter().map(file).collect())
}

const CONNECTIONS: usize = 144;
const POLICIES: usize = 70;

/// Relative to the package's directory, where cargo runs tests: `as-user.sh` moves the whole checkout.
const DIRECTORY: &str = "vectors";

/// What all recordings have in common; the file also describes the network, for readers.
#[derive(Deserialize)]
struct Common {
    options: Map<String, Value>,
}

#[derive(Deserialize)]
struct RecordedPolicy {
    name: String,
    /// In the file only those that differ from the common ones.
    options: Map<String, Value>,
    /// By flow: those that differ from the connection's usual outcome.
    outcomes: BTreeMap<String, RecordedOutcome>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RecordedOutcome {
    Agreed(String),
    /// Istio's nft rules had another outcome, which is kept beside it.
    IptablesOnly {
        expect: String,
    },
}

#[derive(Deserialize)]
struct RecordedConnection {
    #[serde(flatten)]
    connection: Connection,
    /// The outcome under most policies.
    expect: String,
}

#[derive(Deserialize)]
struct Connection {
    id: String,
    from: Location,
    #[serde(deserialize_with = "transport")]
    proto: Transport,
    dst: IpAddr,
    port: u16,
    uid: u32,
    gid: u32,
    src: Option<IpAddr>,
    sport: Option<u16>,
    mark: Option<u32>,
    without_rules: String,
}

fn transport<'de, D: Deserializer<'de>>(from: D) -> Result<Transport, D::Error> {
    let name = String::deserialize(from)?;
    let named = Transport::ALL.into_iter().find(|transport| transport.name() == name);
    named.ok_or_else(|| D::Error::custom(format!("{name:?} is no transport protocol")))
}

/// Flows that are not recorded: under recorded policies, or under one of their own.
#[derive(Deserialize)]
#[serde(untagged)]
enum Further {
    Flows { policies: Vec<String>, flows: Vec<RecordedConnection> },
    Policy { name: String, options: Map<String, Value>, flows: Vec<RecordedConnection> },
}

impl RecordedPolicy {
    fn vector(&self, connections: &[RecordedConnection]) -> Result<Vector, Failure> {
        let (name, flows) = (self.name.clone(), self.flows(connections)?);
        Ok(Vector { policy: parse_policy(&name, &self.options)?, name, flows })
    }

    fn flows(&self, connections: &[RecordedConnection]) -> Result<Vec<Flow>, Failure> {
        let is_unknown = |id: &&String| !connections.iter().any(|row| row.connection.id == **id);
        if let Some(id) = self.outcomes.keys().find(is_unknown) {
            let policy = &self.name;
            let unknown = format!("policy {policy} has an outcome for flow {id}, which is not recorded");
            return Err(Failure::new(unknown));
        }
        let flow = |row: &RecordedConnection| {
            let outcome = match self.outcomes.get(&row.connection.id) {
                Some(RecordedOutcome::Agreed(expect) | RecordedOutcome::IptablesOnly { expect }) => expect,
                None => &row.expect,
            };
            row.connection.flow(&self.name, outcome)
        };
        connections.iter().map(flow).collect()
    }
}

impl Connection {
    fn flow(&self, policy: &str, with_rules: &str) -> Result<Flow, Failure> {
        let outcome = |text: &str| {
            let what = || format!("policy {policy}: outcome of flow {}", self.id);
            text.parse().map_err(|why: ParseOutcomeError| Failure::because(what(), why))
        };
        Ok(Flow {
            id: self.id.clone(),
            from: self.from,
            transport: self.proto,
            to: SocketAddr::new(self.dst, self.port),
            owner: Owner { uid: self.uid, gid: self.gid },
            source: self.src,
            source_port: self.sport,
            mark: self.mark,
            without_rules: outcome(&self.without_rules)?,
            with_rules: outcome(with_rules)?,
        })
    }
}

/// The recorded policies with all their options.
fn written_policies() -> Result<Vec<RecordedPolicy>, Failure> {
    let common: Common = read("rules/common.json")?;
    let (mut policies, random): (Vec<RecordedPolicy>, Vec<RecordedPolicy>) =
        (read("rules/chosen.json")?, read("rules/random.json")?);
    policies.extend(random);
    expect_count("policies", POLICIES, policies.len())?;
    for policy in &mut policies {
        let own = std::mem::replace(&mut policy.options, common.options.clone());
        policy.options.extend(own);
    }
    Ok(policies)
}

/// A test that loops over an incomplete list would pass for the wrong reason.
fn expect_count(what: &str, expected: usize, found: usize) -> Result<(), Failure> {
    let incomplete = || Failure::new(format!("{found} {what} are recorded, not {expected}"));
    if found == expected { Ok(()) } else { Err(incomplete()) }
}

fn parse_policy(name: &str, options: &Map<String, Value>) -> Result<RedirectPolicy, Failure> {
    let file = PolicyFile::from_entries(options).map_err(|why| Failure::because(name, why))?;
    file.policy(&[]).map_err(|why| Failure::because(name, why))
}

fn parse_flows(policy: &str, flows: &[RecordedConnection]) -> Result<Vec<Flow>, Failure> {
    flows.iter().map(|row| row.connection.flow(policy, &row.expect)).collect()
}

fn read<T: for<'a> Deserialize<'a>>(name: &str) -> Result<T, Failure> {
    let path = Path::new(DIRECTORY).join(name);
    let text = fs::read_to_string(&path).map_err(|why| Failure::because(path.display(), why))?;
    serde_json::from_str(&text).map_err(|why| Failure::because(path.display(), why))
}
