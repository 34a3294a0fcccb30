//! What prevents a change or a pod's redirection, or what an operator should know, each with its hint.

use gybe_netfilter::model::Hint;
use gybe_plugin::version::SUPPORTED;
use std::borrow::Cow;
use std::path::PathBuf;

use nix::errno::Errno;

use super::conflist::ConflistError;
use super::libcni::{BrokenFile, BrokenReason};
use super::observe::{Access, DROP_IN, Directory, FileName, Unreadable};

/// What prevents a pod's redirection, or what an operator should know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("there is no {0} directory")]
    Missing(Directory),
    /// It was removed or renamed while this process held it open, and may have been created again since.
    #[error("the {0} directory was deleted on the host, or renamed, while this process held it")]
    Deleted(Directory),
    #[error("the {0} directory cannot be read: {why}", why = .1.desc())]
    Unreadable(Directory, Errno),
    /// The primary plugin has not written its file.
    #[error("waiting for the primary plugin's conf file")]
    Waiting,
    #[error("waiting for {file}, which {by} names")]
    WaitingFor {
        file: FileName,
        /// The setting that names it.
        by: &'static str,
    },
    /// Another owner's broken file, which the runtime skips.
    #[error("{0}: {why}", why = .0.why)]
    Broken(BrokenFile),
    /// CRI-O's configuration names a network (`cni_default_network`).
    #[error(
        "CRI-O uses only the network {name}, which its cni_default_network names, and no conf file has it"
    )]
    NoDefaultNetwork { name: String },
    /// No pod starts without it. CRI-O skips the network, and may use a later one.
    #[error("{program}, which the runtime runs for {file}, {why}")]
    OtherProgram { file: FileName, program: String, why: OtherProgramFault },
    /// The runtime finds another program of our plugin's name first.
    #[error("the runtime runs the {plugin} in {}, not the one that is placed", list(std::slice::from_ref(.directory)))]
    EarlierProgram { plugin: String, directory: PathBuf },
    /// A pod of this handler's RuntimeClass has a network from another directory.
    #[error(
        "pods of the runtime handler {handler} use the first conf file in {}, which is missing or does not run gybe-cni",
        list(std::slice::from_ref(.directory))
    )]
    HandlerElsewhere { handler: String, directory: PathBuf },
    /// Another file than the first.
    #[error("containerd loads no network because {}, one of the files that max_conf_num makes it load, is broken: {}", .0.file, .0.why)]
    BrokenFurther(BrokenFile),
    /// A broken file that sorts before every other.
    #[error("containerd loads no network because {}, which sorts first, is broken: {}", .0.file, .0.why)]
    BrokenFirst(BrokenFile),
    /// Its content is unknown.
    #[error("{} cannot be read here, and the runtime may use it: {}", .0.file, .0.why)]
    UnreadableFirst(BrokenFile),
    /// A runtime reads it, whatever its size, and would use it (Go's `os.ReadFile` has no limit).
    #[error("{file} is {length} bytes long, more than Gybe reads, and the runtime may use it")]
    TooLarge { file: FileName, length: u64 },
    /// None of the primary's plugins is in the directory where ours are placed.
    #[error("none of the plugins of {file} ({}) is in the program directory", .plugins.join(", "))]
    PluginDirUnconfirmed { file: FileName, plugins: Vec<String> },
    /// The probe reads the runtime's configuration, and has not reported yet.
    #[error("waiting for the probe's report about the container runtime")]
    Unreported,
    /// The runtime's configuration names other plugin directories.
    #[error("the runtime looks for plugins in {}, not where gybe-cni is placed", list(.0))]
    PluginsElsewhere(Vec<PathBuf>),
    /// The runtime's configuration names another conf directory.
    #[error("the runtime reads conf files in {}, not here", list(.0))]
    NetworksElsewhere(Vec<PathBuf>),
    /// The runtime uses a file that does not run our plugin.
    #[error("the runtime uses {file} ({}), which does not run {plugin}", .plugins.join(", "))]
    NoEntry { file: FileName, plugins: Vec<String>, plugin: String },
    /// The runtime uses a file without a primary plugin.
    #[error("the runtime uses {0}, which has no plugin that gives a pod a network")]
    NoPrimary(FileName),
    /// Our plugin refuses every call for the network.
    #[error(
        "the CNI version of {file} is {version:?}, and gybe-cni, which supports {all}, would refuse every pod",
        all = SUPPORTED.join(", ")
    )]
    UnsupportedVersion {
        file: FileName,
        /// Truncated.
        version: String,
    },
    /// Our standalone network, on a node without Multus.
    #[error("the runtime uses {by} ({}), and only Multus would call {file}", .plugins.join(", "))]
    NotMultus {
        file: FileName,
        /// The file that the runtime uses.
        by: FileName,
        plugins: Vec<String>,
    },
    /// Our standalone network does not exist.
    #[error("{0} does not contain our network")]
    NoNetwork(FileName),
    /// Both entries would redirect a pod.
    #[error("{0} has entries of istio-cni and gybe-cni: a meshed pod gets the rules of both, or is refused")]
    BothEntries(FileName),
    /// The plugin refuses every call with such an entry.
    #[error("the plugin refuses its entry in {file}: {why}")]
    BadEntry { file: FileName, why: String },
    /// It decides about pods by settings that are not in force.
    #[error("the entry in {file} does not have the desired settings yet: {} differ", .keys.join(", "))]
    OtherSettings { file: FileName, keys: Vec<&'static str> },
    /// The runtime cannot use the plugin's program.
    #[error("the program {plugin} {why}")]
    Program { plugin: String, why: ProgramFault },
    /// The runtime uses another file than the pinned one, and its plugins call no other file: no pod reaches
    /// our plugin.
    #[error("the runtime uses {by}, not {file}")]
    Preempted {
        file: FileName,
        /// The file that the runtime uses.
        by: FileName,
    },
    #[error("{0} is a symbolic link, and Gybe does not write through it")]
    Link(FileName),
    /// The file named for the standalone network is another plugin's.
    #[error("{0} is another plugin's file")]
    NotOurs(FileName),
    /// The plugin list in the file cannot be changed.
    #[error("{file} cannot be changed: {why}")]
    Unchangeable { file: FileName, why: ConflistError },
    /// Other files already have every name under which it could become a list.
    #[error("{0} cannot become a .conflist: its possible names are taken")]
    NoNameLeft(FileName),
    /// istio-cni's agent would restore its entry.
    #[error("{0} has an istio-cni entry, and istio-cni's agent still runs")]
    IstioAgentRuns(FileName),
    /// The primary's network has no directory of its own.
    #[error("the network of {0} accepts no drop-in files")]
    NoDropIns(FileName),
    /// An older runtime ignores a drop-in without a message, and this one may be older.
    #[error(
        "whether the runtime reads {0}/{DROP_IN} is unknown here: libcni 1.3 does (containerd 2.1, CRI-O \
         1.34), an older one ignores it"
    )]
    UnseenDropIn(FileName),
    /// This runtime ignores it.
    #[error("the runtime does not read {0}/{DROP_IN}: it needs containerd 2.1 or CRI-O 1.34")]
    DropInIgnored(FileName),
    /// The entry would name a program that no longer exists.
    #[error("istio-cni's entry in {0} is not restored: its program is gone")]
    IstioGone(FileName),
    /// It names our plugin, and this process cannot change it.
    #[error("{0} still names {1}, and Gybe cannot change this file")]
    StillNamed(FileName, String),
    /// An operator has added the entry, which an uninstall does not remove.
    #[error(
        "pods of the runtime handler {handler} use the first conf file in {}, which still runs gybe-cni",
        list(std::slice::from_ref(.directory))
    )]
    HandlerStillNames { handler: String, directory: PathBuf },
}

/// Why the runtime cannot use the plugin's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProgramFault {
    #[error("is not in the program directory")]
    Missing,
    /// It is another program, which may do anything.
    #[error("is not the one that was placed there")]
    Another,
    #[error("does not run")]
    NotRun,
    #[error("cannot be run: its directory is mounted noexec")]
    NoExec,
    /// Other users may change it.
    #[error("is writable by other users")]
    Writable,
}

/// Why the runtime cannot run a program of another owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OtherProgramFault {
    #[error("is in none of the directories in which the runtime looks for plugins")]
    Missing,
    /// The runtime's configuration does not name its directories, so it may look in further ones.
    #[error("is not in the program directory")]
    NotHere,
    #[error("is not executable")]
    NotExecutable,
}

impl ProgramFault {
    /// Checks a program's mode and owner, where `us` is the uid that Gybe installs programs with.
    #[must_use]
    pub fn of(access: Access, us: u32) -> Option<Self> {
        if access.mode & 0o022 != 0 || (access.uid != 0 && access.uid != us) {
            return Some(Self::Writable);
        }
        (!access.is_executable_for_all()).then_some(Self::NotRun)
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
    /// Reports whether it prevents the redirection; the other problems are only notes.
    #[must_use]
    pub fn blocks(&self) -> bool {
        !matches!(self, Self::Broken(_) | Self::IstioGone(_))
    }

    /// Reports whether it only states that our entry is not written yet, or outdated; any other problem explains why.
    #[must_use]
    pub fn is_entry_pending(&self) -> bool {
        matches!(self, Self::NoEntry { .. } | Self::NoNetwork(_) | Self::OtherSettings { .. })
    }

    /// The directory that it concerns.
    #[must_use]
    pub fn directory(&self) -> Directory {
        match self {
            Self::Missing(directory) | Self::Deleted(directory) | Self::Unreadable(directory, _) => {
                *directory
            }
            Self::Program { .. } | Self::OtherProgram { .. } | Self::EarlierProgram { .. } => {
                Directory::Programs
            }
            _ => Directory::Conf,
        }
    }
}

impl Hint for Problem {
    fn hint(&self) -> Option<Cow<'static, str>> {
        let hint = match self {
            Self::Missing(Directory::Conf) => {
                "the primary plugin makes it; if the runtime reads another directory, let the DaemonSet's mount \
                 cni-conf, or --conf-dir, name that one"
            }
            Self::Missing(Directory::Programs) => {
                "let the DaemonSet's mount cni-bin, or --bin-dir, name the runtime's plugin directory"
            }
            Self::Deleted(_) => {
                "restart this pod and the container runtime: neither notices a directory that was made again"
            }
            Self::Broken(_) => "CRI-O skips it; let its owner write it again",
            Self::NoDefaultNetwork { .. } => {
                "let the primary plugin's conf file have this network name, or unset cni_default_network in CRI-O's configuration"
            }
            Self::OtherProgram { why: OtherProgramFault::NotHere, .. } => {
                "the DaemonSet or the package that it belongs to has to place it there; if the runtime looks for plugins in \
                 further directories, name all of them in its configuration (bin_dirs, plugin_dirs), or with containerd \
                 set plugin_dir: confirmed (--plugin-dir confirmed)"
            }
            Self::OtherProgram { why: OtherProgramFault::NotExecutable, .. } => {
                "chmod 0755 it; if its directory is mounted noexec, mount it without"
            }
            Self::OtherProgram { .. } => {
                "the DaemonSet or the package that it belongs to has to place it there; loopback, bridge, host-local and \
                 portmap are in containernetworking-plugins (kubernetes-cni)"
            }
            Self::EarlierProgram { .. } => {
                "remove it, or name the directory of the placed one first in the runtime's configuration"
            }
            Self::HandlerElsewhere { .. } => {
                "remove cni_conf_dir of this handler from containerd's configuration, or add the entry to the file there by \
                 hand; if its pods need no redirection, set plugin_dir: confirmed (--plugin-dir confirmed)"
            }
            Self::BrokenFirst(_) | Self::BrokenFurther(_) => {
                "remove it, or let its owner write it again: containerd loads nothing while it is there"
            }
            Self::UnreadableFirst(BrokenFile {
                why: BrokenReason::Unreadable(Unreadable::System(Errno::ENOENT)),
                ..
            }) => {
                "it is a symbolic link: mount its target in the agent's pod at the same path, replace the link by the \
                 file, or remove the link"
            }
            Self::UnreadableFirst(_) => {
                "let the agent read it: chown it to root, or add manifests/components/foreign-owner; or remove it"
            }
            Self::TooLarge { .. } => {
                "conf files have a few kilobytes: remove it, or let its owner write it again"
            }
            Self::PluginDirUnconfirmed { .. } => {
                "let the DaemonSet's mount cni-bin, or --bin-dir, name the runtime's plugin directory; if the runtime \
                 does look there, set plugin_dir: confirmed (--plugin-dir confirmed)"
            }
            Self::Unreported => {
                "the container repair (or the init container probe) of the agent's pod writes /run/gybe/runtime.json; \
                 if it does not, look at its log: the agent continues without it after a minute"
            }
            Self::PluginsElsewhere(_) => {
                "let the DaemonSet's mount cni-bin, or --bin-dir, name one of these directories, or add ours to the \
                 runtime's configuration; plugin_dir: confirmed (--plugin-dir confirmed) skips this check"
            }
            Self::NetworksElsewhere(_) => {
                "let the DaemonSet's mount cni-conf, or --conf-dir, name that directory; if the runtime does read this \
                 one, set plugin_dir: confirmed (--plugin-dir confirmed)"
            }
            Self::NoEntry { .. } | Self::NoNetwork(_) | Self::OtherSettings { .. } => {
                "the agent writes the entry within a second; if it does not, look at its log, or run gybe install"
            }
            Self::NoPrimary(_) => "remove it, or give it a name that sorts after the primary's file",
            Self::UnsupportedVersion { .. } => {
                "set one of these versions in the file, or update Gybe; until then no entry is written, and pods start \
                 without redirection"
            }
            Self::NotMultus { .. } => {
                "set shape: auto (CHAINED_CNI_PLUGIN: true), unless Multus will be installed on this node"
            }
            Self::BothEntries(_) | Self::IstioAgentRuns(_) => {
                "if istio-cni serves ambient pods, keep it and exclude this node from Gybe; otherwise remove the \
                 DaemonSet istio-cni-node, or set take_over: now (--take-over now)"
            }
            Self::BadEntry { .. } => "docs/CONFIGURE.md lists every key; gybe install writes the entry again",
            Self::Program { why: ProgramFault::NoExec, .. } => {
                "mount the directory without noexec: no runtime can run plugins there"
            }
            Self::Program { .. } => "look at the agent's log, or run gybe install, which replaces it",
            Self::DropInIgnored(_) => "set shape: auto, or update the runtime",
            Self::Preempted { .. } => {
                "unset CNI_CONF_NAME (conf_name) to follow the runtime's choice, or let it name the file that the runtime uses"
            }
            Self::Link(_) => {
                "let CNI_CONF_NAME name a regular file, or set shape: dropin where the runtime reads drop-ins \
                 (containerd 2.1, CRI-O 1.34)"
            }
            Self::NotOurs(_) => "let CNI_CONF_NAME name another file",
            Self::Unchangeable { why: ConflistError::Ambient, .. } => {
                "set AMBIENT_ENABLED (in the chart: ambient.enabled), or keep istio-cni on nodes with ambient pods and \
                 exclude these nodes from Gybe"
            }
            Self::Unchangeable { why: ConflistError::NoPlugins, .. } => {
                "set shape: dropin, which needs no list in the file but a runtime that reads drop-ins \
                 (containerd 2.1, CRI-O 1.34)"
            }
            Self::NoDropIns(_) => "set shape: auto",
            Self::UnseenDropIn(_) => {
                "run gybe doctor on the node to find out; shape: chained works with every runtime"
            }
            Self::StillNamed(..) | Self::HandlerStillNames { .. } => {
                "remove the entry by hand; the plugin stays until then"
            }
            _ => return None,
        };
        Some(hint.into())
    }
}
