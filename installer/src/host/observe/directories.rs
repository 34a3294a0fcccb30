//! Reads a node's conf directory and program directory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use sha2::{Digest, Sha256};

use super::{
    Access, ConfDirectory, ConfFile, DirectoryState, FileFormat, FileIdentity, FileKind, FileName, LARGEST,
    LOCK, NamedFile, NodeDirectories, ORIGINAL, ObservedState, ProgramDirectory, Unreadable, is_temporary,
};
use crate::error::errno;
use crate::mounts::{self, Mount};

/// Real directories hold a handful of files; more entries than this are not read.
const MAX_ENTRIES: usize = 65_536;

/// Reads the conf directory: bounded, without blocking on pipes, and distinguishing links from files. `also`: further
/// files, of any name.
pub(crate) fn conf_directory(path: &Path, also: &BTreeSet<FileName>) -> ConfDirectory {
    let nothing = ConfDirectory::not_there;
    let (fd, entries) = match open_directory(path).and_then(|(fd, state)| Ok((list(&fd)?, fd, state))) {
        Ok((_, _, state)) if state != DirectoryState::Present => return nothing(state),
        Ok((entries, fd, _)) => (fd, entries),
        Err(Errno::ENOENT) => return nothing(DirectoryState::Missing),
        Err(why) => return nothing(DirectoryState::Unreadable(why)),
    };
    let mut observed = ConfDirectory { is_of_multus: is_of_multus(path), ..nothing(DirectoryState::Present) };
    for (name, kind) in entries {
        // Some file systems do not report an entry's type before it is opened.
        let inside = match kind {
            // Every runtime treats a link with a conf file's name as a file.
            Some(Type::Symlink) if FileFormat::of(name.as_os_str()).is_some() => None,
            Some(Type::Directory | Type::Symlink) | None => network_directory(&fd, &name),
            Some(_) => None,
        };
        match inside {
            Some(Ok(files)) => {
                observed.networks.insert(name, files);
                continue;
            }
            Some(Err(why)) => {
                observed.unread_networks.insert(name.clone(), Unreadable::System(why));
            }
            None => {}
        }
        if is_temporary(&name) {
            observed.has_temporary = true;
        } else if (FileFormat::of(name.as_os_str()).is_some()
            || name.ends_in(ORIGINAL)
            || also.contains(&name))
            && let Some(file) = conf_file(&fd, &name)
        {
            observed.files.insert(name, file);
        }
    }
    observed
}

/// Opens a directory. A link is followed, as the runtime follows it.
fn open_directory(path: &Path) -> Result<(OwnedFd, DirectoryState), Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let fd = open(path, flags, Mode::empty())?;
    let state = if fstat(&fd)?.st_nlink == 0 { DirectoryState::Deleted } else { DirectoryState::Present };
    Ok((fd, state))
}

/// Opens the entry itself, never the target of a link.
fn open_here(directory: impl AsFd, name: &FileName, more: OFlag) -> Result<OwnedFd, Errno> {
    // One path component with O_NOFOLLOW has the effect of openat2's RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS,
    // on every kernel and under every seccomp profile.
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    openat(directory, name.as_os_str(), flags | more, Mode::empty())
}

/// Returns the names in the directory and, if the file system reports it, the type of each entry.
pub(crate) fn list(fd: &OwnedFd) -> Result<Vec<(FileName, Option<Type>)>, Errno> {
    let again = openat(fd, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::from_fd(again)?.iter() {
        let entry = entry?;
        let Ok(name) = FileName::new(OsStr::from_bytes(entry.file_name().to_bytes())) else { continue };
        names.push((name, entry.file_type()));
        if names.len() == MAX_ENTRIES {
            break;
        }
    }
    Ok(names)
}

/// Reads a network's own directory; none if the entry is not a directory. A link is followed, as libcni follows
/// it. A link without a target here may lead to a directory on the host.
fn network_directory(conf: &OwnedFd, name: &FileName) -> Option<Result<BTreeMap<FileName, ConfFile>, Errno>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let fd = match openat(conf, name.as_os_str(), flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::ENOTDIR) => return None,
        // Deleted meanwhile, unless it is a link.
        Err(Errno::ENOENT) if readlinkat(conf, name.as_os_str()).is_err() => return None,
        Err(why) => return Some(Err(why)),
    };
    Some(list(&fd).map(|entries| {
        let conf_files = entries.into_iter().filter(|(name, _)| name.ends_in(".conf"));
        conf_files.filter_map(|(name, _)| conf_file(&fd, &name).map(|file| (name, file))).collect()
    }))
}

/// OpenShift keeps Multus' networks apart, in `/etc/cni/multus/net.d`. Inside a container the mount's root has
/// this name.
fn is_of_multus(path: &Path) -> bool {
    let of_multus = |path: &Path| path.ends_with("multus/net.d");
    path.canonicalize().is_ok_and(|path| of_multus(&path))
        || mount_of(path).map(|mount| mount.root).is_some_and(|it| of_multus(&it))
}

/// Reads a file; none if it was deleted meanwhile, or is a directory.
fn conf_file(directory: &OwnedFd, name: &FileName) -> Option<ConfFile> {
    let refused = |kind, why| ConfFile {
        content: Err(Unreadable::System(why)),
        access: Access { mode: 0, uid: u32::MAX, gid: u32::MAX },
        kind,
    };
    let (fd, kind) = match open_here(directory, name, OFlag::empty()) {
        Ok(fd) => (fd, FileKind::Regular),
        Err(Errno::ENOENT) => return None,
        Err(Errno::ELOOP) => {
            let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
            match openat(directory, name.as_os_str(), flags, Mode::empty()) {
                Ok(fd) => (fd, FileKind::Link),
                Err(why) => return Some(refused(FileKind::Link, why)),
            }
        }
        Err(why) => return Some(refused(FileKind::Regular, why)),
    };
    match fstat(&fd) {
        Ok(stat) if is(&stat, SFlag::S_IFDIR) && kind == FileKind::Regular => None,
        Ok(stat) => Some(ConfFile { content: content(fd, &stat), access: access(&stat), kind }),
        Err(why) => Some(refused(kind, why)),
    }
}

fn is(stat: &FileStat, kind: SFlag) -> bool {
    stat.st_mode & SFlag::S_IFMT.bits() == kind.bits()
}

fn access(stat: &FileStat) -> Access {
    Access { mode: stat.st_mode & 0o7777, uid: stat.st_uid, gid: stat.st_gid }
}

fn content(fd: OwnedFd, stat: &FileStat) -> Result<Vec<u8>, Unreadable> {
    if !is(stat, SFlag::S_IFREG) {
        return Err(Unreadable::NotAFile);
    }
    let mut bytes = Vec::new();
    let read = File::from(fd).take(LARGEST + 1).read_to_end(&mut bytes);
    read.map_err(|why| Unreadable::System(errno(&why)))?;
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    if length > LARGEST {
        // The file may grow meanwhile: no more than `LARGEST` + 1 bytes were read.
        let length = u64::try_from(stat.st_size).unwrap_or_default().max(length);
        return Err(Unreadable::TooLarge(length));
    }
    Ok(bytes)
}

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
pub struct HashCache(HashMap<FileIdentity, Hash>);

impl HashCache {
    fn of(&mut self, fd: OwnedFd, stat: &FileStat) -> Result<Hash, Unreadable> {
        let identity = FileIdentity::of_stat(stat);
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

/// Reads the program directory, and hashes the programs of these names: a program is known by its content, mode and owner.
pub(super) fn program_directory(
    path: &Path,
    names: &BTreeSet<FileName>,
    hashes: &mut HashCache,
) -> ProgramDirectory {
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

/// The mount and root of each directory at its first observation. A mount refers to an inode and not to a path (F13): a
/// directory that was renamed on the host looks complete from here, but the primary plugin writes to another one. The
/// mount's root in mountinfo is the path on its file system and follows the rename (proc_pid_mountinfo(5), field 4).
#[derive(Debug, Default)]
pub struct MountRoots(HashMap<PathBuf, Mount>);

impl MountRoots {
    /// Reports a directory that was renamed since the first observation as deleted.
    pub fn mark_renamed(&mut self, directories: &NodeDirectories, observed: &mut ObservedState) {
        if observed.conf.state == DirectoryState::Present && self.is_renamed(&directories.conf) {
            observed.conf = ConfDirectory::not_there(DirectoryState::Deleted);
        }
        if observed.programs.state == DirectoryState::Present && self.is_renamed(&directories.programs) {
            observed.programs = ProgramDirectory::not_there(DirectoryState::Deleted);
        }
    }

    fn is_renamed(&mut self, path: &Path) -> bool {
        let Some(now) = mount_of(path) else { return false };
        match self.0.get(path) {
            Some(then) if then.id == now.id => then.root != now.root,
            // The first observation, or the path leads to another mount now.
            _ => {
                self.0.insert(path.to_owned(), now);
                false
            }
        }
    }
}

/// Returns the mount; none if the kernel does not report it.
fn mount_of(path: &Path) -> Option<Mount> {
    let fd = open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).ok()?;
    let id = id_of(&fd)?;
    mounts::of_this_thread().into_iter().find(|mount| mount.id == id)
}

fn id_of(fd: &OwnedFd) -> Option<u64> {
    let about = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    about.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}
