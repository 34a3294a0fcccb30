//! The runtime's choice of a conf file: the first by name, and the handling of broken files.

use std::borrow::Cow;

use super::{LoadError, LoadedNetwork, list_name, network};
use crate::host::observe::runtimes::{DropIns, Runtime};
use crate::host::observe::{ConfDirectory, FileFormat, FileName, Unreadable};

/// A file with which a runtime can start pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenNetwork {
    pub file: FileName,
    pub network: LoadedNetwork,
}

/// A file that no runtime can load.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file} cannot be loaded")]
pub struct BrokenFile {
    pub file: FileName,
    #[source]
    pub why: BrokenReason,
}

/// Why a runtime does not load a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokenReason {
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// Its network's own directory, or a file in it, cannot be read.
    #[error("{0} in its network's directory: {1}")]
    UnreadableDropIn(FileName, Unreadable),
    /// libcni refuses its content.
    #[error(transparent)]
    LoadError(#[from] LoadError),
}

/// Why no network is chosen: the runtime has none, or it is unknown which one it uses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoChoice {
    /// No file, or none that it can load.
    #[error("there is no conf file to load")]
    Nothing,
    /// A broken file stops the runtime.
    #[error("a broken file sorts before every other")]
    Stopped(#[source] BrokenFile),
    /// A file that cannot be read here sorts before every other. The runtime may be able to read it: it runs as
    /// the host's root, and sees a link's target.
    #[error("a file that cannot be read here sorts before every other")]
    Unknown(#[source] BrokenFile),
}

impl BrokenFile {
    /// Reports whether its content is unknown, so that a runtime may use it.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        matches!(self.why, BrokenReason::Unreadable(_) | BrokenReason::UnreadableDropIn(..))
    }
}

/// Returns the file that `runtime` uses. `drop_ins`: whether it reads the networks' own directories.
pub fn choose(conf: &ConfDirectory, runtime: Runtime, drop_ins: DropIns) -> Result<ChosenNetwork, NoChoice> {
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

/// Returns the file that CRI-O uses if its configuration names a network (`cni_default_network`): the first with a
/// network of this name. ocicni skips every other file.
pub fn choose_by_name(
    conf: &ConfDirectory,
    name: &str,
    drop_ins: DropIns,
) -> Result<ChosenNetwork, NoChoice> {
    for candidate in candidates(conf, drop_ins) {
        match candidate {
            Ok(choice) if choice.network_name() == name => return Ok(choice),
            Err(broken) if broken.is_unread() => return Err(NoChoice::Unknown(broken)),
            _ => {}
        }
    }
    Err(NoChoice::Nothing)
}

impl ChosenNetwork {
    /// The network's name; ocicni uses the file's name for a network without one.
    #[must_use]
    pub fn network_name(&self) -> Cow<'_, str> {
        match self.network.name.as_str() {
            "" => self.file.as_os_str().to_string_lossy(),
            name => name.into(),
        }
    }
}

/// Returns every file that a runtime reads, in the runtime's order, with the result of loading it.
pub fn candidates(
    conf: &ConfDirectory,
    drop_ins: DropIns,
) -> impl Iterator<Item = Result<ChosenNetwork, BrokenFile>> + '_ {
    let named = conf
        .files
        .iter()
        .filter_map(|(file, observed)| Some((file, observed, FileFormat::of(file.as_os_str())?)));
    named.map(move |(file, observed, format)| {
        let network = match &observed.content {
            Ok(bytes) if drop_ins == DropIns::Loaded => load(conf, format, bytes),
            Ok(bytes) => network(format, bytes, &[]).map_err(BrokenReason::from),
            Err(why) => Err(BrokenReason::Unreadable(why.clone())),
        };
        let file = file.clone();
        match network {
            Ok(network) => Ok(ChosenNetwork { file, network }),
            Err(why) => Err(BrokenFile { file, why }),
        }
    })
}

fn load(conf: &ConfDirectory, format: FileFormat, bytes: &[u8]) -> Result<LoadedNetwork, BrokenReason> {
    let own =
        list_name(bytes).filter(|_| format == FileFormat::List).and_then(|name| FileName::new(name).ok());
    let mut drop_ins: Vec<&[u8]> = Vec::new();
    let alone = network(format, bytes, &[]);
    if let Some(own) = own.filter(|_| !matches!(&alone, Ok(it) if it.drop_ins == DropIns::Ignored)) {
        if let Some(why) = conf.unread_networks.get(&own) {
            return Err(BrokenReason::UnreadableDropIn(own, why.clone()));
        }
        for (name, observed) in conf.networks.get(&own).into_iter().flatten() {
            // Only `.conf` files in a network's own directory are loaded.
            if name.ends_in(".conf") {
                let read = observed.content.as_ref();
                drop_ins.push(read.map_err(|why| BrokenReason::UnreadableDropIn(name.clone(), why.clone()))?);
            }
        }
    }
    if drop_ins.is_empty() { Ok(alone?) } else { Ok(network(format, bytes, &drop_ins)?) }
}
