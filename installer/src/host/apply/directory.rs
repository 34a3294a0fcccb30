//! An open directory and the operations in it, and the lock that lets only one process change a node at a time: the
//! agent, or an operator's `gybe`.
//!
//! A rewritten conf file keeps its extended attributes: labels of security modules, access control lists, and the `user`
//! namespace; not those that depend on the content (IMA's hash).
//!
//! The lock is a file in the program directory, the one directory that the agent and an operator's `gybe` share with any
//! mounts and settings. Only root can open it, so no other user of the node can hold it. It is
//! opened for reading, which wakes no agent that watches the directory, and is made only if there is something
//! to change. It is removed with the last of our programs.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use gybe_netfilter::model::Hint;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, fsync, geteuid, unlinkat};
use rustix::fs::{RenameFlags, XattrFlags, fgetxattr, flistxattr, fsetxattr, renameat_with};

use super::ChangeError;
use crate::error::errno;
use crate::host::change::NewAccess;
use crate::host::observe::{FileName, LARGEST, LOCK, TEMPORARY, is_temporary, list};

/// The name of this process's temporary files. Two processes may write at once where the lock cannot be taken, and two
/// containers may give them the same pid.
pub(super) fn temporary_name() -> &'static str {
    static NAME: LazyLock<String> = LazyLock::new(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        format!(".{}-{}{TEMPORARY}", process::id(), now.subsec_nanos())
    });
    &NAME
}

/// An open directory. The operations stay in it, even if its path is renamed or replaced meanwhile.
#[derive(Debug)]
pub(super) struct OpenDirectory {
    pub(super) fd: OwnedFd,
    pub(super) path: PathBuf,
}

impl OpenDirectory {
    pub(super) fn open(path: &Path) -> Result<Self, ChangeError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let fd = nix::fcntl::open(path, flags, Mode::empty());
        let error = |why| ChangeError::System { step: "open", path: path.to_owned(), why };
        Ok(Self { fd: fd.map_err(error)?, path: path.to_owned() })
    }

    /// Opens a subdirectory; fails for a symbolic link.
    pub(super) fn inner(&self, name: &FileName) -> Result<Self, ChangeError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(&self.fd, name.as_os_str(), flags, Mode::empty());
        Ok(Self { fd: fd.map_err(self.failed("open", name))?, path: self.path.join(name.as_os_str()) })
    }

    pub(super) fn failed(
        &self,
        step: &'static str,
        name: impl AsRef<OsStr>,
    ) -> impl FnOnce(Errno) -> ChangeError {
        let path = self.path.join(name.as_ref());
        move |why| ChangeError::System { step, path, why }
    }

    pub(super) fn overtaken(&self, name: &FileName) -> ChangeError {
        ChangeError::Overtaken { path: self.path.join(name.as_os_str()) }
    }

    /// Creates the temporary file, replacing one that this process left.
    pub(super) fn temporary(&self) -> Result<File, ChangeError> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let create = || openat(&self.fd, temporary_name(), flags, Mode::from_bits_truncate(0o600));
        let fd = match create() {
            Err(Errno::EEXIST) => {
                self.unlink(OsStr::new(temporary_name()))?;
                create()
            }
            made => made,
        };
        fd.map(File::from).map_err(self.failed("create", temporary_name()))
    }

    /// Writes the temporary file, sets mode and owner, and syncs it; removes it on failure.
    pub(super) fn prepare(&self, bytes: &[u8], access: &NewAccess) -> Result<(), ChangeError> {
        let mut file = self.temporary()?;
        let filled =
            file.write_all(bytes).map_err(|why| errno(&why)).and_then(|()| self.settle(&file, access));
        filled.map_err(|why| self.give_up(self.failed("write", temporary_name())(why)))
    }

    /// Removes the temporary file, and returns the error.
    pub(super) fn give_up(&self, why: ChangeError) -> ChangeError {
        let _ = unlinkat(&self.fd, temporary_name(), UnlinkatFlags::NoRemoveDir);
        why
    }

    fn settle(&self, file: &File, access: &NewAccess) -> Result<(), Errno> {
        let mode = match access {
            NewAccess::Ours(mode) => *mode,
            NewAccess::Like(_, access) => {
                let ours = fstat(file)?;
                if (ours.st_uid, ours.st_gid) != (access.uid, access.gid) {
                    fchown(file, Some(Uid::from_raw(access.uid)), Some(Gid::from_raw(access.gid)))?;
                }
                access.mode
            }
        };
        fchmod(file, Mode::from_bits_truncate(mode))?;
        if let NewAccess::Like(name, _) = access
            && let Ok(theirs) = self.open_file(name)
        {
            copy_attributes(theirs, file);
        }
        fsync(file)
    }

    fn open_file(&self, name: impl AsRef<OsStr>) -> Result<File, Errno> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        openat(&self.fd, name.as_ref(), flags, Mode::empty()).map(File::from)
    }

    /// Returns the content of a file; none if it does not exist or cannot be read. A file longer than `LARGEST` is
    /// read up to one byte beyond it, which shows that its content is another one.
    pub(super) fn read(&self, name: impl AsRef<OsStr>) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open_file(name).ok()?.take(LARGEST + 1).read_to_end(&mut bytes).ok().map(|_| bytes)
    }

    /// Renames within the directory: containerd gets an event for no other rename (F08).
    pub(super) fn rename(&self, from: impl AsRef<OsStr>, to: &FileName) -> Result<(), ChangeError> {
        renameat(&self.fd, from.as_ref(), &self.fd, to.as_os_str())
            .map_err(self.failed("rename a file to", to))
    }

    pub(super) fn rename_with(&self, from: &OsStr, to: &OsStr, how: RenameFlags) -> Result<(), Errno> {
        renameat_with(&self.fd, from, &self.fd, to, how)
            .map_err(|errno| Errno::from_raw(errno.raw_os_error()))
    }

    /// Removes a file; succeeds if it does not exist.
    pub(super) fn unlink(&self, name: &OsStr) -> Result<(), ChangeError> {
        match unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) => self.sync(),
            Err(Errno::ENOENT) => Ok(()),
            Err(why) => Err(self.failed("remove", name)(why)),
        }
    }

    pub(super) fn remove_temporary(&self) -> Result<(), ChangeError> {
        self.unlink(OsStr::new(temporary_name()))
    }

    /// Removes the temporary files of every process.
    pub(super) fn sweep(&self) -> Result<(), ChangeError> {
        let names = list(&self.fd).map_err(self.failed("list", ""))?;
        names
            .iter()
            .filter(|(name, _)| is_temporary(name))
            .try_for_each(|(name, _)| self.unlink(name.as_os_str()))
    }

    /// Syncs the directory: a new name survives a power failure only after that.
    pub(super) fn sync(&self) -> Result<(), ChangeError> {
        fsync(&self.fd).map_err(self.failed("sync", ""))
    }
}

/// The kernel's limit for a list of names and for a value, in bytes (xattr(7)).
const MAX_SIZE: usize = 64 << 10;

const KEPT: [&[u8]; 3] = [b"security.selinux", b"security.SMACK64", b"system.posix_acl_access"];

/// Copies the attributes that can be read from `from` and set on `to`. Skips the others: an unrepaired chain is
/// worse than a missing attribute. Call it after setting the mode, which changes an access control list.
fn copy_attributes(from: impl AsFd, to: impl AsFd) {
    let (from, to) = (from.as_fd(), to.as_fd());
    let (mut names, mut value) = (vec![0; MAX_SIZE], vec![0; MAX_SIZE]);
    let length = flistxattr(from, names.as_mut_slice()).unwrap_or_default();
    names.truncate(length);
    for name in names.split(|byte| *byte == 0).filter(|name| is_kept(name)) {
        if let Ok(length) = fgetxattr(from, name, value.as_mut_slice()) {
            let _ = fsetxattr(to, name, value.get(..length).unwrap_or_default(), XattrFlags::empty());
        }
    }
}

fn is_kept(name: &[u8]) -> bool {
    name.starts_with(b"user.") || KEPT.contains(&name)
}

/// How often one attempt starts again, because the file was replaced, or belonged to another user and was removed.
const ATTEMPTS: usize = 8;
const ROOT: u32 = 0;

/// The right to change a node, until dropped.
#[derive(Debug)]
pub struct NodeLock {
    // The kernel releases the lock when the process ends, in whatever way.
    _lock: Option<Flock<OwnedFd>>,
}

/// Why the node can be neither observed nor changed now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    #[error("another gybe is changing {}", .0.display())]
    Locked(PathBuf),
    /// This process, or the node, has no file descriptors left.
    #[error("the node cannot be observed: no file descriptors are left")]
    NoDescriptors,
}

impl Hint for Busy {
    fn hint(&self) -> Option<Cow<'static, str>> {
        let hint = match self {
            Self::Locked(_) => {
                "try again: most likely the node agent or another operator's gybe is at work; if this persists, \
                 lslocks on the host names the process that holds the file .gybe.lock there"
            }
            Self::NoDescriptors => {
                "raise the limit of the process (prlimit --nofile) or of the node (sysctl fs.file-max)"
            }
        };
        Some(hint.into())
    }
}

impl NodeLock {
    /// Takes the lock. Where the file cannot be made, as on a full disk or a file system without locks, the
    /// node is changed without the lock: an unrepaired chain is worse than two programs that write at once.
    pub fn take(directory: &Path) -> Result<Self, Busy> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let Ok(folder) = nix::fcntl::open(directory, flags, Mode::empty()) else {
            return Ok(Self { _lock: None });
        };
        for _ in 0..ATTEMPTS {
            match lock(&folder) {
                Ok(None) => {}
                Ok(locked) => return Ok(Self { _lock: locked }),
                Err(Errno::EWOULDBLOCK) => return Err(Busy::Locked(directory.to_owned())),
                Err(_) => break,
            }
        }
        Ok(Self { _lock: None })
    }
}

/// Returns none if the file was removed or replaced meanwhile.
fn lock(folder: &OwnedFd) -> Result<Option<Flock<OwnedFd>>, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let opened = match openat(folder, LOCK, flags, Mode::empty()) {
        Err(Errno::ENOENT) => {
            let new = flags | OFlag::O_CREAT | OFlag::O_EXCL;
            match openat(folder, LOCK, new, Mode::S_IRUSR | Mode::S_IWUSR) {
                Err(Errno::EEXIST) => return Ok(None),
                made => made?,
            }
        }
        Ok(there) if only_we_can_open(&fstat(&there)?) => there,
        // Another user made it, in a directory that other users may write.
        Ok(_) | Err(Errno::ELOOP) => {
            unlinkat(folder, LOCK, UnlinkatFlags::NoRemoveDir)?;
            return Ok(None);
        }
        Err(why) => return Err(why),
    };
    let locked = Flock::lock(opened, FlockArg::LockExclusiveNonblock).map_err(|(_, why)| why)?;
    // The last holder may have removed the file, and a third process may have made another.
    let of = |stat: FileStat| (stat.st_dev, stat.st_ino);
    let named = fstatat(folder, LOCK, AtFlags::AT_SYMLINK_NOFOLLOW).map(of);
    Ok((named == fstat(locked.as_fd()).map(of)).then_some(locked))
}

fn only_we_can_open(stat: &FileStat) -> bool {
    let is_file = stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits();
    is_file && stat.st_mode & 0o077 == 0 && [ROOT, geteuid().as_raw()].contains(&stat.st_uid)
}
