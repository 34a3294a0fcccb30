//! Programs identified by content, not by name: hash, mode and owner.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use sha2::{Digest, Sha256};

use super::conf_directory::{access, is, list, open_directory};
use super::{
    Access, DirectoryState, FileName, Identity, LOCK, NamedFile, ProgramDirectory, Unreadable, is_temporary,
};
use crate::error::errno;

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash([u8; 32]);

impl Hash {
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Hashes `source` up to its end.
    pub fn of_all(mut source: impl Read) -> io::Result<Self> {
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            match source.read(&mut buffer)? {
                0 => return Ok(Self(hasher.finalize().into())),
                n => hasher.update(buffer.get(..n).unwrap_or_default()),
            }
        }
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramFile {
    pub hash: Result<Hash, Unreadable>,
    pub access: Access,
}

/// The hashes of unchanged files, so that a pass does not read megabytes.
#[derive(Debug, Default)]
pub struct HashCache(HashMap<Identity, Hash>);

impl HashCache {
    fn of(&mut self, fd: OwnedFd, stat: &FileStat) -> Result<Hash, Unreadable> {
        let identity = Identity::of_stat(stat);
        if let Some(hash) = self.0.get(&identity) {
            return Ok(*hash);
        }
        let hash = Hash::of_all(File::from(fd)).map_err(|why| Unreadable::System(errno(&why)))?;
        // The names are few; this bounds the memory on a node that replaces programs again and again.
        if self.0.len() > 64 {
            self.0.clear();
        }
        self.0.insert(identity, hash);
        Ok(hash)
    }
}

pub(super) fn look(path: &Path, names: &BTreeSet<FileName>, hashes: &mut HashCache) -> ProgramDirectory {
    let nothing = ProgramDirectory::not_there;
    let opened = open_directory(path).and_then(|(fd, state)| Ok((list(&fd)?, fd, state)));
    match opened {
        Ok((entries, fd, DirectoryState::Present)) => ProgramDirectory {
            state: DirectoryState::Present,
            has_temporary: entries.iter().any(|(name, _)| is_temporary(name)),
            names: entries
                .into_iter()
                .filter_map(|(name, _)| Some((named(&fd, &name)?, name)))
                .map(|(it, name)| (name, it))
                .collect(),
            is_noexec: fstatvfs(&fd).is_ok_and(|it| it.flags().contains(FsFlags::ST_NOEXEC)),
            files: names
                .iter()
                .filter_map(|name| Some((name.clone(), program(&fd, name, hashes)?)))
                .collect(),
            has_lock: is_there(&fd, LOCK),
        },
        Ok((_, _, state)) => nothing(state),
        Err(Errno::ENOENT) => nothing(DirectoryState::Missing),
        Err(why) => nothing(DirectoryState::Unreadable(why)),
    }
}

/// Returns what libcni finds under the name; none for other things than files. A link is followed, as libcni does.
fn named(directory: &OwnedFd, name: &FileName) -> Option<NamedFile> {
    match fstatat(directory, name.as_os_str(), AtFlags::empty()) {
        Ok(stat) if !is(&stat, SFlag::S_IFREG) => None,
        Ok(stat) if is_executable(stat.st_mode) => Some(NamedFile::Executable),
        Ok(_) => Some(NamedFile::NotExecutable),
        Err(_) => readlinkat(directory, name.as_os_str()).is_ok().then_some(NamedFile::Elsewhere),
    }
}

/// Reports whether the kernel runs such a file for root.
pub(crate) fn is_executable(mode: u32) -> bool {
    mode & 0o111 != 0
}

fn is_there(directory: &OwnedFd, name: &str) -> bool {
    fstatat(directory, OsStr::new(name), AtFlags::AT_SYMLINK_NOFOLLOW).is_ok()
}

fn program(directory: &OwnedFd, name: &FileName, hashes: &mut HashCache) -> Option<ProgramFile> {
    let stat = fstatat(directory, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
    let refused = |why| Some(ProgramFile { hash: Err(why), access: access(&stat) });
    if !is(&stat, SFlag::S_IFREG) {
        return refused(Unreadable::NotAFile);
    }
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    let fd = match openat(directory, name.as_os_str(), flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::ENOENT) => return None,
        Err(why) => return refused(Unreadable::System(why)),
    };
    let stat = fstat(&fd).ok()?;
    Some(ProgramFile { hash: hashes.of(fd, &stat), access: access(&stat) })
}
