//! From what was seen and what is wanted to the steps between: pure, and empty when all is well.
//!
//! Order is decided here. Going in, the programs that the entry makes a runtime run stand before any conf
//! that names them: CRI-O drops a network whose program does not answer. The others come after the conf,
//! which does not wait for them. Going out, no conf names a program before it is taken away.

mod chained;
mod drop_in;
mod originals;
mod out;
mod programs;
mod standalone;
mod target;

pub(crate) use target::alone;

use super::change::{Change, Problem};
use super::directory::Directory;
use super::seen::{FileName, Snapshot, Standing};
use super::wanted::{Install, Leave, Need, PutBack, Shape, Wanted};

/// The steps, in order, and what stands in the way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// To be taken in this order.
    pub changes: Vec<Change>,
    /// To be told.
    pub problems: Vec<Problem>,
}

impl Plan {
    /// Whether the node is as wanted: what "ready" means.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.changes.is_empty() && !self.problems.iter().any(Problem::blocks)
    }
}

/// What has to be done.
#[must_use]
pub fn plan(seen: &Snapshot, wanted: &Wanted) -> Plan {
    let mut plan = Plan::default();
    plan.problems.extend(standing(seen));
    match wanted {
        Wanted::Installed(install) => into(seen, install, &mut plan),
        Wanted::Left(leave) => out_of(seen, leave, &mut plan),
    }
    let litter = [(seen.conf.litter, Directory::Conf), (seen.programs.litter, Directory::Programs)];
    plan.changes.extend(litter.iter().filter(|(there, _)| *there).map(|(_, place)| Change::Sweep(*place)));
    plan
}

fn standing(seen: &Snapshot) -> Vec<Problem> {
    let places = [(seen.programs.standing, Directory::Programs), (seen.conf.standing, Directory::Conf)];
    let problem = |(standing, directory)| match standing {
        Standing::There => None,
        Standing::Missing => Some(Problem::Missing(directory)),
        Standing::Deleted => Some(Problem::Deleted(directory)),
        Standing::Refused(why) => Some(Problem::Unreadable(directory, why)),
    };
    places.into_iter().filter_map(problem).collect()
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
    let kept = match &install.shape {
        Shape::Chained { pinned } => chained::put(seen, install, pinned.as_ref(), plan),
        Shape::Standalone { file } => standalone::put(seen, install, file, plan),
        Shape::DropIn => drop_in::put(seen, install, plan),
    };
    if !matches!(install.shape, Shape::Standalone { .. }) {
        plan.problems.extend(alone(seen, install.entry.plugin()));
    }
    // While it is not known where the entry belongs, it stays wherever it is.
    let Some(kept) = kept else { return };
    let out = out::Out { seen, plugin: install.entry.plugin(), put_back: PutBack::Nothing, stand_ins: &[] };
    out.of_every_file(|file| kept.files.contains(file), plan);
    drop_in::take_out(seen, kept.network.as_ref(), plan);
    originals::forget(seen, |original| kept.files.contains(original), plan);
}

fn out_of(seen: &Snapshot, leave: &Leave, plan: &mut Plan) {
    // Without a directory there is nothing of ours in it.
    plan.problems.retain(|problem| !matches!(problem, Problem::Missing(_)));
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
