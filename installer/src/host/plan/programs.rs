//! Plans which programs are placed and which are removed.

use super::Plan;
use crate::host::change::Change;
use crate::host::conflist::ISTIO;
use crate::host::desired::{Install, Placement, PlacementOrder, Program, Uninstall};
use crate::host::observe::{FileName, Hash, ObservedState};
use std::ffi::OsStr;

const MODE: u32 = 0o755;

pub(super) fn place(observed: &ObservedState, install: &Install, need: PlacementOrder, plan: &mut Plan) {
    let programs = install.programs.iter().filter(|program| program.need == need);
    plan.changes.extend(programs.filter_map(|program| placed(observed, program)));
}

/// Removes stand-ins and further names that are no longer needed. No conf file names them, so their order does
/// not matter.
pub(super) fn retire(observed: &ObservedState, retired: &[Program], plan: &mut Plan) {
    let gone = retired.iter().filter(|program| is_ours(observed, program));
    plan.changes.extend(gone.map(|program| Change::RemoveProgram(program.name.clone())));
}

/// Reports whether the file of that name is the image's program, or a copy of the one that an older version installed.
fn is_ours(observed: &ObservedState, program: &Program) -> bool {
    let hash = |name: &OsStr| observed.programs.files.get(name).and_then(|there| there.hash.as_ref().ok());
    let of_installed = program.source.file_name().and_then(hash);
    hash(program.name.as_os_str()).is_some_and(|it| *it == program.hash || Some(it) == of_installed)
}

fn placed(observed: &ObservedState, program: &Program) -> Option<Change> {
    let stays = observed.programs.files.get(&program.name).is_some_and(|there| {
        // A file with the right content is not the right program if other users may write it.
        let right = there.hash == Ok(program.hash)
            && there.access.mode == MODE
            && there.access.is_only_of(observed.us);
        right || program.place == Placement::IfAbsent
    });
    (!stays).then(|| Change::PlaceProgram { program: program.clone() })
}

/// Removes programs. A plugin's program stays as a tombstone while a sandbox may need it for its DEL. The
/// runtime may still cache a chain that was just changed, so the program also stays in the pass that changes
/// the conf.
pub(super) fn remove(observed: &ObservedState, uninstall: &Uninstall, plan: &mut Plan) {
    let conf_is_clean = plan.changes.is_empty();
    let is_needed = |name: &FileName| {
        !conf_is_clean
            || uninstall.in_grace_period
            || name.as_os_str().to_str().is_none_or(|name| observed.cached.may_name(name))
    };
    let mut stays = false;
    for tombstone in &uninstall.tombstones {
        let Some(there) = observed.programs.files.get(&tombstone.name) else { continue };
        stays |= is_needed(&tombstone.name);
        match is_needed(&tombstone.name) {
            // During the grace period any readable version serves a DEL.
            true if conf_is_clean && uninstall.in_grace_period && there.hash.is_ok() => {}
            true => plan.changes.extend(placed(observed, tombstone)),
            false => plan.changes.push(Change::RemoveProgram(tombstone.name.clone())),
        }
    }
    if let Some(InstalledIstio::StandIn(name)) = InstalledIstio::find(observed, uninstall.stand_in) {
        match is_needed(name) {
            true => stays = true,
            false => plan.changes.push(Change::RemoveProgram(name.clone())),
        }
    }
    let is_tombstone = |name: &FileName| uninstall.tombstones.iter().any(|tombstone| tombstone.name == *name);
    retire(observed, &uninstall.retired, plan);
    let last = uninstall.last.iter().filter(|_| !stays);
    for name in uninstall.programs.iter().filter(|name| !is_tombstone(name)).chain(last) {
        if observed.programs.files.contains_key(name) {
            plan.changes.push(Change::RemoveProgram(name.clone()));
        }
    }
}

/// Removes the lock file last, once nothing of ours is left next to it.
pub(super) fn remove_lock(observed: &ObservedState, uninstall: &Uninstall, plan: &mut Plan) {
    let goes = |name: &FileName| {
        let unplaced =
            |change: &Change| matches!(change, Change::RemoveProgram(unplaced) if unplaced == name);
        !observed.programs.files.contains_key(name) || plan.changes.iter().any(unplaced)
    };
    if observed.programs.has_lock && uninstall.programs.iter().chain(&uninstall.last).all(goes) {
        plan.changes.push(Change::RemoveLock);
    }
}

/// The program that has istio-cni's name.
pub(crate) enum InstalledIstio<'a> {
    /// Ours.
    StandIn(&'a FileName),
    /// istio-cni's.
    Own,
}

impl<'a> InstalledIstio<'a> {
    /// `None` when no program has the name. `stand_in`: the hash of our program under it, if there is one.
    pub(crate) fn find(observed: &'a ObservedState, stand_in: Option<Hash>) -> Option<Self> {
        let (name, there) = observed.programs.files.get_key_value(OsStr::new(ISTIO))?;
        Some(match stand_in {
            Some(ours) if there.hash == Ok(ours) => Self::StandIn(name),
            _ => Self::Own,
        })
    }
}
