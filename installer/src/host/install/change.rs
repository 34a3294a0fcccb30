//! One step towards what is wanted, and what stands in the way: values, in the words of an operator.

use std::fmt;
use std::path::PathBuf;

use nix::errno::Errno;

use super::conflist::ConflistError;
use super::directory::Directory;
use super::loads::choice::{Broken, Why};
use super::seen::{Access, DROP_IN, FileName, Unreadable};
use super::wanted::Program;

/// One step. Each leaves a directory that loads, and none is taken if somebody else was faster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Put a program there.
    Place {
        /// Which, from where.
        program: Program,
    },
    /// Take a program away.
    Unplace(FileName),
    /// Write a conf file.
    Write {
        /// Which.
        file: FileName,
        /// What it is to hold.
        bytes: Vec<u8>,
        /// Who may read it.
        access: NewAccess,
        /// What it holds now; nothing if it is not there.
        instead_of: Option<Vec<u8>>,
    },
    /// Give a conf file another name.
    Move {
        /// From.
        from: FileName,
        /// To; what is there goes.
        to: FileName,
        /// What it holds now.
        bytes: Vec<u8>,
    },
    /// Take a conf file away.
    Remove {
        /// Which.
        file: FileName,
        /// What it holds now.
        bytes: Vec<u8>,
    },
    /// Put our file into a network's own directory.
    DropIn {
        /// Which network.
        network: FileName,
        /// What it is to hold.
        bytes: Vec<u8>,
        /// Its permission bits.
        mode: u32,
    },
    /// Take it out.
    TakeOut {
        /// Of which network.
        network: FileName,
    },
    /// Remove what a dead run left.
    Sweep(Directory),
    /// Remove the lock file, with nothing of ours left in the directory of plugins.
    RemoveLock,
}

/// Mode, owners and extended attributes of a file to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewAccess {
    /// As this file's, which it replaces or is made of.
    Like(FileName, Access),
    /// Ours, with these permission bits.
    Ours(u32),
}

impl Change {
    /// Where it takes place.
    #[must_use]
    pub fn directory(&self) -> Directory {
        match self {
            Self::Place { .. } | Self::Unplace(_) | Self::RemoveLock => Directory::Programs,
            Self::Sweep(directory) => *directory,
            _ => Directory::Conf,
        }
    }

    /// Whether it puts something in place, which somebody may have taken away.
    #[must_use]
    pub fn puts(&self) -> bool {
        matches!(self, Self::Place { .. } | Self::Write { .. } | Self::Move { .. } | Self::DropIn { .. })
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Place { program } => write!(f, "place program {}", program.name),
            Self::Unplace(name) => write!(f, "remove program {name}"),
            Self::Write { file, .. } => write!(f, "write {file}"),
            Self::Move { from, to, .. } => write!(f, "rename {from} to {to}"),
            Self::Remove { file, .. } => write!(f, "remove {file}"),
            Self::DropIn { network, .. } => write!(f, "write {network}/{DROP_IN}"),
            Self::TakeOut { network } => write!(f, "remove {network}/{DROP_IN}"),
            Self::RemoveLock => f.write_str("remove the lock file"),
            Self::Sweep(directory) => {
                write!(f, "remove a dead run's temporary file from the {directory} directory")
            }
        }
    }
}

/// What stands in the way, or should be known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// It is not there.
    #[error("there is no {0} directory")]
    Missing(Directory),
    /// It was removed or renamed under us, and perhaps made again.
    #[error("the {0} directory was deleted on the host, or renamed, while this process held it")]
    Deleted(Directory),
    /// It cannot be read.
    #[error("the {0} directory cannot be read: {why}", why = .1.desc())]
    Unreadable(Directory, Errno),
    /// The primary has not written its file.
    #[error("waiting for the primary plugin's conf file")]
    Waiting,
    /// The pinned file is not there.
    #[error("waiting for {file}, which {by} asks for")]
    WaitingFor {
        /// Which.
        file: FileName,
        /// The setting that names it.
        by: &'static str,
    },
    /// Somebody else's broken file, which the runtime passes over.
    #[error("{0}: {why}", why = .0.why)]
    Broken(Broken),
    /// A broken file before every other.
    #[error("containerd loads no network while {} stands before every other: {}", .0.file, .0.why)]
    Stopped(Broken),
    /// Nothing is known about its content.
    #[error("{} cannot be read here, and the runtime may take it: {}", .0.file, .0.why)]
    Unread(Broken),
    /// A runtime reads it, whatever its size, and would take it (Go's `os.ReadFile` has no limit).
    #[error("{file} is {length} bytes long, too many to be read here, and the runtime may take it")]
    TooLarge {
        /// Which.
        file: FileName,
        /// Bytes.
        length: u64,
    },
    /// Of the primary's plugins none is where ours are.
    #[error("of the plugins of {file} ({}) none is in the program directory", .plugins.join(", "))]
    Alone {
        /// The primary's file.
        file: FileName,
        /// Its plugins.
        plugins: Vec<String>,
    },
    /// The probe reads the runtime's configuration, and has not done so yet.
    #[error("waiting for the probe's report about the container runtime")]
    Unreported,
    /// The runtime's configuration names other directories of plugins.
    #[error("the runtime looks for plugins in {}, and not where ours are placed", list(.0))]
    Elsewhere(Vec<PathBuf>),
    /// The runtime's configuration names another directory of networks.
    #[error("the runtime reads networks in {}, and not here", list(.0))]
    NetworksElsewhere(Vec<PathBuf>),
    /// The runtime takes a file that does not lead to us.
    #[error("the runtime takes {file} ({}), which does not run {plugin}", .plugins.join(", "))]
    NotIn {
        /// The file.
        file: FileName,
        /// Its plugins.
        plugins: Vec<String>,
        /// Ours.
        plugin: String,
    },
    /// The runtime takes a file without a primary's plugin.
    #[error("the runtime takes {0}, which runs nothing that gives a pod a network")]
    NoPrimary(FileName),
    /// A network of its own, which nobody calls.
    #[error("the runtime takes {by} ({}), and only Multus would call {file}", .plugins.join(", "))]
    NotMultus {
        /// Ours.
        file: FileName,
        /// The one the runtime takes.
        by: FileName,
        /// Its plugins.
        plugins: Vec<String>,
    },
    /// A network of its own that is not there.
    #[error("{0} does not have our network")]
    NotWritten(FileName),
    /// Both would redirect a pod.
    #[error("{0} has an istio-cni entry beside ours: both redirect, and the second is refused")]
    BesideIstio(FileName),
    /// The plugin refuses every call with such an entry.
    #[error("our entry in {file} is refused by the plugin: {why}")]
    BadEntry {
        /// Which file.
        file: FileName,
        /// Why.
        why: String,
    },
    /// The plugin cannot serve.
    #[error("the program {plugin} {why}")]
    Program {
        /// Its name.
        plugin: String,
        /// Why.
        why: ProgramFault,
    },
    /// The pinned file is not the one the runtime takes, whose plugins call no other: no pod meets us.
    #[error("the runtime takes {by}, not {file}")]
    Preempted {
        /// The pinned one.
        file: FileName,
        /// The one it takes.
        by: FileName,
    },
    /// A link may lead anywhere.
    #[error("{0} is a symbolic link, and is not written through")]
    Link(FileName),
    /// A standalone file of that name is another plugin's.
    #[error("{0} is another plugin's file")]
    NotOurs(FileName),
    /// Its chain cannot be changed.
    #[error("{file} cannot be changed: {why}")]
    Unchangeable {
        /// Which.
        file: FileName,
        /// Why.
        why: ConflistError,
    },
    /// The list's name is taken.
    #[error("{0} cannot become a .conflist: the names it could have are taken")]
    NoNameLeft(FileName),
    /// Both agents would write.
    #[error("{0} has an istio-cni entry, and istio-cni's agent still runs")]
    IstioLives(FileName),
    /// The primary's network has no directory of its own.
    #[error("the network of {0} takes no drop-in files")]
    NoDropIns(FileName),
    /// An older runtime passes over a drop-in without a word, and this one may be older.
    #[error(
        "whether the runtime reads {0}/{DROP_IN} cannot be seen from here: libcni 1.3 does (containerd 2.1, CRI-O \
         1.34), an older one starts pods without it"
    )]
    UnseenDropIn(FileName),
    /// This runtime passes over it.
    #[error("the runtime does not read {0}/{DROP_IN}: it needs containerd 2.1 or CRI-O 1.34")]
    DropInIgnored(FileName),
    /// Going back to nothing.
    #[error("istio-cni's entry in {0} does not come back: its program is gone")]
    IstioGone(FileName),
    /// It names our plugin and is not ours to change.
    #[error("{0} still names {1}, and is not a file we can change")]
    StillNamed(FileName, String),
}

/// Why the plugin's program cannot serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProgramFault {
    /// It is not there.
    #[error("is not in the program directory")]
    Missing,
    /// It is something else, which may do anything.
    #[error("is not the one that was placed there")]
    Another,
    /// The runtime cannot run it.
    #[error("does not run")]
    NotRun,
    /// Others may change it.
    #[error("may be written by others")]
    Writable,
}

impl ProgramFault {
    /// What a program's mode and owner keep it from, where `us` places programs.
    #[must_use]
    pub fn of(access: Access, us: u32) -> Option<Self> {
        if access.mode & 0o022 != 0 || (access.uid != 0 && access.uid != us) {
            return Some(Self::Writable);
        }
        (access.mode & 0o111 != 0o111).then_some(Self::NotRun)
    }
}

fn list(paths: &[PathBuf]) -> String {
    paths
        .iter()
        .map(|path| path.display().to_string().escape_debug().to_string())
        .collect::<Vec<_>>()
        .join(", ")
}

impl Problem {
    /// Whether it stands in the way; the others are only to be known.
    #[must_use]
    pub fn blocks(&self) -> bool {
        !matches!(self, Self::Broken(_) | Self::IstioGone(_))
    }

    /// In which directory it stands in the way.
    #[must_use]
    pub fn directory(&self) -> Directory {
        match self {
            Self::Missing(directory) | Self::Deleted(directory) | Self::Unreadable(directory, _) => {
                *directory
            }
            Self::Program { .. } => Directory::Programs,
            _ => Directory::Conf,
        }
    }

    /// What helps.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Missing(Directory::Conf) => {
                "it comes with the primary plugin; else let the DaemonSet's mount cni-conf, or --conf-dir, be \
                 where the runtime looks"
            }
            Self::Missing(Directory::Programs) => {
                "let the DaemonSet's mount cni-bin, or --bin-dir, be where the container runtime looks"
            }
            Self::Deleted(_) => {
                "restart this pod, and the container runtime: neither sees a directory made anew"
            }
            Self::Broken(_) => "CRI-O passes over it; its owner should write it again",
            Self::Stopped(_) => {
                "containerd loads nothing while it is there; remove it, or let its owner write it again"
            }
            Self::Unread(Broken { why: Why::Unreadable(Unreadable::Refused(Errno::ENOENT)), .. }) => {
                "it is a symbolic link: mount what it leads to in the agent's pod, at the same path; or put the file \
                 itself there, or remove the link"
            }
            Self::Unread(_) => {
                "let the agent read it: give it to root, or add manifests/components/foreign-owner; or remove it"
            }
            Self::TooLarge { .. } => {
                "conf files have some kilobytes: remove it, or let its owner write it again"
            }
            Self::Alone { .. } => {
                "let the DaemonSet's mount cni-bin, or --bin-dir, be where the container runtime looks for plugins; or, \
                 where it looks there too, set plugin_dir: confirmed (--plugin-dir confirmed)"
            }
            Self::Unreported => {
                "the container probe of the agent's pod writes /run/gybe/runtime.json; where it does not, look at its \
                 log: the agent goes on after a minute"
            }
            Self::Elsewhere(_) => {
                "let the DaemonSet's mount cni-bin, or --bin-dir, be one of these, or let the runtime's configuration \
                 name this directory too; plugin_dir: confirmed (--plugin-dir confirmed) overrules it"
            }
            Self::NetworksElsewhere(_) => {
                "let the DaemonSet's mount cni-conf, or --conf-dir, be this directory; or, where the runtime reads this \
                 one all the same, set plugin_dir: confirmed (--plugin-dir confirmed)"
            }
            Self::NotIn { .. } | Self::NotWritten(_) => {
                "the agent writes it within a second: look at its log, or run gybe install"
            }
            Self::NoPrimary(_) => "remove it, or give it a name that sorts behind the primary's file",
            Self::NotMultus { .. } => {
                "set shape: chained (CHAINED_CNI_PLUGIN: true), unless Multus is to be installed on this node"
            }
            Self::BesideIstio(_) => {
                "where istio-cni serves ambient pods, keep it and exclude this node from Gybe; else remove the DaemonSet \
                 istio-cni-node, then gybe install takes its place, or set take_over: now (--take-over now)"
            }
            Self::BadEntry { .. } => "docs/PLUGIN-CONFIG.md has every key; gybe install writes it anew",
            Self::Program { .. } => "look at the agent's log, or run gybe install, which replaces it",
            Self::DropInIgnored(_) => "set shape: chained, or update the runtime",
            Self::Preempted { .. } => {
                "unset CNI_CONF_NAME (conf_name), to follow the runtime's choice, or let it name that file"
            }
            Self::Link(_) => {
                "let CNI_CONF_NAME name a file, or use drop-in mode, where the runtime reads drop-ins \
                 (containerd 2.1, CRI-O 1.34)"
            }
            Self::NotOurs(_) => "let CNI_CONF_NAME name another file",
            Self::Unchangeable { why: ConflistError::Ambient, .. } => {
                "Gybe serves sidecars only; keep istio-cni on nodes with ambient pods"
            }
            Self::Unchangeable { why: ConflistError::NoPlugins, .. } => {
                "drop-in mode does not need a list in the file, and needs a runtime that reads drop-ins \
                 (containerd 2.1, CRI-O 1.34)"
            }
            Self::IstioLives(_) => {
                "remove the DaemonSet istio-cni-node, or set take_over: now (--take-over now)"
            }
            Self::NoDropIns(_) => "use chained mode",
            Self::UnseenDropIn(_) => "gybe doctor on the node tells; chained mode works with every runtime",
            Self::StillNamed(..) => "take the entry out by hand; the plugin stays there until then",
            _ => return None,
        })
    }
}
