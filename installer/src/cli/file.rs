//! Reading the files an operator names: as text, and not more of it than makes sense.

use crate::pod::manifest;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Why a named file gave no text.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("cannot open {}", .0.display())]
    Open(PathBuf, #[source] io::Error),
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("{} is longer than {} bytes", .0.display(), manifest::LONGEST)]
    TooLong(PathBuf),
    #[error("{} is not UTF-8 text", .0.display())]
    NotText(PathBuf),
}

/// The text of a file; `-` is stdin.
pub(super) fn text(path: &Path) -> Result<String, FileError> {
    if path.as_os_str() == "-" {
        return bounded(io::stdin().lock(), path);
    }
    let file = File::open(path).map_err(|e| FileError::Open(path.to_owned(), e))?;
    bounded(file, path)
}

/// A device or a pipe has no size to ask for, so the reading itself is bounded.
fn bounded(source: impl Read, path: &Path) -> Result<String, FileError> {
    let one_too_many = u64::try_from(manifest::LONGEST).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    let read = source.take(one_too_many).read_to_end(&mut bytes);
    read.map_err(|e| FileError::Read(path.to_owned(), e))?;
    if bytes.len() > manifest::LONGEST {
        return Err(FileError::TooLong(path.to_owned()));
    }
    String::from_utf8(bytes).map_err(|_| FileError::NotText(path.to_owned()))
}
