//! Which file of a conf directory a runtime takes: the first by name, and what it does about a broken one.

use std::ffi::OsStr;

use super::{DropIns, Form, Network, Unloadable, list_name, network};
use crate::install::seen::{ConfDirectory, FileName, Unreadable};

/// A container runtime, as far as it chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// One broken file before the good one, and nothing is loaded.
    Containerd,
    /// Broken files are passed over.
    CriO,
}

/// A file a runtime can make pods with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Its name in the directory.
    pub file: FileName,
    /// What it says.
    pub network: Network,
}

/// A file no runtime can make pods with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file} cannot be loaded")]
pub struct Broken {
    /// Its name in the directory.
    pub file: FileName,
    /// Why.
    #[source]
    pub why: Why,
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// It can be read, and says nothing useful.
    #[error(transparent)]
    Unloadable(#[from] Unloadable),
}

/// A runtime has no network, and its node is not ready.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoChoice {
    /// No file, or none that is any good.
    #[error("there is no conf file to load")]
    Nothing,
    /// A broken file stops it.
    #[error("a broken file stands before every other")]
    Stopped(#[source] Broken),
}

/// What `runtime` makes of the directory.
pub fn choose(conf: &ConfDirectory, runtime: Runtime) -> Result<Choice, NoChoice> {
    for candidate in candidates(conf) {
        match (candidate, runtime) {
            (Ok(choice), _) => return Ok(choice),
            (Err(broken), Runtime::Containerd) => return Err(NoChoice::Stopped(broken)),
            (Err(_), Runtime::CriO) => {}
        }
    }
    Err(NoChoice::Nothing)
}

/// Every file a runtime would look at, in its order, and what it would make of it.
pub fn candidates(conf: &ConfDirectory) -> impl Iterator<Item = Result<Choice, Broken>> + '_ {
    let named = conf.files.iter().filter_map(|(file, seen)| Some((file, seen, Form::of(file.as_os_str())?)));
    named.map(|(file, seen, form)| {
        let network = match &seen.content {
            Ok(bytes) => load(conf, form, bytes),
            Err(why) => Err(Why::Unreadable(why.clone())),
        };
        let file = file.clone();
        match network {
            Ok(network) => Ok(Choice { file, network }),
            Err(why) => Err(Broken { file, why }),
        }
    })
}

fn load(conf: &ConfDirectory, form: Form, bytes: &[u8]) -> Result<Network, Why> {
    let own =
        list_name(bytes).filter(|_| form == Form::List).and_then(|name| conf.networks.get(OsStr::new(&name)));
    let mut drop_ins: Vec<&[u8]> = Vec::new();
    let alone = network(form, bytes, &[]);
    if !matches!(&alone, Ok(network) if network.drop_ins == DropIns::Ignored) {
        for (name, seen) in own.into_iter().flatten() {
            // Of the network's own directory only `.conf` counts.
            if name.ends_in(".conf") {
                drop_ins.push(seen.content.as_ref().map_err(Clone::clone)?);
            }
        }
    }
    if drop_ins.is_empty() { Ok(alone?) } else { Ok(network(form, bytes, &drop_ins)?) }
}
