//! Out of a node: what goes, what has to stay, and for how long.
//!
//! Two calls are the rule: the first takes the entry out of every file, one some minutes later takes
//! the programs. A sandbox that was being made when the entry went is in no cache yet, and its DEL will
//! ask for the plugin. `gybe` itself goes last, so that there is something to call again.

use super::{Elsewhere, foreseen, rest, settle};
use crate::agent::stand_in::ours;
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

/// What an uninstall came to.
#[derive(Debug)]
pub struct Out {
    /// The pass that took the entry out, and the one that took the last programs, if it came to that.
    pub passes: Vec<Pass>,
    /// What has to stay.
    pub stays: Vec<Stays>,
    /// What was not looked after: it stands in directories of another kind of node.
    pub elsewhere: Elsewhere,
}

/// A program that has to stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stays {
    /// Its name.
    pub program: FileName,
    /// For how long.
    pub until: StaysWhile,
}

/// For how long a program has to stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StaysWhile {
    /// The conf has only just been changed.
    #[error("for {seconds} s yet: a sandbox that was being made just now may still ask for it")]
    JustOut {
        /// Until a sandbox that was being made then is made, or given up.
        seconds: u64,
    },
    /// The cache says so.
    #[error("as long as sandboxes live that were made with it: each asks for it when it goes")]
    Named,
    /// There is no cache to look into.
    #[error("until the node has been drained: which sandboxes were made with it cannot be seen")]
    Unknown,
    /// A file still names it.
    #[error("as long as a conf file names it")]
    InConf,
    /// It could go, and did not.
    #[error("because it could not be removed")]
    Failed,
}

impl Out {
    /// Whether no file names the plugin any more, or would have to be changed.
    #[must_use]
    pub fn is_out(&self) -> bool {
        self.passes.last().is_some_and(|pass| conf_is_clean(&pass.left)) && self.elsewhere.conf.is_empty()
    }

    /// Whether nothing is left to do.
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

/// What leaving this node means: everything that is ours, under whatever name it was placed.
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
        // Looked at above: without the image, by what is there.
        retired: Vec::new(),
        last: FileName::new(TOOL).ok(),
        rests: rest::left(&places.conf, SystemTime::now()).is_some(),
        tombstones: tombstones(places, hash(PLUGIN), image),
        put_back,
    }
}

/// What serves on the node answers DEL, so it is its own tombstone; the image's where it cannot be read.
/// Under istio-cni's name ours is known by being our plugin, of whatever version; what is not that is
/// theirs, and stays. Where nothing is, nothing is ever placed.
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
    let stand_in = ours(&places.programs).unwrap_or_else(|| Hash::of(b"nobody's program"));
    plugin.into_iter().chain(as_it_is(ISTIO, stand_in, Place::IfAbsent)).collect()
}

/// A pinned file may have any name, and an operator need not remember it.
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
    /// What leaving would come to now.
    #[must_use]
    pub fn foreseen(places: &Places, leave: &Leave) -> Plan {
        foreseen(places, &Wanted::Left(leave.clone()), Runtimes::default())
    }

    /// Leaves as far as can be now; the host's root is seen at `root`.
    ///
    /// # Errors
    /// When another gybe is at it.
    pub fn now(places: &Places, leave: &Leave, root: &Path) -> Result<Self, Busy> {
        // It may take several passes until the conf is without us, and no program goes in any of them.
        let first =
            settle(places, &Wanted::Left(Leave { rests: true, ..leave.clone() }), &Runtimes::default())?;
        let clean = conf_is_clean(&first.left);
        let mut passes = vec![first];
        let resting = || rest::left(&places.conf, SystemTime::now());
        if clean && resting().is_none() {
            let over = Leave { rests: false, ..leave.clone() };
            // Once: where somebody else comes between, the conf is not what it was.
            passes.push(pass(places, &Wanted::Left(over), &mut Memory::default())?);
        }
        let seen = look(places, &interest(), &mut Hashes::default());
        let clean = passes.last().is_some_and(|pass| conf_is_clean(&pass.left));
        let stays = stays(&seen, leave, (clean, resting()));
        Ok(Self { passes, stays, elsewhere: Elsewhere::than(places, root) })
    }
}

/// The tombstones that are there, and are not somebody else's program.
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
            // The next second it may go.
            seconds: rest.as_secs() + 1,
        }),
    };
    there.map(|program| Stays { program: program.name.clone(), until: until(program) }).collect()
}
