//! Which file of a conf directory a runtime takes: the first by name, and what it does about a broken one.

use super::{DropIns, Form, Network, Unloadable, list_name, network};
use crate::host::install::seen::{ConfDirectory, FileName, Unreadable};

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
    /// Its network's own directory, or a file in it, cannot be read.
    #[error("{0} in the directory of its network: {1}")]
    UnreadableDropIn(FileName, Unreadable),
    /// It can be read, and says nothing useful.
    #[error(transparent)]
    Unloadable(#[from] Unloadable),
}

/// A runtime has no network, or it is not known which.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoChoice {
    /// No file, or none that is any good.
    #[error("there is no conf file to load")]
    Nothing,
    /// A broken file stops it.
    #[error("a broken file stands before every other")]
    Stopped(#[source] Broken),
    /// A file stands before every other that cannot be read here. The runtime may well read it: it runs as
    /// the host's root, and sees what a link leads to.
    #[error("a file that cannot be read here stands before every other")]
    Unknown(#[source] Broken),
}

impl Broken {
    /// Whether nothing is known about its content, so that a runtime may take it.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        matches!(self.why, Why::Unreadable(_) | Why::UnreadableDropIn(..))
    }
}

/// What `runtime` makes of the directory; `drop_ins`: whether it reads the networks' own directories.
pub fn choose(conf: &ConfDirectory, runtime: Runtime, drop_ins: DropIns) -> Result<Choice, NoChoice> {
    for candidate in candidates(conf, drop_ins) {
        match (candidate, runtime) {
            (Ok(choice), _) => return Ok(choice),
            (Err(broken), _) if broken.is_unread() => return Err(NoChoice::Unknown(broken)),
            (Err(broken), Runtime::Containerd) => return Err(NoChoice::Stopped(broken)),
            (Err(_), Runtime::CriO) => {}
        }
    }
    Err(NoChoice::Nothing)
}

/// Every file a runtime would look at, in its order, and what it would make of it.
pub fn candidates(
    conf: &ConfDirectory,
    drop_ins: DropIns,
) -> impl Iterator<Item = Result<Choice, Broken>> + '_ {
    let named = conf.files.iter().filter_map(|(file, seen)| Some((file, seen, Form::of(file.as_os_str())?)));
    named.map(move |(file, seen, form)| {
        let network = match &seen.content {
            Ok(bytes) if drop_ins == DropIns::Loaded => load(conf, form, bytes),
            Ok(bytes) => network(form, bytes, &[]).map_err(Why::from),
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
    let own = list_name(bytes).filter(|_| form == Form::List).and_then(|name| FileName::new(name).ok());
    let mut drop_ins: Vec<&[u8]> = Vec::new();
    let alone = network(form, bytes, &[]);
    if let Some(own) = own.filter(|_| !matches!(&alone, Ok(it) if it.drop_ins == DropIns::Ignored)) {
        if let Some(why) = conf.unread_networks.get(&own) {
            return Err(Why::UnreadableDropIn(own, why.clone()));
        }
        for (name, seen) in conf.networks.get(&own).into_iter().flatten() {
            // Of the network's own directory only `.conf` counts.
            if name.ends_in(".conf") {
                let read = seen.content.as_ref();
                drop_ins.push(read.map_err(|why| Why::UnreadableDropIn(name.clone(), why.clone()))?);
            }
        }
    }
    if drop_ins.is_empty() { Ok(alone?) } else { Ok(network(form, bytes, &drop_ins)?) }
}
