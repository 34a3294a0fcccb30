//! Somebody undoes again and again what we do: over what, and who it most likely is, told from what is
//! found in the place of ours. Pure; when it is a fight, `pace` decides.

pub mod rivals;

use std::fmt;
use std::time::Duration;

use super::change::Change;
use super::conflist::Chain;
use super::directory::Directory;
use super::plan::Plan;
use super::seen::{FileName, Snapshot};
use super::wanted::Program;
use rivals::{Rival, at_program, likely};

/// More than five foreign writes in a minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fight {
    /// Over what, and with whom.
    pub matter: Matter,
    /// How often in the last minute.
    pub undone: usize,
    /// When to try again; at once when this pass has written, or has nothing to write.
    pub wait: Option<Duration>,
}

/// What was undone, and by whom most likely.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Matter {
    /// What of ours.
    pub undone: Undone,
    /// Who.
    pub rival: Option<Rival>,
}

/// What of ours was undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undone {
    /// Our entry, in this file where it is in one.
    Entry(Option<FileName>),
    /// A program.
    Program(FileName, Loss),
}

/// What became of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// It is not there.
    Removed,
    /// Another has its name.
    Replaced,
    /// It is itself, with another mode or owner.
    Changed,
}

impl Default for Undone {
    fn default() -> Self {
        Self::Entry(None)
    }
}

impl fmt::Display for Fight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.matter.undone {
            Undone::Entry(None) => f.write_str("our entry is undone")?,
            Undone::Entry(Some(file)) => write!(f, "our entry in {file} is undone")?,
            Undone::Program(name, loss) => write!(f, "the program {name} is {loss}")?,
        }
        match self.matter.rival {
            Some(rival) => write!(f, " again and again, most likely by {}: {}", rival.name, rival.setting),
            None => f.write_str(" again and again, by a plugin's agent that we do not know"),
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

impl Matter {
    /// What has to be put into this directory, and who may have undone it; none when nothing has to be.
    #[must_use]
    pub fn seen(seen: &Snapshot, plan: &Plan, directory: Directory) -> Option<Self> {
        let mut puts = plan.changes.iter().filter(|change| change.puts() && change.directory() == directory);
        let matter = match puts.next()? {
            Change::Place { program } => {
                let loss = loss(seen, program);
                let rival = Some(at_program(&program.name, loss));
                Self { undone: Undone::Program(program.name.clone(), loss), rival }
            }
            Change::Write { file, .. } | Change::Move { from: file, .. } => {
                let bytes = seen.conf.files.get(file).and_then(|file| file.content.as_ref().ok());
                let chain = bytes.and_then(|bytes| Chain::read(bytes).ok());
                let rival = chain.and_then(|chain| likely(&chain.plugins()));
                Self { undone: Undone::Entry(Some(file.clone())), rival }
            }
            _ => Self::default(),
        };
        Some(matter)
    }
}

fn loss(seen: &Snapshot, program: &Program) -> Loss {
    match seen.programs.files.get(&program.name) {
        None => Loss::Removed,
        Some(there) if there.hash == Ok(program.hash) => Loss::Changed,
        Some(_) => Loss::Replaced,
    }
}
