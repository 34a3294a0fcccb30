//! From what was seen and what is wanted to the steps between: pure, and empty when all is well.
//!
//! Order is decided here. Going in, the programs that the entry makes a runtime run stand before any conf
//! that names them: CRI-O drops a network whose program does not answer. The others come after the conf,
//! which does not wait for them. Going out, no conf names a program before it is taken away.

mod after;
mod chained;
mod drop_in;
mod originals;
mod out;
mod programs;
mod standalone;
mod target;

use super::change::{Change, Problem};
use super::directory::Directory;
use super::judge::{Judgement, elsewhere, judge, standing};
use super::seen::{FileName, Snapshot, Standing};
use super::wanted::{Install, Leave, Need, PutBack, Shape, Wanted};

/// The steps, in order, and what stands in the way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// To be taken in this order.
    pub changes: Vec<Change>,
    /// What keeps changes from being made, or from being enough.
    pub problems: Vec<Problem>,
    /// What a pod meets that is started now, before any change: it meets Gybe when the node is ready.
    pub judgement: Judgement,
}

impl Plan {
    /// Whether nothing is left to do, and nothing stands in the way.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.changes.is_empty() && !self.problems.iter().any(Problem::blocks)
    }
}

/// What has to be done.
#[must_use]
pub fn plan(seen: &Snapshot, wanted: &Wanted) -> Plan {
    let mut plan = Plan::default();
    match wanted {
        Wanted::Installed(install) => into(seen, install, &mut plan),
        Wanted::Left(leave) => out_of(seen, leave, &mut plan),
    }
    let litter = [(seen.conf.litter, Directory::Conf), (seen.programs.litter, Directory::Programs)];
    plan.changes.extend(litter.iter().filter(|(there, _)| *there).map(|(_, place)| Change::Sweep(*place)));
    match wanted {
        Wanted::Installed(install) => {
            plan.judgement = judge(&install.question(seen));
            not_enough(seen, install, &mut plan);
        }
        Wanted::Left(leave) => programs::remove_lock(seen, leave, &mut plan),
    }
    plan
}

/// What the changes do not mend. Why the entry is not written says more than that it is not there.
fn not_enough(seen: &Snapshot, install: &Install, plan: &mut Plan) {
    let left = match plan.changes.as_slice() {
        [] => plan.judgement.clone(),
        changes => judge(&install.question(&after::after(seen, changes))),
    };
    let is_explained = plan.problems.iter().any(Problem::blocks);
    let follows = |problem: &Problem| matches!(problem, Problem::NotIn { .. } | Problem::NotWritten(_));
    let reasons = left.reasons.into_iter().filter(|reason| !(is_explained && follows(reason)));
    plan.problems.extend(reasons.chain(left.notes));
}

fn into(seen: &Snapshot, install: &Install, plan: &mut Plan) {
    if seen.programs.standing != Standing::There {
        return;
    }
    programs::place(seen, install, Need::BeforeEntry, plan);
    programs::retire(seen, &install.retired, plan);
    if seen.conf.standing == Standing::There {
        into_conf(seen, install, plan);
    }
    programs::place(seen, install, Need::AfterEntry, plan);
}

fn into_conf(seen: &Snapshot, install: &Install, plan: &mut Plan) {
    let out = out::Out { seen, plugin: install.entry.plugin(), put_back: PutBack::Nothing, stand_ins: &[] };
    let is_elsewhere = !elsewhere(&install.question(seen)).is_empty();
    let kept = match &install.shape {
        Shape::Chained { .. } | Shape::DropIn if is_elsewhere => {
            // An entry that names a program which the runtime does not find fails every pod.
            out.of_every_file(|_| false, plan);
            drop_in::take_out(seen, None, plan);
            return;
        }
        Shape::Chained { pinned } => chained::put(seen, install, pinned.as_ref(), plan),
        Shape::Standalone { file } => standalone::put(seen, install, file, plan),
        Shape::DropIn => drop_in::put(seen, install, plan),
    };
    // While it is not known where the entry belongs, it stays wherever it is.
    let Some(kept) = kept else { return };
    out.of_every_file(|file| kept.files.contains(file), plan);
    drop_in::take_out(seen, kept.network.as_ref(), plan);
    originals::forget(seen, |original| kept.files.contains(original), plan);
}

fn out_of(seen: &Snapshot, leave: &Leave, plan: &mut Plan) {
    // Without a directory there is nothing of ours in it.
    let gone = standing(&seen.conf, &seen.programs).into_iter();
    plan.problems.extend(gone.filter(|problem| !matches!(problem, Problem::Missing(_))));
    let out =
        out::Out { seen, plugin: &leave.plugin, put_back: leave.put_back, stand_ins: &leave.tombstones };
    out.of_every_file(|_| false, plan);
    drop_in::take_out(seen, None, plan);
    originals::forget(seen, |_| false, plan);
    out.still_named(plan);
    if plan.problems.iter().any(Problem::blocks) {
        // As long as something may still name them, every program stays.
        return;
    }
    programs::take_away(seen, leave, plan);
}

/// Files that hold our entry as wanted, or are about to.
#[derive(Debug, Default)]
struct Kept {
    files: Vec<FileName>,
    network: Option<FileName>,
}
