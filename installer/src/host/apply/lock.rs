//! The lock that lets only one process change a node at a time: the agent, or an operator's `gybe`.
//!
//! It is a file in the program directory, the one directory that the agent and an operator's `gybe` share with any
//! mounts and settings. Only root can open it, so no other user of the node can hold it. It is
//! opened for reading, which wakes no agent that watches the directory, and is made only if there is something
//! to change. It is removed with the last of our programs.

use gybe_netfilter::model::Hint;
use std::borrow::Cow;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use crate::host::observe::LOCK;

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
