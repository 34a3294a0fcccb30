//! The two directories of a node that Gybe writes to: the conf directory and the program directory.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Directory {
    Conf,
    Programs,
}

impl Directory {
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

/// One value for each of the two directories.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PerDirectory<T> {
    pub conf: T,
    pub programs: T,
}

impl<T> PerDirectory<T> {
    pub fn of(&self, directory: Directory) -> &T {
        match directory {
            Directory::Conf => &self.conf,
            Directory::Programs => &self.programs,
        }
    }

    pub fn of_mut(&mut self, directory: Directory) -> &mut T {
        match directory {
            Directory::Conf => &mut self.conf,
            Directory::Programs => &mut self.programs,
        }
    }

    /// Calls `make` for each directory.
    pub fn made(mut make: impl FnMut(Directory) -> T) -> Self {
        Self { conf: make(Directory::Conf), programs: make(Directory::Programs) }
    }
}
