//! The two directories of a node that are written: of networks, and of plugins.

use std::fmt;

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Directory {
    /// Of networks.
    Conf,
    /// Of plugins.
    Programs,
}

impl Directory {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Conf, Self::Programs];
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Conf => "conf",
            Self::Programs => "program",
        })
    }
}

/// Something for each of the two.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Each<T> {
    /// For the conf directory.
    pub conf: T,
    /// For the directory of plugins.
    pub programs: T,
}

impl<T> Each<T> {
    /// That of one directory.
    pub fn of(&self, directory: Directory) -> &T {
        match directory {
            Directory::Conf => &self.conf,
            Directory::Programs => &self.programs,
        }
    }

    /// The same, to be changed.
    pub fn of_mut(&mut self, directory: Directory) -> &mut T {
        match directory {
            Directory::Conf => &mut self.conf,
            Directory::Programs => &mut self.programs,
        }
    }

    /// Made for each of the two.
    pub fn made(mut make: impl FnMut(Directory) -> T) -> Self {
        Self { conf: make(Directory::Conf), programs: make(Directory::Programs) }
    }
}
