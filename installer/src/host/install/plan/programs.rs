//! Plans which programs are placed and which are removed.

use super::Plan;
use crate::host::install::change::Change;
use crate::host::install::seen::{FileName, Snapshot};
use crate::host::install::wanted::{Install, Leave, Need, Place, Program};
use std::ffi::OsStr;

const MODE: u32 = 0o755;

pub(super) fn place(seen: &Snapshot, install: &Install, need: Need, plan: &mut Plan) {
    let programs = install.programs.iter().filter(|program| program.need == need);
    plan.changes.extend(programs.filter_map(|program| placed(seen, program)));
}

/// Removes stand-ins and further names that are no longer needed. No conf file names them, so their order does
/// not matter.
pub(super) fn retire(seen: &Snapshot, retired: &[Program], plan: &mut Plan) {
    let gone = retired.iter().filter(|program| is_ours(seen, program));
    plan.changes.extend(gone.map(|program| Change::Unplace(program.name.clone())));
}

/// Reports whether the file of that name is the program we bring, or a copy of what an older version placed.
fn is_ours(seen: &Snapshot, program: &Program) -> bool {
    let hash = |name: &OsStr| seen.programs.files.get(name).and_then(|there| there.hash.as_ref().ok());
    let of_before = program.source.file_name().and_then(hash);
    hash(program.name.as_os_str()).is_some_and(|it| *it == program.hash || Some(it) == of_before)
}

fn placed(seen: &Snapshot, program: &Program) -> Option<Change> {
    let stays = seen.programs.files.get(&program.name).is_some_and(|there| {
        // The right bytes in a file that other users may write are not the right program.
        let right =
            there.hash == Ok(program.hash) && there.access.mode == MODE && there.access.is_only_of(seen.us);
        right || program.place == Place::IfAbsent
    });
    (!stays).then(|| Change::Place { program: program.clone() })
}

/// Removes programs. A plugin's program stays as a tombstone while a sandbox may need it for its DEL. The
/// runtime may still cache a chain that was just changed, so the program also stays in the pass that changes
/// the conf.
pub(super) fn take_away(seen: &Snapshot, leave: &Leave, plan: &mut Plan) {
    let conf_is_clean = plan.changes.is_empty();
    let asked_for = |name: &FileName| {
        !conf_is_clean
            || leave.rests
            || name.as_os_str().to_str().is_none_or(|name| seen.cached.may_name(name))
    };
    let mut stays = false;
    for tombstone in &leave.tombstones {
        let Some(there) = seen.programs.files.get(&tombstone.name) else { continue };
        // A stand-in for another plugin's program gives way to the real one.
        let theirs = is_theirs(seen, tombstone);
        stays |= !theirs && asked_for(&tombstone.name);
        match asked_for(&tombstone.name) {
            // During the grace period any readable version answers.
            true if conf_is_clean && leave.rests && there.hash.is_ok() => {}
            true => plan.changes.extend(placed(seen, tombstone)),
            false if theirs => {}
            false => plan.changes.push(Change::Unplace(tombstone.name.clone())),
        }
    }
    let buried = |name: &FileName| leave.tombstones.iter().any(|tombstone| tombstone.name == *name);
    retire(seen, &leave.retired, plan);
    let last = leave.last.iter().filter(|_| !stays);
    for name in leave.programs.iter().filter(|name| !buried(name)).chain(last) {
        if seen.programs.files.contains_key(name) {
            plan.changes.push(Change::Unplace(name.clone()));
        }
    }
}

/// Removes the lock file last, once nothing of ours is left next to it.
pub(super) fn remove_lock(seen: &Snapshot, leave: &Leave, plan: &mut Plan) {
    let goes = |name: &FileName| {
        let unplaced = |change: &Change| matches!(change, Change::Unplace(unplaced) if unplaced == name);
        !seen.programs.files.contains_key(name) || plan.changes.iter().any(unplaced)
    };
    if seen.programs.has_lock && leave.programs.iter().chain(&leave.last).all(goes) {
        plan.changes.push(Change::RemoveLock);
    }
}

/// Reports whether the program under a stand-in's name is another one.
pub(super) fn is_theirs(seen: &Snapshot, stand_in: &Program) -> bool {
    stand_in.place == Place::IfAbsent
        && seen.programs.files.get(&stand_in.name).is_some_and(|there| there.hash != Ok(stand_in.hash))
}
