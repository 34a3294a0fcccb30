//! What containerd has in memory of the CNI configuration, as it tells about itself; not what is in
//! the files.

use std::collections::HashMap;

use serde_json::Value;

use crate::{Trouble, chain};

/// What it has loaded, and how its last attempt to load went.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The conflist of the pods' network as it stood in the file, if there is one.
    pub conflist: Option<Value>,
    /// `OK`, or why it could not load.
    pub outcome: String,
}

impl Loaded {
    /// From the verbose part of CRI's answer to Status.
    pub(crate) fn told(info: &HashMap<String, String>) -> Result<Loaded, Trouble> {
        let member = |missing| info.get(missing).ok_or(Trouble::Incomplete { call: "Status", missing });
        let outcome = member("lastCNILoadStatus")?.clone();
        Ok(Loaded { conflist: pods_network(member("cniconfig")?), outcome })
    }
}

/// The networks are loopback and the pods'; each has the text of its file.
fn pods_network(told: &str) -> Option<Value> {
    let told: Value = serde_json::from_str(told).ok()?;
    let mut networks = told.pointer("/Networks")?.as_array()?.iter().filter_map(|one| one.get("Config"));
    let ours = networks.find(|one| one.get("Name").is_some_and(|name| name == chain::NETWORK))?;
    serde_json::from_str(ours.get("Source")?.as_str()?).ok()
}
