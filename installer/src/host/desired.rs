//! The desired state of a node: one value for install, upgrade, repair and uninstall.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::conflist::ISTIO;
use super::conflist::entry::Entry;
use super::observe::{FileName, Hash, ObserveScope, SandboxLookup};

/// The desired state of a node.
#[derive(Debug, Clone, PartialEq)]
pub enum DesiredState {
    /// Our entry is installed.
    Installed(Install),
    /// Nothing of Gybe is left, except programs that existing sandboxes need.
    Uninstalled(Uninstall),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Install {
    pub shape: ShapeSetting,
    /// The setting that names the pinned file, for messages.
    pub pinned_by: &'static str,
    pub entry: Entry,
    /// The programs for the host. Those that the entry makes the runtime run are placed before it, in
    /// this order.
    pub programs: Vec<Program>,
    /// Programs that are no longer needed: removed if the file is unchanged.
    pub retired: Vec<Program>,
    /// Whether an istio-cni entry may be replaced.
    pub take_over: TakeOver,
    /// Permission bits of files that belong to Gybe alone: 0600, or 0640 where a group reads them.
    pub mode: u32,
    /// Whether the operator confirmed the program directory.
    pub confirmed: Confirmed,
}

/// Whether the operator confirmed that the runtime looks for plugins in the program directory, although none of
/// the primary plugin's programs is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Confirmed {
    /// The directory's content and the runtime's configuration decide.
    #[default]
    No,
    Yes,
}

/// The setting `shape`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShapeSetting {
    /// The node decides (`auto_shape`).
    Auto,
    Fixed(Shape),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// The last entry of the primary plugin's chain.
    Chained {
        /// The file that the operator named; none for the file that the runtime uses.
        pinned: Option<FileName>,
    },
    /// A standalone network, which Multus selects by name.
    Standalone { file: FileName },
    /// A file in the directory that libcni reads for the primary's network; the primary's file is never
    /// written.
    DropIn,
}

/// Whether an istio-cni entry may be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeOver {
    /// Its agent runs and would restore the entry: wait until it no longer runs.
    Waits,
    /// Its agent does not run, or the operator ordered it.
    Now,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uninstall {
    /// The type of our entry.
    pub plugin: String,
    /// A pinned file, which may have any name.
    pub pinned: Option<FileName>,
    /// Every program that Gybe may have placed, except `last`.
    pub programs: Vec<FileName>,
    /// Further names of our tool: removed if the file is our program and not another of the same name.
    pub retired: Vec<Program>,
    /// The tool. It stays as long as a tombstone stays, so that an operator can finish the uninstall with it.
    pub last: Option<FileName>,
    /// Whether the conf file was changed so recently that tombstones stay, even if no cached result names them.
    pub in_grace_period: bool,
    /// The programs that stay under a plugin's name for as long as an existing sandbox may need them. An ADD that
    /// began with the entry has no cached result yet, so the pass that removes the entry removes no program, and with
    /// `in_grace_period` no pass does.
    pub tombstones: Vec<Program>,
    /// The hash of our program under istio-cni's name, which stays as a tombstone does. `None`: a program of that name
    /// is istio-cni's own, and is left alone.
    pub stand_in: Option<Hash>,
    /// Whether the istio-cni entry that Gybe replaced is restored.
    pub put_back: PutBack,
}

/// Whether the istio-cni entry that Gybe replaced is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutBack {
    Nothing,
    /// It is restored if its program still exists.
    Istio,
}

/// A program for the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its name in the program directory.
    pub name: FileName,
    /// The file to copy it from.
    pub source: PathBuf,
    /// The hash of `source`.
    pub hash: Hash,
    /// How it is tried before anything depends on it.
    pub trial: Trial,
    /// Whether it may replace another file of its name.
    pub place: Placement,
    pub need: PlacementOrder,
}

/// Whether pods depend on a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlacementOrder {
    /// The entry makes the runtime run it, and without it no pod starts: the entry is written after it.
    BeforeEntry,
    /// No pod depends on it. The entry is written first and does not wait for it.
    AfterEntry,
}

/// How a program is tried on this node, before anything depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trial {
    /// A CNI plugin: it has to answer VERSION.
    CniVersion,
    /// Any other program: `--version` has to succeed.
    Version,
}

/// Whether a program may replace another file of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// The name is ours: any file of this name is replaced.
    Always,
    /// A stand-in: placed only if no file has the name.
    IfAbsent,
}

impl DesiredState {
    /// What an observation must include for this desired state.
    #[must_use]
    pub fn interest(&self) -> ObserveScope {
        let (pinned, programs, sandboxes): (_, Vec<&FileName>, _) = match self {
            Self::Installed(install) => {
                let all = install.programs.iter().chain(&install.retired);
                let programs = all.map(|program| &program.name).collect();
                (install.shape.fixed().and_then(Shape::file), programs, SandboxLookup::Skip)
            }
            Self::Uninstalled(leave) => {
                let kept = leave.tombstones.iter().map(|program| &program.name);
                let kept = kept.chain(leave.retired.iter().map(|program| &program.name));
                let programs = leave.programs.iter().chain(&leave.last).chain(kept);
                (leave.pinned.as_ref(), programs.collect(), SandboxLookup::Read)
            }
        };
        let files = pinned.cloned().into_iter().collect();
        let mut programs: BTreeSet<FileName> = programs.into_iter().cloned().collect();
        if matches!(self, Self::Uninstalled(_)) {
            programs.extend(FileName::new(ISTIO).ok());
        }
        ObserveScope { files, programs, sandboxes }
    }
}

impl From<Shape> for ShapeSetting {
    fn from(shape: Shape) -> Self {
        Self::Fixed(shape)
    }
}

impl ShapeSetting {
    /// Returns the configured shape; none for `auto`.
    #[must_use]
    pub fn fixed(&self) -> Option<&Shape> {
        match self {
            Self::Auto => None,
            Self::Fixed(shape) => Some(shape),
        }
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
