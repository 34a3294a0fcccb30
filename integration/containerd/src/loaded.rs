//! What containerd has in memory of the CNI configuration, as it tells about itself; not what is in
//! the files.

use std::collections::HashMap;

use serde_json::Value;

use crate::Trouble;

/// What it has loaded, and how its last attempt to load went.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The conflist of the pods' network as it stood in the file, if there is one.
    pub conflist: Option<Value>,
    /// The plugins it runs for a pod, drop-ins included.
    pub plugins: Vec<String>,
    /// `OK`, or why it could not load.
    pub outcome: String,
}

impl Loaded {
    /// From the verbose part of CRI's answer to Status.
    pub(crate) fn told(info: &HashMap<String, String>) -> Result<Loaded, Trouble> {
        let member = |missing| info.get(missing).ok_or(Trouble::Incomplete { call: "Status", missing });
        let outcome = member("lastCNILoadStatus")?.clone();
        let network = pods_network(member("cniconfig")?);
        let conflist = network.as_ref().and_then(|it| serde_json::from_str(it.get("Source")?.as_str()?).ok());
        let plugins = network.as_ref().and_then(|it| it.get("Plugins")?.as_array());
        let kind = |plugin: &Value| Some(plugin.pointer("/Network/type")?.as_str()?.to_owned());
        Ok(Loaded { conflist, plugins: plugins.into_iter().flatten().filter_map(kind).collect(), outcome })
    }
}

/// The networks are loopback and the pods'; each has the text of its file.
fn pods_network(told: &str) -> Option<Value> {
    let told: Value = serde_json::from_str(told).ok()?;
    let networks = told.pointer("/Networks")?.as_array()?.iter().filter_map(|one| one.get("Config"));
    let mut of_pods = networks.filter(|one| one.get("Name").is_none_or(|name| name != "cni-loopback"));
    of_pods.next().cloned()
}
