//! `gybe uninstall`: what is removed, what has to stay, and for how long.
//!
//! Normally it takes two calls: the first removes the entry from every file, one some minutes later removes the
//! programs. A sandbox that was being made while the entry was removed is in no cache yet, and its DEL will
//! need the plugin. `gybe` itself is removed last, so that the second call is possible.

use super::{Elsewhere, foreseen, rest, settle};
use crate::host::image::{Image, OTHER_NAMES, TOOL, every_name};
use crate::host::install::change::Change;
use crate::host::install::conflist::{Chain, ISTIO};
use crate::host::install::loads::Form;
use crate::host::install::perform::Busy;
use crate::host::install::plan::Plan;
use crate::host::install::runtimes::Runtimes;
use crate::host::install::seen::{
    Cached, FileName, Hash, Hashes, Interest, Places, SeenProgram, Snapshot, look,
};
use crate::host::install::wanted::{Leave, Need, Place, Program, PutBack, Trial, Wanted};
use crate::host::install::{Memory, Pass, pass, seen};
use crate::host::settings::PLUGIN;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The result of an uninstall.
#[derive(Debug)]
pub struct Out {
    /// The pass that removed the entry, and the one that removed the programs, if it came to that.
    pub passes: Vec<Pass>,
    /// The programs that have to stay.
    pub stays: Vec<Stays>,
    /// What is in directories of another kind of node, which are not changed.
    pub elsewhere: Elsewhere,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stays {
    pub program: FileName,
    pub until: StaysWhile,
}

/// Why a program has to stay, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StaysWhile {
    /// The conf was changed a moment ago.
    #[error("for another {seconds} s: the DEL of a sandbox that was just being made may need it")]
    JustOut {
        /// Until a sandbox that was being made then exists, or was given up.
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

impl Out {
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
    let touches_programs =
        |change: &Change| matches!(change, Change::Place { .. } | Change::Unplace(_) | Change::RemoveLock);
    left.changes.iter().all(touches_programs)
        && !left.problems.iter().any(crate::host::install::change::Problem::blocks)
}

/// The desired state without Gybe: everything that is ours, under whatever name it was placed.
#[must_use]
pub fn leave(
    places: &Places,
    image: impl FnOnce() -> Option<Image>,
    pinned: Option<FileName>,
    put_back: PutBack,
) -> Leave {
    let seen = look(places, &interest(), &mut Hashes::default());
    let hash = |name: &str| seen.programs.files.get(OsStr::new(name)).and_then(|it| it.hash.clone().ok());
    let tool = hash(TOOL);
    let is_tool = |name: &&str| hash(name).is_some() && hash(name) == tool;
    let names = [PLUGIN].into_iter().chain(OTHER_NAMES.into_iter().filter(is_tool));
    Leave {
        plugin: PLUGIN.to_owned(),
        pinned: pinned.or_else(|| of_any_name(&places.conf)),
        programs: names.filter_map(|name| FileName::new(name).ok()).collect(),
        // Recognized above by the files themselves, because the image may be missing.
        retired: Vec::new(),
        last: FileName::new(TOOL).ok(),
        rests: rest::left(&places.conf, SystemTime::now()).is_some(),
        tombstones: tombstones(places, hash(PLUGIN), image),
        put_back,
    }
}

/// The installed plugin answers DEL, so it is its own tombstone; the image's plugin is, if the installed one
/// cannot be read. Under istio-cni's name our program is recognized as our plugin, of whatever version; any
/// other program is istio-cni's and stays. Where no program is, none is placed.
fn tombstones(places: &Places, hash: Option<Hash>, image: impl FnOnce() -> Option<Image>) -> Vec<Program> {
    let is_there = places.programs.join(PLUGIN).symlink_metadata().is_ok();
    let of_image = || {
        image()?
            .programs(Need::AfterEntry, &BTreeSet::new())
            .into_iter()
            .find(|it| it.name.as_os_str() == PLUGIN)
    };
    let as_it_is = |name: &str, hash, place| {
        let (name, source) = (FileName::new(name).ok()?, places.programs.join(name));
        Some(Program { name, source, hash, trial: Trial::CniVersion, place, need: Need::AfterEntry })
    };
    let plugin = hash.and_then(|hash| as_it_is(PLUGIN, hash, Place::Always));
    let plugin = plugin.or_else(|| is_there.then(of_image).flatten());
    let stand_in = crate::host::istio_cni::our_stand_in(&places.programs)
        .unwrap_or_else(|| Hash::of(b"nobody's program"));
    plugin.into_iter().chain(as_it_is(ISTIO, stand_in, Place::IfAbsent)).collect()
}

/// Finds a pinned file of any name, which an operator need not remember.
pub(super) fn of_any_name(conf: &Path) -> Option<FileName> {
    let entries = fs::read_dir(conf).ok()?.flatten();
    let names = entries.filter_map(|entry| FileName::new(entry.file_name()).ok());
    let mut odd = names.filter(|name| Form::of(name.as_os_str()).is_none() && !name.ends_in(seen::ORIGINAL));
    odd.find(|name| {
        let path = conf.join(name.as_os_str());
        let small = path.symlink_metadata().is_ok_and(|meta| meta.is_file() && meta.len() <= seen::LARGEST);
        let bytes = small.then(|| fs::read(&path).ok()).flatten().unwrap_or_default();
        Chain::read(&bytes).is_ok_and(|chain| chain.entry(PLUGIN).is_some())
    })
}

fn interest() -> Interest {
    Interest::in_programs(every_name())
}

impl Out {
    /// The plan of an uninstall.
    #[must_use]
    pub fn foreseen(places: &Places, leave: &Leave) -> Plan {
        foreseen(places, &Wanted::Left(leave.clone()), Runtimes::default())
    }

    /// Uninstalls as far as is possible now; `root` is the host's root.
    ///
    /// # Errors
    /// If another gybe holds the lock.
    pub fn now(places: &Places, leave: &Leave, root: &Path) -> Result<Self, Busy> {
        // Several passes may be needed to remove the entry, and no program is removed in any of them.
        let first =
            settle(places, &Wanted::Left(Leave { rests: true, ..leave.clone() }), &Runtimes::default())?;
        let clean = conf_is_clean(&first.left);
        let mut passes = vec![first];
        let resting = || rest::left(&places.conf, SystemTime::now());
        if clean && resting().is_none() {
            let over = Leave { rests: false, ..leave.clone() };
            // Only once: if another program writes meanwhile, the conf has changed again.
            passes.push(pass(places, &Wanted::Left(over), &mut Memory::default())?);
        }
        let seen = look(places, &interest(), &mut Hashes::default());
        let clean = passes.last().is_some_and(|pass| conf_is_clean(&pass.left));
        let stays = stays(&seen, leave, (clean, resting()));
        Ok(Self { passes, stays, elsewhere: Elsewhere::than(places, root) })
    }
}

/// The tombstones that are there and are not another owner's program.
fn stays(seen: &Snapshot, leave: &Leave, (clean, rest): (bool, Option<Duration>)) -> Vec<Stays> {
    let ours = |program: &&Program, there: &SeenProgram| {
        program.name.as_os_str() == PLUGIN || there.hash == Ok(program.hash)
    };
    let there = leave
        .tombstones
        .iter()
        .filter(|program| seen.programs.files.get(&program.name).is_some_and(|there| ours(program, there)));
    let until = |program: &Program| match &seen.cached {
        _ if !clean => StaysWhile::InConf,
        Cached::Unknown => StaysWhile::Unknown,
        Cached::Named(plugins)
            if program.name.as_os_str().to_str().is_some_and(|name| plugins.contains(name)) =>
        {
            StaysWhile::Named
        }
        Cached::Named(_) => rest.map_or(StaysWhile::Failed, |rest| StaysWhile::JustOut {
            // Removable from the next full second on.
            seconds: rest.as_secs() + 1,
        }),
    };
    there.map(|program| Stays { program: program.name.clone(), until: until(program) }).collect()
}
