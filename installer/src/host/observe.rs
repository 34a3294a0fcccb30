//! The observed state: a node's directories as one observation found them. It is a value for `plan` and
//! `judge`; nothing is decided here.

mod directories;
pub mod file_name;
pub mod result_cache;
pub mod runtimes;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::sys::stat::FileStat;

use runtimes::Runtimes;

pub use directories::{Hash, HashCache, MountRoots, ProgramFile};
pub(crate) use directories::{conf_directory, is_executable, list};
pub use file_name::{FileFormat, FileName};
pub use result_cache::CachedPlugins;
pub(crate) use result_cache::cached_plugins;

/// The ending of a file that was set aside. No runtime loads a file with this ending.
pub const ORIGINAL: &str = ".gybe-original";
/// The largest conf file that is read, in bytes. Real ones have a few thousand.
pub const LARGEST: u64 = 1 << 20;
/// The ending of temporary files, after a part that is unique to their process. A killed process may leave some.
pub const TEMPORARY: &str = ".gybe.tmp";
/// The lock file in the program directory: it is held while a node is changed.
pub const LOCK: &str = ".gybe.lock";
/// Our file in a network's own directory. It sorts after all common names, because libcni runs drop-ins in the
/// order of their names.
pub const DROP_IN: &str = "zz-gybe-cni.conf";

/// The directories of a node, as paths of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeDirectories {
    /// The runtime's conf directory.
    pub conf: PathBuf,
    /// The runtime's plugin directory.
    pub programs: PathBuf,
    /// The directory in which libcni caches the results of existing sandboxes.
    pub results: PathBuf,
}

/// One of the two directories of a node that Gybe writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Directory {
    Conf,
    Programs,
}

impl Directory {
    pub const BOTH: [Self; 2] = [Self::Conf, Self::Programs];
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Conf => "conf",
            Self::Programs => "program",
        })
    }
}

/// One value for each of the two directories.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PerDirectory<T> {
    pub conf: T,
    pub programs: T,
}

impl<T> PerDirectory<T> {
    pub fn of(&self, directory: Directory) -> &T {
        match directory {
            Directory::Conf => &self.conf,
            Directory::Programs => &self.programs,
        }
    }

    pub fn of_mut(&mut self, directory: Directory) -> &mut T {
        match directory {
            Directory::Conf => &mut self.conf,
            Directory::Programs => &mut self.programs,
        }
    }

    /// Calls `make` for each directory.
    pub fn made(mut make: impl FnMut(Directory) -> T) -> Self {
        Self { conf: make(Directory::Conf), programs: make(Directory::Programs) }
    }
}

/// What an observation includes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObserveScope {
    /// Conf files besides those that a runtime loads: a pinned one may have any name.
    pub files: BTreeSet<FileName>,
    /// Programs whose hash is needed.
    pub programs: BTreeSet<FileName>,
    /// Whether libcni's cache is read: that opens a file for each sandbox.
    pub sandboxes: SandboxLookup,
}

impl ObserveScope {
    /// Includes the programs of these names, and libcni's cache.
    #[must_use]
    pub fn in_programs(names: impl IntoIterator<Item = &'static str>) -> Self {
        let programs = names.into_iter().filter_map(|name| FileName::new(name).ok()).collect();
        Self { files: BTreeSet::new(), programs, sandboxes: SandboxLookup::Read }
    }
}

/// Whether libcni's cache of existing sandboxes is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SandboxLookup {
    #[default]
    Skip,
    /// A program may have to stay for them.
    Read,
}

/// Everything that `plan` knows of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedState {
    pub conf: ConfDirectory,
    pub programs: ProgramDirectory,
    /// The plugins that existing sandboxes were made with.
    pub cached: CachedPlugins,
    /// The effective uid of this process: files that only this user can write are files that Gybe wrote.
    pub us: u32,
    /// What is known about the runtimes. Observing the directories does not find this out: the caller sets it.
    pub runtimes: Runtimes,
    /// Programs of another build than the desired one that answered when they were tried.
    pub answering: BTreeSet<FileName>,
}

/// Whether a directory is at its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectoryState {
    Present,
    Missing,
    /// This process holds a directory that was deleted or renamed: the host has another of the same name, or
    /// none. Only a new mount, so a restart of the pod, shows the new one.
    Deleted,
    Unreadable(Errno),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfDirectory {
    pub state: DirectoryState,
    /// The files that a runtime may load, originals that were set aside, and the files in the scope, in the order in
    /// which a runtime sorts them.
    pub files: BTreeMap<FileName, ConfFile>,
    /// The `.conf` files of its sub-directories, which are the networks' own.
    pub networks: BTreeMap<FileName, BTreeMap<FileName, ConfFile>>,
    /// Sub-directories, and links that may lead to one, whose files could not be read.
    pub unread_networks: BTreeMap<FileName, Unreadable>,
    /// Whether Multus, and no runtime, reads this directory: Multus selects networks by name.
    pub is_of_multus: bool,
    pub has_temporary: bool,
}

impl ConfDirectory {
    fn not_there(state: DirectoryState) -> Self {
        Self {
            state,
            files: BTreeMap::new(),
            networks: BTreeMap::new(),
            unread_networks: BTreeMap::new(),
            is_of_multus: false,
            has_temporary: false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramDirectory {
    pub state: DirectoryState,
    /// The files and links with which a runtime may start a program.
    pub names: BTreeMap<FileName, NamedFile>,
    /// Whether its mount forbids to run programs.
    pub is_noexec: bool,
    /// The programs in the scope that exist.
    pub files: BTreeMap<FileName, ProgramFile>,
    pub has_temporary: bool,
    pub has_lock: bool,
}

impl ProgramDirectory {
    fn not_there(state: DirectoryState) -> Self {
        let (names, files) = (BTreeMap::new(), BTreeMap::new());
        Self { state, names, is_noexec: false, files, has_temporary: false, has_lock: false }
    }
}

/// What a name in the program directory leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedFile {
    Executable,
    /// libcni uses it nevertheless, and the kernel refuses to run it.
    NotExecutable,
    /// A link whose target is not visible here.
    Elsewhere,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfFile {
    /// Its bytes; those of the target if it is a link.
    pub content: Result<Vec<u8>, Unreadable>,
    pub access: Access,
    /// A link is read, as a runtime does, and never written.
    pub kind: FileKind,
}

/// Permission bits and owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Access {
    /// Reports whether every user may run it: a runtime's plugins run as root, `gybe` also as an operator.
    #[must_use]
    pub fn is_executable_for_all(self) -> bool {
        self.mode & 0o111 == 0o111
    }

    /// Reports whether only `owner` can have written it.
    #[must_use]
    pub fn is_only_of(self, owner: u32) -> bool {
        self.uid == owner && self.mode & 0o022 == 0
    }
}

/// The identity of a file and of its last change: while both are equal, the file does not have to be read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileIdentity {
    /// Device and inode.
    file: (u64, u64),
    /// Every write moves the change time, and the writer cannot set it back.
    changed: (i64, i64),
}

impl FileIdentity {
    pub(crate) fn of(there: &Metadata) -> Self {
        Self { file: (there.dev(), there.ino()), changed: (there.ctime(), there.ctime_nsec()) }
    }

    pub(crate) fn of_stat(stat: &FileStat) -> Self {
        Self { file: (stat.st_dev, stat.st_ino), changed: (stat.st_ctime, stat.st_ctime_nsec) }
    }
}

/// The kind of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    Regular,
    Link,
}

/// Why the content of a file is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Longer than `LARGEST`; the length in bytes.
    #[error("it is {0} bytes long")]
    TooLarge(u64),
    /// A directory, pipe, socket or device.
    #[error("it is not a file")]
    NotAFile,
    /// The kernel's reason. For a link without a target: `ENOENT`.
    #[error("it cannot be read: {}", .0.desc())]
    System(Errno),
}

impl ObservedState {
    /// Reports whether something could not be observed for lack of file descriptors, so that no plan can be made from
    /// this state.
    #[must_use]
    pub fn lacks_descriptors(&self) -> bool {
        let lacks = |why: &Errno| matches!(why, Errno::EMFILE | Errno::ENFILE);
        let is_refused = |why: &Unreadable| matches!(why, Unreadable::System(why) if lacks(why));
        let state = [self.conf.state, self.programs.state];
        let conf = &self.conf;
        let files = conf.files.values().chain(conf.networks.values().flat_map(BTreeMap::values));
        let contents = files.filter_map(|file| file.content.as_ref().err());
        let programs = self.programs.files.values().filter_map(|program| program.hash.as_ref().err());
        state.iter().any(|state| matches!(state, DirectoryState::Unreadable(why) if lacks(why)))
            || contents.chain(conf.unread_networks.values()).chain(programs).any(is_refused)
    }
}

/// Reports whether this is the name of a temporary file, of whichever process.
pub(crate) fn is_temporary(name: &FileName) -> bool {
    name.as_os_str().as_bytes().ends_with(TEMPORARY.as_bytes())
}

/// Observes each directory once. What cannot be read is part of the result, not an error.
#[must_use]
pub fn observe(
    directories: &NodeDirectories,
    interest: &ObserveScope,
    hashes: &mut HashCache,
) -> ObservedState {
    ObservedState {
        conf: conf_directory(&directories.conf, &interest.files),
        programs: directories::program_directory(&directories.programs, &interest.programs, hashes),
        cached: match interest.sandboxes {
            SandboxLookup::Skip => CachedPlugins::Unknown,
            SandboxLookup::Read => cached_plugins(&directories.results),
        },
        us: nix::unistd::geteuid().as_raw(),
        runtimes: Runtimes::default(),
        answering: BTreeSet::new(),
    }
}
