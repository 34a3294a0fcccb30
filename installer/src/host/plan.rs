//! Computes the changes from the observed state to the desired one: pure, and empty if nothing has to be done.
//!
//! This module decides the order of the changes. An install writes the programs that the entry makes the runtime
//! run before any conf file names them: CRI-O skips a network whose program does not respond. The other
//! programs come after the conf file, which does not depend on them. An uninstall removes a program only after
//! no conf file names it.

mod entry_placement;
mod entry_removal;
mod programs;

pub(crate) use programs::InstalledIstio;

use super::change::{Change, state_after};
use super::desired::{DesiredState, Install, PlacementOrder, PutBack, Shape, Uninstall};
use super::judge::{JudgeInput, Judgement, directory_problems, elsewhere, judge, unsupported};
use super::observe::{Directory, DirectoryState, ObservedState};
use super::problem::Problem;
use entry_removal::{EntryRemoval, Kept, remove_unneeded_originals};

/// The changes, and the problems that remain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// In the order in which they are to be made.
    pub changes: Vec<Change>,
    /// What prevents a change, or a pod's redirection after the changes.
    pub problems: Vec<Problem>,
    /// Whether a pod that is started before any change is redirected: the readiness of the node.
    pub judgement: Judgement,
}

impl Plan {
    /// Reports whether there is nothing to do and nothing prevents the redirection.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.changes.is_empty() && !self.problems.iter().any(Problem::blocks)
    }
}

#[must_use]
pub fn plan(observed: &ObservedState, desired: &DesiredState) -> Plan {
    let mut plan = Plan::default();
    match desired {
        DesiredState::Installed(install) => plan_install(observed, install, &mut plan),
        DesiredState::Uninstalled(uninstall) => plan_uninstall(observed, uninstall, &mut plan),
    }
    plan.changes.extend(observed.conf.has_temporary.then_some(Change::Sweep(Directory::Conf)));
    plan.changes.extend(observed.programs.has_temporary.then_some(Change::Sweep(Directory::Programs)));
    match desired {
        DesiredState::Installed(install) => {
            plan.judgement = judge(&JudgeInput::new(install, observed));
            add_remaining_problems(observed, install, &mut plan);
        }
        DesiredState::Uninstalled(uninstall) => programs::remove_lock(observed, uninstall, &mut plan),
    }
    plan
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

fn plan_install(observed: &ObservedState, install: &Install, plan: &mut Plan) {
    if observed.programs.state != DirectoryState::Present {
        return;
    }
    programs::place(observed, install, PlacementOrder::BeforeEntry, plan);
    programs::retire(observed, &install.retired, plan);
    if observed.conf.state == DirectoryState::Present {
        plan_conf(observed, install, plan);
    }
    programs::place(observed, install, PlacementOrder::AfterEntry, plan);
}

fn plan_conf(observed: &ObservedState, install: &Install, plan: &mut Plan) {
    let removal =
        EntryRemoval { observed, plugin: install.entry.plugin(), put_back: PutBack::Nothing, stand_in: None };
    let question = JudgeInput::new(install, observed);
    let is_elsewhere = !elsewhere(&question).is_empty();
    let is_refused = question.network_for_entry().as_ref().and_then(unsupported).is_some();
    let is_shared = !matches!(install.shape, Shape::Standalone { .. });
    if is_shared && (is_elsewhere || is_refused) {
        // An entry whose program the runtime does not find, or which refuses every call, fails every pod.
        removal.plan_all_except(&Kept::default(), plan);
        return;
    }
    // While the right file for the entry is unknown, an existing entry stays where it is.
    let Some(kept) = entry_placement::put(observed, install, plan) else { return };
    removal.plan_all_except(&kept, plan);
    remove_unneeded_originals(observed, &kept, plan);
}

fn plan_uninstall(observed: &ObservedState, uninstall: &Uninstall, plan: &mut Plan) {
    // A directory that does not exist holds nothing of ours.
    let gone = directory_problems(&observed.conf, &observed.programs).into_iter();
    plan.problems.extend(gone.filter(|problem| !matches!(problem, Problem::Missing(_))));
    let removal = EntryRemoval {
        observed,
        plugin: &uninstall.plugin,
        put_back: uninstall.put_back,
        stand_in: uninstall.stand_in,
    };
    removal.plan_all_except(&Kept::default(), plan);
    remove_unneeded_originals(observed, &Kept::default(), plan);
    removal.report_still_named(plan);
    if plan.problems.iter().any(Problem::blocks) {
        // While a conf file may still name them, every program stays.
        return;
    }
    programs::remove(observed, uninstall, plan);
}
