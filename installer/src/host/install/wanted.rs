//! What an operator wants of a node: a value, the same for install, upgrade, heal and uninstall.

use std::ffi::OsStr;
use std::path::PathBuf;

use super::change::ProgramFault;
use super::entry::Entry;
use super::judge::Question;
use super::seen::{FileName, Hash, Interest, Sandboxes, Snapshot};

/// The state a node is to be in.
#[derive(Debug, Clone, PartialEq)]
pub enum Wanted {
    /// In the chain.
    Installed(Install),
    /// Out of it.
    Left(Leave),
}

/// How to be in.
#[derive(Debug, Clone, PartialEq)]
pub struct Install {
    /// Where the entry goes.
    pub shape: Shape,
    /// The setting that names the pinned file, where one is pinned.
    pub pinned_by: &'static str,
    /// The plugin's entry.
    pub entry: Entry,
    /// The programs for the host; those that pods depend on are placed before the entry, in this order.
    pub programs: Vec<Program>,
    /// What it needs no more: taken away where it is still the very same.
    pub retired: Vec<Program>,
    /// What to do about an istio-cni entry.
    pub take_over: TakeOver,
    /// Permission bits of files that are ours alone: 0600, or 0640 where a group reads them.
    pub mode: u32,
    /// What the operator says about the program directory.
    pub confirmed: Confirmed,
}

/// Whether the operator says that the runtime looks for plugins in the program directory, though none of the
/// primary's is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Confirmed {
    /// It is judged by what is there, and by the runtime's configuration.
    #[default]
    No,
    /// It does.
    Yes,
}

impl Install {
    /// Whether a pod that is started on this node meets what is wanted.
    #[must_use]
    pub fn question<'a>(&'a self, seen: &'a Snapshot) -> Question<'a> {
        Question {
            conf: &seen.conf,
            programs: &seen.programs,
            runtimes: &seen.runtimes,
            plugin: self.entry.plugin(),
            fault: self.fault(seen),
            shape: &self.shape,
            confirmed: self.confirmed,
        }
    }

    /// Another build than the wanted one serves too, once it has answered.
    fn fault(&self, seen: &Snapshot) -> Option<ProgramFault> {
        let name = OsStr::new(self.entry.plugin());
        let Some(there) = seen.programs.files.get(name) else { return Some(ProgramFault::Missing) };
        let mut ours = self.programs.iter().filter(|program| program.name.as_os_str() == name);
        let is_right = ours.any(|program| there.hash == Ok(program.hash)) || seen.answering.contains(name);
        ProgramFault::of(there.access, seen.us).or_else(|| (!is_right).then_some(ProgramFault::Another))
    }
}

/// Where the entry goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// Last in the primary's chain.
    Chained {
        /// The file, where the operator named it; else the one the runtime takes.
        pinned: Option<FileName>,
    },
    /// A network of its own, which Multus calls by name.
    Standalone {
        /// Its file.
        file: FileName,
    },
    /// In the directory libcni keeps for the primary's network; the primary's file is never written.
    DropIn,
}

/// Whether an istio-cni entry may be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeOver {
    /// Its agent lives and would put it back: wait for it to go.
    Waits,
    /// It is gone, or the operator said so.
    Now,
}

/// How to be out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leave {
    /// The type of our entry.
    pub plugin: String,
    /// A pinned file, which may have any name.
    pub pinned: Option<FileName>,
    /// Every program we may have placed, but for the last.
    pub programs: Vec<FileName>,
    /// Further names of ours: taken away where it is our program, and no namesake.
    pub retired: Vec<Program>,
    /// The tool: as long as a tombstone stays it does, so that there is something to finish with.
    pub last: Option<FileName>,
    /// Whether tombstones stay, asked for or not: the conf has only just been changed.
    pub rests: bool,
    /// What stays under a plugin's name for as long as a living sandbox may ask for it. An ADD that
    /// began under the old conf is in no cache yet: so it goes in a later pass than the conf, and
    /// whoever wants to be sure lets some minutes pass between the two.
    pub tombstones: Vec<Program>,
    /// Whether an istio-cni entry we replaced comes back.
    pub put_back: PutBack,
}

/// Whether an istio-cni entry we replaced comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutBack {
    /// It stays away.
    Nothing,
    /// It does, if its program is still there.
    Istio,
}

/// A program for the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its name in the directory of plugins.
    pub name: FileName,
    /// Where to copy it from.
    pub source: PathBuf,
    /// What it must be.
    pub hash: Hash,
    /// How it shows that it runs here.
    pub trial: Trial,
    /// Whether it may replace another.
    pub place: Place,
    /// Whether pods depend on it.
    pub need: Need,
}

/// Whether pods depend on a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The entry makes the runtime run it: without it no pod starts, so the entry waits for it.
    BeforeEntry,
    /// No pod depends on it. The entry comes first, and does not wait for it.
    AfterEntry,
}

/// How a program shows that it runs on this node, before anything depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trial {
    /// A CNI plugin: it answers VERSION.
    CniVersion,
    /// Any other: `--version` succeeds.
    Version,
}

/// Whether a program may replace another of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It belongs there.
    Always,
    /// A stand-in: only where nothing is.
    IfAbsent,
}

impl Wanted {
    /// What a look must include to judge this.
    #[must_use]
    pub fn interest(&self) -> Interest {
        let (pinned, programs, sandboxes): (_, Vec<&FileName>, _) = match self {
            Self::Installed(install) => {
                let all = install.programs.iter().chain(&install.retired);
                let programs = all.map(|program| &program.name).collect();
                (install.shape.file(), programs, Sandboxes::Unasked)
            }
            Self::Left(leave) => {
                let kept = leave.tombstones.iter().map(|program| &program.name);
                let kept = kept.chain(leave.retired.iter().map(|program| &program.name));
                let programs = leave.programs.iter().chain(&leave.last).chain(kept);
                (leave.pinned.as_ref(), programs.collect(), Sandboxes::Asked)
            }
        };
        let files = pinned.cloned().into_iter().collect();
        Interest { files, programs: programs.into_iter().cloned().collect(), sandboxes }
    }
}

impl Shape {
    fn file(&self) -> Option<&FileName> {
        match self {
            Self::Chained { pinned } => pinned.as_ref(),
            Self::Standalone { file } => Some(file),
            Self::DropIn => None,
        }
    }
}
