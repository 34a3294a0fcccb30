//! One change of a node's files, as a value.

use std::fmt;

use super::desired::Program;
use super::observe::{Access, DROP_IN, Directory, FileName};

/// A change. After each one the runtime can load the conf directory. It fails if another program has written the file
/// since the plan was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    PlaceProgram {
        program: Program,
    },
    RemoveProgram(FileName),
    Write {
        file: FileName,
        /// The new content.
        bytes: Vec<u8>,
        /// The new file's mode and owner.
        access: NewAccess,
        /// The expected current content; none if the file does not exist.
        instead_of: Option<Vec<u8>>,
    },
    Move {
        from: FileName,
        /// The new name. An existing file of this name is replaced.
        to: FileName,
        /// The expected current content.
        bytes: Vec<u8>,
    },
    Remove {
        file: FileName,
        /// The expected current content.
        bytes: Vec<u8>,
    },
    /// Writes our file into a network's own directory.
    WriteDropIn {
        network: FileName,
        /// The new content.
        bytes: Vec<u8>,
        /// Permission bits.
        mode: u32,
    },
    /// Removes our file from a network's own directory.
    RemoveDropIn {
        network: FileName,
    },
    /// Removes the temporary files that a killed process left.
    Sweep(Directory),
    /// Removes the lock file, once no program of ours is left in the program directory.
    RemoveLock,
}

/// Mode, owners and extended attributes of a file to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewAccess {
    /// Those of this file, which the new one replaces or is made from.
    Like(FileName, Access),
    /// Our own uid and gid, with these permission bits.
    Ours(u32),
}

impl Change {
    /// Returns the directory that the change writes to.
    #[must_use]
    pub fn directory(&self) -> Directory {
        match self {
            Self::PlaceProgram { .. } | Self::RemoveProgram(_) | Self::RemoveLock => Directory::Programs,
            Self::Sweep(directory) => *directory,
            _ => Directory::Conf,
        }
    }

    /// Reports whether it creates or restores something that another program may have removed.
    #[must_use]
    pub fn creates(&self) -> bool {
        matches!(
            self,
            Self::PlaceProgram { .. } | Self::Write { .. } | Self::Move { .. } | Self::WriteDropIn { .. }
        )
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PlaceProgram { program } => write!(f, "place program {}", program.name),
            Self::RemoveProgram(name) => write!(f, "remove program {name}"),
            Self::Write { file, .. } => write!(f, "write {file}"),
            Self::Move { from, to, .. } => write!(f, "rename {from} to {to}"),
            Self::Remove { file, .. } => write!(f, "remove {file}"),
            Self::WriteDropIn { network, .. } => write!(f, "write {network}/{DROP_IN}"),
            Self::RemoveDropIn { network } => write!(f, "remove {network}/{DROP_IN}"),
            Self::RemoveLock => f.write_str("remove the lock file"),
            Self::Sweep(directory) => {
                write!(f, "remove leftover temporary files from the {directory} directory")
            }
        }
    }
}
