//! `gybe uninstall`: what is removed, what has to stay, and for how long.
//!
//! Normally it takes two calls: the first removes the entry from every file, one some minutes later removes the
//! programs. A sandbox that was being made while the entry was removed is in no cache yet, and its DEL will
//! need the plugin. `gybe` itself is removed last, so that the second call is possible.

use super::install::{planned, settle};
use crate::host::apply::Busy;
use crate::host::change::Change;
use crate::host::conflist::PluginChain;
use crate::host::desired::{DesiredState, Placement, PlacementOrder, Program, PutBack, Trial, Uninstall};
use crate::host::entries::OurEntries;
use crate::host::image::{Image, OTHER_NAMES, PLUGIN, TOOL, every_name};
use crate::host::istio_cni::{is_served, our_stand_in};
use crate::host::observe::runtimes::Runtimes;
use crate::host::observe::{
    CachedPlugins, FileFormat, FileName, Hash, HashCache, LARGEST, NodeDirectories, ORIGINAL, ObserveScope,
    ObservedState, conf_directory, observe,
};
use crate::host::pass::{Pass, PassHistory, pass};
use crate::host::plan::{InstalledIstio, Plan};
use crate::host::platform::Platform;
use crate::host::problem::Problem;
use crate::host::settings::{
    AGENT_LEADER, FACTS_SOCKET, GRACE_PERIOD, KUBECONFIG, KUBECONFIG_TEMPORARY, PROBE_LEADER,
};
use gybe_plugin::conf::LOG_SOCKET;
use gybe_plugin::probe_cache::FILES;
use nix::sys::socket::SockType;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

/// The result of an uninstall.
#[derive(Debug)]
pub struct UninstallReport {
    /// The pass that removed the entry, and the one that removed the programs, if there was one.
    pub passes: Vec<Pass>,
    /// The programs that have to stay.
    pub stays: Vec<KeptProgram>,
    /// What is in directories of another kind of node, which are not changed.
    pub elsewhere: OtherDirectories,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptProgram {
    pub program: FileName,
    pub until: KeptReason,
}

/// Why a program has to stay, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeptReason {
    /// The conf was changed a moment ago.
    #[error("for another {seconds} s: the DEL of a sandbox that was just being made may need it")]
    GracePeriod {
        /// After this time every ADD that began before the change has ended, or its sandbox was given up.
        seconds: u64,
    },
    /// libcni's cache names it.
    #[error("as long as sandboxes exist that were made with it: the DEL of each needs it")]
    Named,
    /// The cache cannot be read.
    #[error("until the node has been drained: it is unknown which sandboxes were made with it")]
    Unknown,
    #[error("as long as a conf file names it")]
    InConf,
    /// It is no longer needed, but was not removed.
    #[error("because it could not be removed")]
    Failed,
}

impl UninstallReport {
    /// Reports whether no conf file names the plugin any more.
    #[must_use]
    pub fn is_out(&self) -> bool {
        self.passes.last().is_some_and(|pass| conf_is_clean(&pass.left)) && self.elsewhere.conf.is_empty()
    }

    /// Reports whether nothing is left to do.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.is_out() && self.stays.is_empty() && self.elsewhere.is_nothing()
    }
}

fn conf_is_clean(left: &Plan) -> bool {
    let touches_programs = |change: &Change| {
        matches!(change, Change::PlaceProgram { .. } | Change::RemoveProgram(_) | Change::RemoveLock)
    };
    left.changes.iter().all(touches_programs) && !left.problems.iter().any(Problem::blocks)
}

/// The desired state without Gybe: everything that is ours, under whatever name it was placed.
#[must_use]
pub fn desired_uninstall(
    directories: &NodeDirectories,
    image: impl FnOnce() -> Option<Image>,
    pinned: Option<FileName>,
    put_back: PutBack,
) -> Uninstall {
    let observed = observe(directories, &interest(), &mut HashCache::default());
    let hash = |name: &str| observed.programs.files.get(OsStr::new(name)).and_then(|it| it.hash.clone().ok());
    let tool = hash(TOOL);
    let is_tool = |name: &&str| hash(name).is_some() && hash(name) == tool;
    let names = [PLUGIN].into_iter().chain(OTHER_NAMES.into_iter().filter(is_tool));
    Uninstall {
        plugin: PLUGIN.to_owned(),
        pinned: pinned.or_else(|| of_any_name(&directories.conf)),
        programs: names.filter_map(|name| FileName::new(name).ok()).collect(),
        // Recognized above by the files themselves, because the image may be missing.
        retired: Vec::new(),
        last: FileName::new(TOOL).ok(),
        in_grace_period: grace_period(&directories.conf, SystemTime::now()).is_some(),
        tombstones: tombstone(directories, hash(PLUGIN), image).into_iter().collect(),
        // Recognized as our plugin, of whatever version.
        stand_in: our_stand_in(&directories.programs),
        put_back,
    }
}

/// Returns the program that serves DEL while a sandbox may need it: the installed plugin, or the image's if the
/// installed one cannot be read. Where no program exists, none is placed.
fn tombstone(
    directories: &NodeDirectories,
    hash: Option<Hash>,
    image: impl FnOnce() -> Option<Image>,
) -> Option<Program> {
    let is_there = directories.programs.join(PLUGIN).symlink_metadata().is_ok();
    let of_image = || {
        image()?
            .programs(PlacementOrder::AfterEntry, &BTreeSet::new())
            .into_iter()
            .find(|it| it.name.as_os_str() == PLUGIN)
    };
    let installed = hash.and_then(|hash| {
        Some(Program {
            name: FileName::new(PLUGIN).ok()?,
            source: directories.programs.join(PLUGIN),
            hash,
            trial: Trial::CniVersion,
            place: Placement::Always,
            need: PlacementOrder::AfterEntry,
        })
    });
    installed.or_else(|| is_there.then(of_image).flatten())
}

/// Finds a file with our entry that no runtime reads by its name: a pinned file may have any name, and the operator
/// need not name it again.
fn of_any_name(conf: &Path) -> Option<FileName> {
    let entries = fs::read_dir(conf).ok()?.flatten();
    let names = entries.filter_map(|entry| FileName::new(entry.file_name()).ok());
    let mut odd = names.filter(|name| FileFormat::of(name.as_os_str()).is_none() && !name.ends_in(ORIGINAL));
    odd.find(|name| {
        let path = conf.join(name.as_os_str());
        let small = path.symlink_metadata().is_ok_and(|meta| meta.is_file() && meta.len() <= LARGEST);
        let bytes = small.then(|| fs::read(&path).ok()).flatten().unwrap_or_default();
        PluginChain::read(&bytes).is_ok_and(|chain| chain.entry(PLUGIN).is_some())
    })
}

fn interest() -> ObserveScope {
    ObserveScope::in_programs(every_name())
}

impl UninstallReport {
    /// The plan of an uninstall.
    #[must_use]
    pub fn planned(directories: &NodeDirectories, leave: &Uninstall, runtimes: Runtimes) -> Plan {
        planned(directories, &DesiredState::Uninstalled(leave.clone()), runtimes)
    }

    /// Uninstalls as far as is possible now; `root` is the host's root.
    ///
    /// # Errors
    /// If another gybe holds the lock.
    pub fn now(
        directories: &NodeDirectories,
        leave: &Uninstall,
        runtimes: &Runtimes,
        root: &Path,
    ) -> Result<Self, Busy> {
        // Several passes may be needed to remove the entry, and no program is removed in any of them.
        let first = settle(
            directories,
            &DesiredState::Uninstalled(Uninstall { in_grace_period: true, ..leave.clone() }),
            runtimes,
        )?;
        let clean = conf_is_clean(&first.left);
        let mut passes = vec![first];
        let remaining = || grace_period(&directories.conf, SystemTime::now());
        if clean && remaining().is_none() {
            let over = Uninstall { in_grace_period: false, ..leave.clone() };
            // Only once: if another program writes meanwhile, the conf has changed again.
            passes.push(pass(directories, &DesiredState::Uninstalled(over), &mut PassHistory::default())?);
        }
        let observed = observe(directories, &interest(), &mut HashCache::default());
        let clean = passes.last().is_some_and(|pass| conf_is_clean(&pass.left));
        let stays = stays(&observed, leave, clean, remaining());
        Ok(Self { passes, stays, elsewhere: OtherDirectories::than(directories, root) })
    }
}

/// Our programs that are there and that a sandbox may need.
fn stays(
    observed: &ObservedState,
    leave: &Uninstall,
    is_clean: bool,
    remaining: Option<Duration>,
) -> Vec<KeptProgram> {
    let tombstones = leave.tombstones.iter().map(|program| &program.name);
    let tombstones = tombstones.filter(|name| observed.programs.files.contains_key(*name));
    let stand_in = match InstalledIstio::find(observed, leave.stand_in) {
        Some(InstalledIstio::StandIn(name)) => Some(name),
        Some(InstalledIstio::Own) | None => None,
    };
    let until = |name: &FileName| match &observed.cached {
        _ if !is_clean => KeptReason::InConf,
        CachedPlugins::Unknown => KeptReason::Unknown,
        CachedPlugins::Named(plugins)
            if name.as_os_str().to_str().is_some_and(|name| plugins.contains(name)) =>
        {
            KeptReason::Named
        }
        CachedPlugins::Named(_) => remaining.map_or(KeptReason::Failed, |left| KeptReason::GracePeriod {
            // Removable from the next full second on.
            seconds: left.as_secs() + 1,
        }),
    };
    let kept = |name: &FileName| KeptProgram { program: name.clone(), until: until(name) };
    tombstones.chain(stand_in).map(kept).collect()
}

/// How long the plugin still has to stay after the conf was changed; none when `GRACE_PERIOD` has passed. It is
/// computed from the node's files, so it also holds for a repeated call, for an agent that ended a moment ago, and for
/// an entry that another program removed. A file written by renaming changes the modification time of its directory: of
/// the conf directory, or of a network's own.
fn grace_period(conf: &Path, now: SystemTime) -> Option<Duration> {
    let networks = fs::read_dir(conf).into_iter().flatten().flatten();
    let networks = networks.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let all = networks.map(|entry| entry.path()).chain([conf.to_owned()]);
    let changed = all.filter_map(|path| path.metadata().ok()?.modified().ok()).max()?;
    // A clock that was set back makes the period longer, which harms no pod.
    let over = changed.checked_add(GRACE_PERIOD)?;
    over.duration_since(now).ok().filter(|left| !left.is_zero())
}

/// Directories of other kinds of node that contain our entry or programs: left by an earlier install with other
/// directories, or because this node's kind was not recognized then.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OtherDirectories {
    /// Conf directories with a file that names the plugin.
    pub conf: BTreeSet<PathBuf>,
    /// Directories with the plugin's program.
    pub programs: BTreeSet<PathBuf>,
}

impl OtherDirectories {
    /// Searches the directories of every kind of node except `directories`.
    #[must_use]
    pub fn than(directories: &NodeDirectories, root: &Path) -> Self {
        let mut found = Self::default();
        for other in Platform::all_node_directories(root) {
            if !is_same(&other.conf, &directories.conf) && has_entry(&other.conf) {
                found.conf.insert(other.conf);
            }
            if !is_same(&other.programs, &directories.programs)
                && other.programs.join(PLUGIN).symlink_metadata().is_ok()
            {
                found.programs.insert(other.programs);
            }
        }
        found
    }

    /// A note for the operator.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let listed = |directories: &BTreeSet<PathBuf>| {
            directories.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ")
        };
        let conf = (!self.conf.is_empty()).then(|| format!("a conf file in {} names it", listed(&self.conf)));
        let programs =
            (!self.programs.is_empty()).then(|| format!("its program is in {}", listed(&self.programs)));
        let both: Vec<_> = conf.into_iter().chain(programs).collect();
        (!both.is_empty()).then(|| {
            format!(
                "note: gybe-cni is also in directories of another kind of node, which were not changed: {}; name them \
                 with --conf-dir and --bin-dir",
                both.join(", and ")
            )
        })
    }

    /// Reports whether nothing was found.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.conf.is_empty() && self.programs.is_empty()
    }
}

/// Reports whether two paths lead to one directory.
fn is_same(one: &Path, other: &Path) -> bool {
    one == other || one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}

fn has_entry(directory: &Path) -> bool {
    let conf = conf_directory(directory, &BTreeSet::new());
    OurEntries::find(&conf).is_anywhere() || of_any_name(directory).is_some()
}

const TOKENS: [&str; 2] = [KUBECONFIG, KUBECONFIG_TEMPORARY];
const SOCKETS: [(&str, SockType); 2] = [(FACTS_SOCKET, SockType::Stream), (LOG_SOCKET, SockType::Datagram)];

/// Cleans `/run/gybe`: removes a kubeconfig at once, because it holds a token, and the other files when the uninstall
/// has `finished`, because no program can need them any more. The sockets of a running agent, and the reports of a
/// running probe, stay. Returns the files that could not be removed. A missing file is no failure.
#[must_use]
pub fn forget_run_directory(directory: &Path, finished: bool) -> Vec<(PathBuf, io::Error)> {
    // A running probe of this node writes and reads its reports.
    let is_probing = is_served(&directory.join(PROBE_LEADER.socket), SockType::Stream);
    let silent = SOCKETS.iter().filter(|(name, kind)| !is_served(&directory.join(name), *kind));
    let is_led = |socket: &str| is_served(&directory.join(socket), SockType::Stream);
    let gone = [&AGENT_LEADER, &PROBE_LEADER].into_iter().filter(|leader| !is_led(leader.socket));
    let gone = gone.flat_map(|leader| [&leader.lock, &leader.socket]);
    let reports = FILES.iter().filter(|_| !is_probing);
    let rest = silent.map(|(name, _)| name).chain(gone).chain(reports).filter(|_| finished);
    let names = TOKENS.iter().chain(rest);
    let removed = names.map(|name| directory.join(name)).map(|path| (fs::remove_file(&path), path));
    let failed = removed.filter_map(|(removed, path)| Some((path, removed.err()?)));
    let failed = failed.filter(|(_, why)| why.kind() != io::ErrorKind::NotFound).collect();
    if finished {
        // A file of another owner keeps the directory.
        let _ = fs::remove_dir(directory);
    }
    failed
}
