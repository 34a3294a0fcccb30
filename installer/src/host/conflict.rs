//! Foreign rewrites of one directory: how often other programs undo our changes, when that is a conflict, the rate
//! limit of our writes during a conflict, and the program that most likely causes it. Pure.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use super::change::Change;
use super::conflist::{ISTIO, PluginChain};
use super::desired::Program;
use super::image::OTHER_NAMES;
use super::observe::{Directory, FileName, ObservedState};
use super::plan::Plan;
use crate::retry::RateLimit;

/// More foreign rewrites than this in [`PERIOD`] are a conflict.
const MAX_REWRITES: usize = 5;
const PERIOD: Duration = Duration::from_secs(60);
/// A foreign rewrite that follows the repair of another one within this time is a rewriter's: the next one may come at
/// any moment. Counted from the end of the repair, which a slow disk may delay for longer than this.
const REWRITER_PERIOD: Duration = Duration::from_secs(10);

/// The writes that are allowed in a conflict. Pods that start while the entry is missing are outside the mesh, so the
/// agent restores it at once up to this rate: every write of a conf file makes the runtime load its networks again. A
/// program has megabytes, and is tried before it is placed.
fn rate_limit(directory: Directory) -> RateLimit {
    match directory {
        Directory::Conf => RateLimit::new(10, Duration::from_millis(500)),
        Directory::Programs => RateLimit::new(1, Duration::from_secs(5)),
    }
}

/// The foreign rewrites of one directory.
#[derive(Debug)]
pub struct ConflictTracker {
    directory: Directory,
    rewritten_at: VecDeque<Instant>,
    /// When a rewrite was last repaired, by the agent or by the other program.
    repaired_at: Option<Instant>,
    /// Whether the last rewrite came before another one was repaired, or less than [`REWRITER_PERIOD`] after that.
    has_rewriter: bool,
    last: LastState,
    limit: RateLimit,
    counts: RewriteCounts,
    /// The last rewrite: a conflict is reported also while nothing has to be done.
    rewrite: ForeignRewrite,
}

/// The state in which the directory was last found or left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastState {
    /// The directory has not been as desired since the desired state changed.
    Unknown,
    AsDesired,
    /// Another program undid our change, and the agent has not repaired it yet.
    Undone,
}

/// Counters since the start of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RewriteCounts {
    /// Observed foreign rewrites that undid our changes.
    pub rewrites: u64,
    /// Passes that repaired them.
    pub repairs: u64,
    /// Whether a change of ours is undone now.
    pub is_undone: bool,
}

/// How the writing of a pass ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOutcome {
    Complete,
    /// Another program wrote first; the changes before that were made.
    Overtaken,
    /// The system refused a step.
    Failed,
}

impl ConflictTracker {
    #[must_use]
    pub fn new(directory: Directory) -> Self {
        let (rewritten_at, repaired_at, has_rewriter, counts, rewrite) = Default::default();
        Self {
            directory,
            rewritten_at,
            repaired_at,
            has_rewriter,
            last: LastState::Unknown,
            limit: rate_limit(directory),
            counts,
            rewrite,
        }
    }

    /// Records the object that the plan has to write, and the program that may have undone it, for the report of a
    /// conflict.
    pub fn identify(&mut self, snapshot: &ObservedState, plan: &Plan) {
        if let Some(rewrite) = ForeignRewrite::of(snapshot, plan, self.directory) {
            self.rewrite = rewrite;
        }
    }

    /// Records a plan made at `now`, and returns how long its writes have to wait; none if they need not wait.
    /// A change that `failed_before` was never made, so it does not count as a rewrite.
    pub fn observe(
        &mut self,
        plan: &Plan,
        failed_before: impl Fn(&Change) -> bool,
        now: Instant,
    ) -> Option<Duration> {
        let writes = self.writes(plan);
        match self.last {
            LastState::AsDesired if self.written(plan).any(|change| !failed_before(change)) => {
                self.count_rewrite(now);
            }
            // While another problem blocks, such as a primary's file that has gone, nothing is repaired yet; the
            // next plan shows whether the entry was undone.
            _ if !writes && self.is_free(plan) => self.set_as_desired(now),
            _ => {}
        }
        self.rewritten_at.retain(|at| now.saturating_duration_since(*at) < PERIOD);
        let wait = self.limit.wait(now);
        (writes && self.is_conflict() && !wait.is_zero()).then_some(wait)
    }

    /// Records a write and the plan that is `left` after it, without deferred changes. A change that is left although
    /// it was written was undone before the next observation.
    pub fn wrote(&mut self, outcome: WriteOutcome, left: &Plan, now: Instant) {
        self.limit.count(now);
        let is_left = self.writes(left);
        if self.last == LastState::Undone && (outcome == WriteOutcome::Complete || !is_left) {
            self.counts.repairs += 1;
            self.set_as_desired(now);
        }
        match (is_left, outcome) {
            (true, WriteOutcome::Complete | WriteOutcome::Overtaken) => self.count_rewrite(now),
            // Everything is written, whatever other problem the directory has.
            (false, WriteOutcome::Complete) => self.set_as_desired(now),
            (false, _) if self.is_free(left) => self.set_as_desired(now),
            (true, WriteOutcome::Failed) | (false, _) => {}
        }
    }

    fn set_as_desired(&mut self, now: Instant) {
        if self.last == LastState::Undone {
            self.repaired_at = Some(now);
        }
        self.last = LastState::AsDesired;
    }

    fn count_rewrite(&mut self, now: Instant) {
        let is_recent = |at| now.saturating_duration_since(at) < REWRITER_PERIOD;
        self.has_rewriter = self.last == LastState::Undone || self.repaired_at.is_some_and(is_recent);
        self.rewritten_at.push_back(now);
        self.counts.rewrites += 1;
        self.last = LastState::Undone;
    }

    fn writes(&self, plan: &Plan) -> bool {
        self.written(plan).next().is_some()
    }

    fn written<'a>(&self, plan: &'a Plan) -> impl Iterator<Item = &'a Change> {
        let directory = self.directory;
        plan.changes.iter().filter(move |change| change.creates() && change.directory() == directory)
    }

    fn is_free(&self, plan: &Plan) -> bool {
        !plan.problems.iter().any(|problem| problem.blocks() && problem.directory() == self.directory)
    }

    #[must_use]
    pub fn counts(&self) -> RewriteCounts {
        RewriteCounts { is_undone: self.last == LastState::Undone, ..self.counts }
    }

    /// Records that the desired state changed: the next differences are not foreign rewrites.
    pub fn desired_state_changed(&mut self) {
        if self.last == LastState::AsDesired {
            self.last = LastState::Unknown;
        }
    }

    /// Returns how long from `now` on another rewrite has to be expected: while the last one is not repaired, for the
    /// whole ten seconds. None after a single rewrite.
    #[must_use]
    pub fn expected_for(&self, now: Instant) -> Option<Duration> {
        let since = if self.last == LastState::Undone { now } else { self.repaired_at? };
        let left = REWRITER_PERIOD.saturating_sub(now.saturating_duration_since(since));
        (self.has_rewriter && !left.is_zero()).then_some(left)
    }

    /// Returns the conflict, if there is one. `wait` is the time until the next write, from [`Self::observe`].
    #[must_use]
    pub fn conflict(&self, wait: Option<Duration>) -> Option<Conflict> {
        let rewrites = self.rewritten_at.len();
        self.is_conflict().then(|| Conflict { rewrite: self.rewrite.clone(), rewrites, wait })
    }

    fn is_conflict(&self) -> bool {
        self.rewritten_at.len() > MAX_REWRITES
    }
}

/// More than `MAX_REWRITES` foreign rewrites of a directory in a minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The last of them.
    pub rewrite: ForeignRewrite,
    /// The number of rewrites in the last minute.
    pub rewrites: usize,
    /// The time until the next write; none when this pass has written, or has nothing to write.
    pub wait: Option<Duration>,
}

/// A change of ours that another program undid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForeignRewrite {
    pub undone: Undone,
    /// The program that most likely did it.
    pub other_owner: Option<OtherOwner>,
}

/// The object that was undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undone {
    /// Our entry, and the file that should contain it; none for a drop-in.
    Entry(Option<FileName>),
    Program(FileName, Loss),
}

/// What happened to a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    Removed,
    /// Another program has its name.
    Replaced,
    /// Its mode or owner differs.
    Changed,
}

impl Default for Undone {
    fn default() -> Self {
        Self::Entry(None)
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rewrite.undone {
            Undone::Entry(None) => f.write_str("the entry of gybe-cni is undone")?,
            Undone::Entry(Some(file)) => write!(f, "the entry of gybe-cni in {file} is undone")?,
            Undone::Program(name, loss) => write!(f, "the program {name} is {loss}")?,
        }
        match self.rewrite.other_owner {
            Some(owner) => write!(f, " again and again, most likely by {}: {}", owner.name, owner.setting),
            None => f.write_str(" again and again, by the agent of an unknown plugin"),
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Removed => "removed",
            Self::Replaced => "replaced",
            Self::Changed => "given another mode or owner",
        })
    }
}

impl ForeignRewrite {
    /// Returns the first object that the plan has to write into this directory, and the program that may have undone
    /// it; none when the plan writes nothing there.
    fn of(snapshot: &ObservedState, plan: &Plan, directory: Directory) -> Option<Self> {
        let mut writes =
            plan.changes.iter().filter(|change| change.creates() && change.directory() == directory);
        let rewrite = match writes.next()? {
            Change::PlaceProgram { program } => {
                let loss = loss(snapshot, program);
                let other_owner = Some(likely_at_program(&program.name, loss));
                Self { undone: Undone::Program(program.name.clone(), loss), other_owner }
            }
            Change::Write { file, .. } | Change::Move { from: file, .. } => {
                let bytes = snapshot.conf.files.get(file).and_then(|file| file.content.as_ref().ok());
                let chain = bytes.and_then(|bytes| PluginChain::read(bytes).ok());
                let other_owner = chain.and_then(|chain| likely(&chain.plugins()));
                Self { undone: Undone::Entry(Some(file.clone())), other_owner }
            }
            _ => Self::default(),
        };
        Some(rewrite)
    }
}

fn loss(snapshot: &ObservedState, program: &Program) -> Loss {
    match snapshot.programs.files.get(&program.name) {
        None => Loss::Removed,
        Some(file) if file.hash == Ok(program.hash) => Loss::Changed,
        Some(_) => Loss::Replaced,
    }
}

/// Another program that writes into a node's directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherOwner {
    pub name: &'static str,
    /// The setting of that program that ends the conflict.
    pub setting: &'static str,
}

// In the order of likelihood: agents that remove other plugins' files come first.
const KNOWN: [(&str, OtherOwner); 5] = [
    ("cilium-cni", OtherOwner { name: "the Cilium agent", setting: "Helm value cni.exclusive=false" }),
    (
        "istio-cni",
        OtherOwner {
            name: "istio-cni's agent",
            setting: "if istio-cni serves ambient pods, keep it and exclude this node from Gybe; otherwise remove the \
                      DaemonSet istio-cni-node, or set take_over: now (--take-over now)",
        },
    ),
    (
        "linkerd-cni",
        OtherOwner { name: "linkerd-cni's agent", setting: "one mesh per node: remove one of the two" },
    ),
    (
        "multus",
        OtherOwner {
            name: "Multus",
            setting: "standalone mode, or a fixed file instead of --multus-conf-file=auto",
        },
    ),
    (
        "multus-shim",
        OtherOwner {
            name: "the Multus daemon",
            setting: "standalone mode, or multusConfigFile other than auto",
        },
    ),
];

/// Returns the program that most likely restores a chain of these plugins.
#[must_use]
pub fn likely(plugins: &[&str]) -> Option<OtherOwner> {
    KNOWN.iter().find(|(plugin, _)| plugins.contains(plugin)).map(|(_, owner)| *owner)
}

// istio-cni's agent copies the programs of its image, and removes its plugin when it ends (docs/ISTIO.md, section 5).
const ISTIO_PROGRAMS: OtherOwner = OtherOwner {
    name: "istio-cni's container install-cni",
    setting: "if istio-cni serves ambient pods, keep it and exclude this node from Gybe; otherwise remove the DaemonSet \
              istio-cni-node",
};
const ISTIO_OTHER_PROGRAMS: OtherOwner = OtherOwner {
    name: "istio-cni's container install-cni",
    setting: "take the name out of also_as (--also-as); or, without ambient pods, remove the DaemonSet istio-cni-node",
};
// No other project has programs of these names.
const ANOTHER_GYBE: OtherOwner = OtherOwner {
    name: "an agent of another version of Gybe",
    setting: "one DaemonSet of Gybe for a node: remove one of the two",
};
const TIDY: OtherOwner = OtherOwner {
    name: "a node's configuration management or malware scanner that removes files unknown to it",
    setting: "let it leave gybe and gybe-cni there",
};
const MODES: OtherOwner = OtherOwner {
    name: "a program that sets modes and owners in that directory, or a file system that does not store them",
    setting: "let the programs there be owned by root and have mode 0755",
};

/// Returns the program that likely removes or changes the program `name`.
#[must_use]
pub fn likely_at_program(name: &FileName, loss: Loss) -> OtherOwner {
    match (name.as_os_str().to_str(), loss) {
        (Some(ISTIO), _) => ISTIO_PROGRAMS,
        (Some(name), _) if OTHER_NAMES.contains(&name) => ISTIO_OTHER_PROGRAMS,
        (_, Loss::Replaced) => ANOTHER_GYBE,
        (_, Loss::Removed) => TIDY,
        (_, Loss::Changed) => MODES,
    }
}
