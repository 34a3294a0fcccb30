//! The recorded flows: policies, and what became of 144 connections under each. Only reading.

mod written;

use gybe_installer::pod::families::NoAddress;
use gybe_installer::pod::policy_file::{PolicyFile, PolicyFileError};
use gybe_installer::testnet::fate::{Fate, FateError};
use gybe_netfilter::policy::RedirectPolicy;
use gybe_netfilter::trace::{Owner, Transport};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::{fs, io};
use written::{WrittenFlow, WrittenFurther, WrittenVector};

/// One policy and what became of every connection under it.
#[derive(Debug, Clone)]
pub struct Vector {
    /// Its name, and its file's.
    pub name: String,
    /// The policy.
    pub policy: RedirectPolicy,
    /// The connections, in the order they were made.
    pub flows: Vec<Flow>,
}

/// One connection.
#[derive(Debug, Clone)]
pub struct Flow {
    /// Its name.
    pub id: String,
    /// Where it starts.
    pub from: Place,
    /// TCP or UDP.
    pub transport: Transport,
    /// Where it is meant to go.
    pub to: SocketAddr,
    /// Whose socket makes it.
    pub owner: Owner,
    /// The address it is bound to first.
    pub source: Option<IpAddr>,
    /// The port it is bound to first.
    pub source_port: Option<u16>,
    /// The mark of its transparent socket.
    pub mark: Option<u32>,
    /// What becomes of it with no rules.
    pub without_rules: Fate,
    /// What becomes of it under the policy. Where Istio's backends differ, iptables is the law.
    pub with_rules: Fate,
}

/// The namespaces of the recorded network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// The redirected pod.
    Pod,
    /// The world, behind the pod's `eth0`.
    Peer,
    /// A virtual machine, behind its `eth1`.
    Vm,
    /// A second network, behind its `net1`.
    Sec,
}

/// Why a vector cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum VectorError {
    /// A file or the directory.
    #[error("cannot read {path}")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Some are missing, or there are some that nobody knows: a loop over them would say nothing.
    #[error("{directory} has {found} flow vectors and should have {RECORDED}")]
    Count {
        /// Where.
        directory: PathBuf,
        /// How many there are.
        found: usize,
    },
    /// Not the JSON it should be.
    #[error("{path} is not a flow vector")]
    NotAVector {
        /// Which.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A fate nobody can read.
    #[error("flow {id} of {path}")]
    Fate {
        /// In which file.
        path: PathBuf,
        /// Of which flow.
        id: String,
        /// What is wrong with it.
        source: FateError,
    },
    /// Options that are no policy.
    #[error("the options of {path} are no policy")]
    Options {
        /// In which file.
        path: PathBuf,
        /// What is wrong with them.
        source: PolicyFileError,
    },
    /// Options that leave the families open.
    #[error("the options of {path} do not say whether IPv6 is on")]
    Families {
        /// In which file.
        path: PathBuf,
        /// What is missing.
        source: NoAddress,
    },
}

/// All recorded vectors, by name.
///
/// # Errors
/// When one of them cannot be read.
pub fn recorded() -> Result<Vec<Vector>, VectorError> {
    let directory = PathBuf::from(DIRECTORY).join("flows");
    let unreadable = |source| VectorError::Unreadable { path: directory.clone(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(&directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with(".json") && !name.starts_with('_') {
            files.push(path);
        }
    }
    files.sort();
    if files.len() != RECORDED {
        return Err(VectorError::Count { directory, found: files.len() });
    }
    files.iter().map(|path| read(path)).collect()
}

/// All recorded vectors, each with the further flows there are for its policy, and behind them the
/// policies of our own.
///
/// # Errors
/// When one of them cannot be read.
pub fn all() -> Result<Vec<Vector>, VectorError> {
    let path = PathBuf::from(DIRECTORY).join("further.json");
    let further: Vec<WrittenFurther> = json(&path)?;
    let mut vectors = recorded()?;
    for group in &further {
        match group {
            WrittenFurther::Flows { policies, flows } => {
                let more = parse(&path, flows)?;
                for vector in vectors.iter_mut().filter(|vector| policies.contains(&vector.name)) {
                    vector.flows.extend(more.iter().cloned());
                }
            }
            WrittenFurther::Policy(own) => vectors.push(vector(&path, own)?),
        }
    }
    Ok(vectors)
}

/// What becomes of every flow when there are no rules.
///
/// # Errors
/// When the file cannot be read.
pub fn without_rules() -> Result<BTreeMap<String, Fate>, VectorError> {
    let path = Path::new(DIRECTORY).join("flows/_no_rules.json");
    let fates: BTreeMap<String, String> = json(&path)?;
    let fate = |id: String, text: String| match text.parse() {
        Ok(fate) => Ok((id, fate)),
        Err(source) => Err(VectorError::Fate { path: path.clone(), id, source }),
    };
    fates.into_iter().map(|(id, text)| fate(id, text)).collect()
}

/// 30 policies chosen by hand and 40 drawn at random.
const RECORDED: usize = 70;

/// Seen from the package's directory, where cargo runs tests: `as-user.sh` moves the whole checkout.
const DIRECTORY: &str = "vectors/rules";

fn read(path: &Path) -> Result<Vector, VectorError> {
    vector(path, &json(path)?)
}

fn vector(path: &Path, written: &WrittenVector) -> Result<Vector, VectorError> {
    let path = path.to_owned();
    let file = PolicyFile::from_entries(&written.options)
        .map_err(|source| VectorError::Options { path: path.clone(), source })?;
    let policy = file.policy(&[]).map_err(|source| VectorError::Families { path: path.clone(), source })?;
    let flows = parse(&path, &written.flows)?;
    Ok(Vector { name: written.name.clone(), policy, flows })
}

fn parse(path: &Path, flows: &[WrittenFlow]) -> Result<Vec<Flow>, VectorError> {
    let flow = |flow: &WrittenFlow| {
        let fault = |source| VectorError::Fate { path: path.to_owned(), id: flow.id.clone(), source };
        flow.parse().map_err(fault)
    };
    flows.iter().map(flow).collect()
}

fn json<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, VectorError> {
    let path = path.to_owned();
    let text =
        fs::read_to_string(&path).map_err(|source| VectorError::Unreadable { path: path.clone(), source })?;
    serde_json::from_str(&text).map_err(|source| VectorError::NotAVector { path, source })
}
