//! Computes the changes from the observed state to the desired one: pure, and empty if nothing has to be done.
//!
//! This module decides the order of the changes. An install writes the programs that the entry makes the runtime
//! run before any conf file names them: CRI-O skips a network whose program does not respond. The other
//! programs come after the conf file, which does not depend on them. An uninstall removes a program only after
//! no conf file names it.

mod entry_placement;
mod entry_removal;

use std::ffi::OsStr;

use super::auto_shape::{AutoShape, auto_shape};
use super::change::{Change, NewAccess};
use super::conflist::ISTIO;
use super::desired::{
    DesiredState, Install, Placement, PlacementOrder, Program, PutBack, ShapeSetting, Uninstall,
};
use super::judge::{JudgeInput, Judgement, directory_problems, judge};
use super::observe::{
    Access, ConfFile, DROP_IN, Directory, DirectoryState, FileKind, FileName, Hash, NamedFile, ObservedState,
    ProgramFile,
};
use super::problem::Problem;
use entry_removal::{EntryRemoval, remove_unneeded_originals};

/// The changes, and the problems that remain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// In the order in which they are to be made.
    pub changes: Vec<Change>,
    /// What prevents a change, or a pod's redirection after the changes.
    pub problems: Vec<Problem>,
    /// Whether a pod that is started before any change is redirected: the readiness of the node.
    pub judgement: Judgement,
    /// Where `shape: auto` puts the entry, and why; none with another shape.
    pub auto: Option<AutoShape>,
}

impl Plan {
    /// Reports whether there is nothing to do and nothing prevents the redirection.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.changes.is_empty() && !self.problems.iter().any(Problem::blocks)
    }
}

/// The files and the network that have our entry after the changes.
#[derive(Debug, Default)]
struct Kept {
    files: Vec<FileName>,
    network: Option<FileName>,
    /// The file whose original stays beside a drop-in: where sandboxes are unknown, it shows that some need istio-cni's
    /// program.
    replaced: Option<FileName>,
}

#[must_use]
pub fn plan(observed: &ObservedState, desired: &DesiredState) -> Plan {
    match desired {
        DesiredState::Installed(install) => plan_install(observed, install),
        DesiredState::Uninstalled(uninstall) => plan_uninstall(observed, uninstall),
    }
}

fn plan_install(observed: &ObservedState, install: &Install) -> Plan {
    let question = JudgeInput::new(install, observed);
    let judgement = judge(&question);
    let auto = (install.shape == ShapeSetting::Auto).then(|| auto_shape(install, observed));
    let mut plan = Plan { judgement, auto, ..Plan::default() };
    if observed.programs.state == DirectoryState::Present {
        place_programs(observed, install, PlacementOrder::BeforeEntry, &mut plan);
        retire(observed, &install.retired, &mut plan);
        if observed.conf.state == DirectoryState::Present {
            plan_conf(observed, install, &question, &mut plan);
        }
        place_programs(observed, install, PlacementOrder::AfterEntry, &mut plan);
    }
    sweep(observed, &mut plan);
    add_remaining_problems(observed, install, &mut plan);
    plan
}

fn plan_conf(observed: &ObservedState, install: &Install, question: &JudgeInput<'_>, plan: &mut Plan) {
    let site = question.entry_site();
    let removal =
        EntryRemoval { observed, plugin: install.entry.plugin(), put_back: PutBack::Nothing, stand_in: None };
    if site.is_refused {
        // An entry whose program the runtime does not find, or which refuses every call, fails every pod.
        removal.plan_all_except(&Kept::default(), plan);
        return;
    }
    // While the right file for the entry is unknown, an existing entry stays where it is.
    let Some(kept) = entry_placement::put(observed, install, question.shape, &site, plan) else { return };
    removal.plan_all_except(&kept, plan);
    remove_unneeded_originals(observed, &kept, plan);
}

/// Removes the temporary files that a killed process left.
fn sweep(observed: &ObservedState, plan: &mut Plan) {
    plan.changes.extend(observed.conf.has_temporary.then_some(Change::Sweep(Directory::Conf)));
    plan.changes.extend(observed.programs.has_temporary.then_some(Change::Sweep(Directory::Programs)));
}

/// Adds the problems that the changes will not solve. The reason why the entry cannot be written replaces the
/// statement that it is missing.
fn add_remaining_problems(observed: &ObservedState, install: &Install, plan: &mut Plan) {
    let left = match plan.changes.as_slice() {
        [] => plan.judgement.clone(),
        changes => judge(&JudgeInput::new(install, &state_after(observed, changes))),
    };
    let is_explained = plan.problems.iter().any(Problem::blocks);
    let reasons = left.reasons.into_iter().filter(|reason| !(is_explained && reason.is_entry_pending()));
    plan.problems.extend(reasons.chain(left.notes));
}

fn plan_uninstall(observed: &ObservedState, uninstall: &Uninstall) -> Plan {
    let mut plan = Plan::default();
    // A directory that does not exist holds nothing of ours.
    let gone = directory_problems(&observed.conf, &observed.programs).into_iter();
    plan.problems.extend(gone.filter(|problem| !matches!(problem, Problem::Missing(_))));
    let removal = EntryRemoval {
        observed,
        plugin: &uninstall.plugin,
        put_back: uninstall.put_back,
        stand_in: uninstall.stand_in,
    };
    removal.plan_all_except(&Kept::default(), &mut plan);
    remove_unneeded_originals(observed, &Kept::default(), &mut plan);
    removal.report_still_named(&mut plan);
    // While a conf file may still name them, every program stays.
    if !plan.problems.iter().any(Problem::blocks) {
        remove_programs(observed, uninstall, &mut plan);
    }
    sweep(observed, &mut plan);
    remove_lock(observed, uninstall, &mut plan);
    plan
}

/// The mode of a placed program.
const MODE: u32 = 0o755;

/// Places the programs of the image that are needed before or after the entry.
fn place_programs(observed: &ObservedState, install: &Install, need: PlacementOrder, plan: &mut Plan) {
    let programs = install.programs.iter().filter(|program| program.need == need);
    plan.changes.extend(programs.filter_map(|program| placed(observed, program)));
}

/// Removes stand-ins and further names that are no longer needed. No conf file names them, so their order does
/// not matter.
fn retire(observed: &ObservedState, retired: &[Program], plan: &mut Plan) {
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
fn remove_programs(observed: &ObservedState, uninstall: &Uninstall, plan: &mut Plan) {
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
fn remove_lock(observed: &ObservedState, uninstall: &Uninstall, plan: &mut Plan) {
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

/// Predicts the observed state after these changes, as far as `judge` needs it.
fn state_after(observed: &ObservedState, changes: &[Change]) -> ObservedState {
    let mut after = observed.clone();
    let of_us = |mode| Access { mode, uid: observed.us, gid: observed.us };
    for change in changes {
        let (files, programs) = (&mut after.conf.files, &mut after.programs);
        match change {
            Change::PlaceProgram { program } => {
                programs.names.insert(program.name.clone(), NamedFile::Executable);
                let there = ProgramFile { hash: Ok(program.hash), access: of_us(MODE) };
                programs.files.insert(program.name.clone(), there);
            }
            Change::RemoveProgram(name) => {
                programs.names.remove(name);
                programs.files.remove(name);
            }
            Change::Write { file, bytes, access, .. } => {
                let access = match access {
                    NewAccess::Like(_, access) => *access,
                    NewAccess::Ours(mode) => of_us(*mode),
                };
                files.insert(file.clone(), regular(bytes, access));
            }
            Change::Move { from, to, bytes } => {
                let access = files.remove(from).map_or(of_us(0o600), |file| file.access);
                files.insert(to.clone(), regular(bytes, access));
            }
            Change::Remove { file, .. } => drop(files.remove(file)),
            Change::WriteDropIn { network, bytes, mode } => {
                let own = after.conf.networks.entry(network.clone()).or_default();
                own.extend(FileName::new(DROP_IN).map(|name| (name, regular(bytes, of_us(*mode)))));
            }
            Change::RemoveDropIn { network } => {
                let own = after.conf.networks.get_mut(network);
                drop(own.and_then(|files| files.remove(OsStr::new(DROP_IN))));
            }
            Change::Sweep(_) | Change::RemoveLock => {}
        }
    }
    after
}

fn regular(bytes: &[u8], access: Access) -> ConfFile {
    ConfFile { content: Ok(bytes.to_vec()), access, kind: FileKind::Regular }
}
