//! A file name: one path component, so that a path can never leave its directory; and the format of a conf file, which
//! its name decides.

use std::borrow::Borrow;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;

/// A file's name, ordered by its bytes as runtimes order them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName(OsString);

/// The format of a conf file, by its name's ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// `.conflist`: a list of plugins.
    List,
    /// `.conf`, `.json`: one plugin.
    Single,
}

impl FileFormat {
    /// Returns none for a file that no runtime reads.
    #[must_use]
    pub fn of(name: &OsStr) -> Option<Self> {
        // Go's filepath.Ext: from the last dot on, a leading one included.
        let dot = name.as_bytes().iter().rposition(|byte| *byte == b'.')?;
        match name.as_bytes().get(dot..)? {
            b".conflist" => Some(Self::List),
            b".conf" | b".json" => Some(Self::Single),
            _ => None,
        }
    }
}

/// The text is a path, or empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{}\" is not the name of a file", .0.display())]
pub struct NotAFileName(OsString);

impl FileName {
    /// Accepts one component other than `.` and `..`.
    pub fn new(name: impl Into<OsString>) -> Result<Self, NotAFileName> {
        let name = name.into();
        let bytes = name.as_bytes();
        if matches!(bytes, b"" | b"." | b"..") || bytes.iter().any(|byte| matches!(byte, b'/' | 0)) {
            return Err(NotAFileName(name));
        }
        Ok(Self(name))
    }

    #[must_use]
    pub fn as_os_str(&self) -> &OsStr {
        &self.0
    }

    /// Reports whether the name ends with `ending` and is longer than it.
    #[must_use]
    pub fn ends_in(&self, ending: &str) -> bool {
        self.0.as_bytes().strip_suffix(ending.as_bytes()).is_some_and(|stem| !stem.is_empty())
    }

    /// The name with `ending` appended.
    #[must_use]
    pub fn with(&self, ending: &str) -> Self {
        let mut name = self.0.clone();
        name.push(ending);
        Self(name)
    }

    /// The name without this ending; none if it does not have it.
    #[must_use]
    pub fn without(&self, ending: &str) -> Option<Self> {
        self.ended(ending, "")
    }

    /// The name with `ending` replaced by `instead`.
    #[must_use]
    pub fn ended(&self, ending: &str, instead: &str) -> Option<Self> {
        let mut name = OsStr::from_bytes(self.0.as_bytes().strip_suffix(ending.as_bytes())?).to_owned();
        name.push(instead);
        Self::new(name).ok()
    }
}

/// `OsStr` compares by bytes too, so a map with these keys can be searched with one.
impl Borrow<OsStr> for FileName {
    fn borrow(&self) -> &OsStr {
        &self.0
    }
}

impl AsRef<OsStr> for FileName {
    fn as_ref(&self) -> &OsStr {
        &self.0
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_component() {
        for path in ["", ".", "..", "a/b", "/etc/passwd", "../x", "a\0b"] {
            assert!(FileName::new(path).is_err(), "{path:?}");
        }
        let name = FileName::new("10-a.conf").unwrap();
        assert_eq!(name.with(".gybe-original").without(".gybe-original"), Some(name));
        assert!(!FileName::new(".conf").unwrap().ends_in(".conf"));
    }
}
