//! Reads the conf directory: bounded, without blocking on pipes, and distinguishing links from files.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};

use super::{
    Access, ConfDirectory, ConfFile, DirectoryState, FileFormat, FileKind, FileName, LARGEST, ORIGINAL,
    Unreadable, is_temporary, mounts,
};
use crate::error::errno;

/// Real directories hold a handful of files; more entries than this are not read.
const MAX_ENTRIES: usize = 65_536;

pub(crate) fn read(path: &Path, also: &BTreeSet<FileName>) -> ConfDirectory {
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
pub(super) fn open_directory(path: &Path) -> Result<(OwnedFd, DirectoryState), Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let fd = nix::fcntl::open(path, flags, Mode::empty())?;
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
        || mounts::root(path).is_some_and(|it| of_multus(&it))
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

pub(super) fn is(stat: &FileStat, kind: SFlag) -> bool {
    stat.st_mode & SFlag::S_IFMT.bits() == kind.bits()
}

pub(super) fn access(stat: &FileStat) -> Access {
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
