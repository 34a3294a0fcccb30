//! A node's directories as one look found them: a value for `plan` to judge, and nothing decided here.

pub mod cached;
mod files;
pub mod mounted;
pub mod name;
pub mod programs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use nix::errno::Errno;

use super::runtimes::Runtimes;

pub use cached::Cached;
pub use name::FileName;
pub use programs::{Hash, Hashes, SeenProgram};

/// What a file beside its original is called, so that no runtime loads it.
pub const ORIGINAL: &str = ".gybe-original";
/// A conf file is never longer, in bytes; real ones have a few thousand.
pub const LARGEST: u64 = 1 << 20;
/// What a dead run may have left in a directory. There is one writer at a time, so one name is enough.
pub const TEMPORARY: &str = ".gybe.tmp";
/// The file in the directory of plugins that is locked while a node is changed.
pub const LOCK: &str = ".gybe.lock";
/// Our file in a network's own directory; it sorts behind everybody else's.
pub const DROP_IN: &str = "zz-gybe-cni.conf";

/// The directories of a node, as this process sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// Where the runtime looks for networks.
    pub conf: PathBuf,
    /// Where the runtime looks for plugins.
    pub programs: PathBuf,
    /// Where libcni keeps the results of living sandboxes.
    pub results: PathBuf,
}

/// What a look is to include.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Interest {
    /// Conf files besides those a runtime loads: a pinned one may have any name.
    pub files: BTreeSet<FileName>,
    /// Programs to be known by their hash.
    pub programs: BTreeSet<FileName>,
    /// Whether living sandboxes matter: it takes a file for each.
    pub sandboxes: Sandboxes,
}

impl Interest {
    /// In programs of these names, and in the sandboxes that may ask for them.
    #[must_use]
    pub fn in_programs(names: impl IntoIterator<Item = &'static str>) -> Self {
        let programs = names.into_iter().filter_map(|name| FileName::new(name).ok()).collect();
        Self { files: BTreeSet::new(), programs, sandboxes: Sandboxes::Asked }
    }
}

/// Whether living sandboxes matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sandboxes {
    /// Nobody asks.
    #[default]
    Unasked,
    /// Something may have to stay for them.
    Asked,
}

/// All that `plan` knows of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The runtime's networks.
    pub conf: ConfDirectory,
    /// The runtime's plugins.
    pub programs: ProgramDirectory,
    /// What living sandboxes still name.
    pub cached: Cached,
    /// Who we are: files that only this user can write are files we wrote.
    pub us: u32,
    /// What is known about the runtimes. A look at the directories finds out nothing about them.
    pub runtimes: Runtimes,
    /// Programs of another build than the wanted one that answered when they were tried.
    pub answering: BTreeSet<FileName>,
}

/// Whether a directory is where its path says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is.
    There,
    /// Nothing of that name.
    Missing,
    /// We hold a directory that was deleted or renamed: the host has another of the same name, or none.
    /// Only mounting again, so a restart of the pod, brings it back.
    Deleted,
    /// It cannot be read.
    Refused(Errno),
}

/// The conf directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfDirectory {
    /// Whether it is there.
    pub standing: Standing,
    /// Files a runtime may load, originals we set aside, and what was asked for; in a runtime's order.
    pub files: BTreeMap<FileName, SeenFile>,
    /// `.conf` files of its sub-directories: the networks' own.
    pub networks: BTreeMap<FileName, BTreeMap<FileName, SeenFile>>,
    /// Sub-directories, and links that may lead to one, whose files are not known.
    pub unread_networks: BTreeMap<FileName, Unreadable>,
    /// Whether Multus reads this directory, and no runtime: its networks are called by their names.
    pub is_of_multus: bool,
    /// Whether a dead run left its temporary file.
    pub litter: bool,
}

impl ConfDirectory {
    fn not_there(standing: Standing) -> Self {
        Self {
            standing,
            files: BTreeMap::new(),
            networks: BTreeMap::new(),
            unread_networks: BTreeMap::new(),
            is_of_multus: false,
            litter: false,
        }
    }
}

/// The directory of plugins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramDirectory {
    /// Whether it is there.
    pub standing: Standing,
    /// The names of all that is there.
    pub names: BTreeSet<FileName>,
    /// The programs asked for, if there.
    pub files: BTreeMap<FileName, SeenProgram>,
    /// Whether a dead run left its temporary file.
    pub litter: bool,
    /// Whether the lock file is there.
    pub has_lock: bool,
}

impl ProgramDirectory {
    fn not_there(standing: Standing) -> Self {
        let (names, files) = (BTreeSet::new(), BTreeMap::new());
        Self { standing, names, files, litter: false, has_lock: false }
    }
}

/// A conf file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenFile {
    /// Its bytes, through a link if it is one.
    pub content: Result<Vec<u8>, Unreadable>,
    /// Who may do what with it.
    pub access: Access,
    /// File or link: a link is read, as a runtime does, and never written.
    pub kind: FileKind,
}

/// Mode and owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Access {
    /// Whether nobody but `owner` can have written it.
    #[must_use]
    pub fn is_only_of(self, owner: u32) -> bool {
        self.uid == owner && self.mode & 0o022 == 0
    }
}

/// What stands under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A file.
    Regular,
    /// A symbolic link, to whatever.
    Link,
}

/// Why a file has no content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Nobody writes conf files of that size.
    #[error("it is {0} bytes long")]
    TooLarge(u64),
    /// A directory, pipe, socket or device.
    #[error("it is not a file")]
    NotAFile,
    /// The kernel's reason; for a link without its end, `ENOENT`.
    #[error("it cannot be read: {}", .0.desc())]
    Refused(Errno),
}

impl Snapshot {
    /// Whether something could not be looked at for lack of file descriptors. That says nothing about the node.
    #[must_use]
    pub fn lacks_descriptors(&self) -> bool {
        let lacks = |why: &Errno| matches!(why, Errno::EMFILE | Errno::ENFILE);
        let is_refused = |why: &Unreadable| matches!(why, Unreadable::Refused(why) if lacks(why));
        let standing = [self.conf.standing, self.programs.standing];
        let conf = &self.conf;
        let files = conf.files.values().chain(conf.networks.values().flat_map(BTreeMap::values));
        let contents = files.filter_map(|file| file.content.as_ref().err());
        let programs = self.programs.files.values().filter_map(|program| program.hash.as_ref().err());
        standing.iter().any(|standing| matches!(standing, Standing::Refused(why) if lacks(why)))
            || contents.chain(conf.unread_networks.values()).chain(programs).any(is_refused)
    }
}

/// Looks once at every place. Whatever cannot be read is part of the answer, not an error.
#[must_use]
pub fn look(places: &Places, interest: &Interest, hashes: &mut Hashes) -> Snapshot {
    Snapshot {
        conf: files::conf_directory(&places.conf, &interest.files),
        programs: programs::look(&places.programs, &interest.programs, hashes),
        cached: match interest.sandboxes {
            Sandboxes::Unasked => Cached::Unknown,
            Sandboxes::Asked => cached::look(&places.results),
        },
        us: nix::unistd::geteuid().as_raw(),
        runtimes: Runtimes::default(),
        answering: BTreeSet::new(),
    }
}
