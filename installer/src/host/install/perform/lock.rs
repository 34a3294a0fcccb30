//! The lock by which only one process changes a node at a time: the agent, or `gybe` in an operator's hands.
//!
//! It is a file in the plugin directory, which agent and operator have in common by whatever path and whichever
//! settings. Only root can open it, so no other user of the node can hold it. It is opened for reading, which no
//! agent that watches the directory notices, and is made only where there is something to change. It goes with the
//! last of our programs.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use crate::host::install::seen::LOCK;

/// How often the file may be found replaced, or be replaced as another user's, in one try.
const ATTEMPTS: usize = 8;
const ROOT: u32 = 0;

/// The right to change a node, until dropped.
#[derive(Debug)]
pub struct Turn {
    // Held, not read; the kernel lets go of it with the process, however that ends.
    _lock: Option<Flock<OwnedFd>>,
}

/// Why the node can be neither judged nor changed now, and has to be looked at again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    /// Another process holds the lock.
    #[error("another gybe is changing {}", .0.display())]
    Locked(PathBuf),
    /// This process, or the node, has no file descriptors left.
    #[error("the node cannot be looked at: no file descriptors are left")]
    NoDescriptors,
}

impl Busy {
    /// What helps.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Locked(_) => {
                "most likely the node agent, or an operator's gybe: try again; where it stays so, lslocks on the \
                 host names the process that holds the file .gybe.lock there"
            }
            Self::NoDescriptors => {
                "see the process's limit (prlimit --nofile) and the node's (sysctl fs.file-nr)"
            }
        }
    }
}

impl Turn {
    /// Takes the lock. Where it cannot be made, as on a full disk or on a file system without locks, the node is
    /// changed without it: a chain that is not repaired is worse than two programs that write at once.
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

/// None when the file was removed or replaced meanwhile.
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
        // In a directory that others may write.
        Ok(_) | Err(Errno::ELOOP) => {
            unlinkat(folder, LOCK, UnlinkatFlags::NoRemoveDir)?;
            return Ok(None);
        }
        Err(why) => return Err(why),
    };
    let locked = Flock::lock(opened, FlockArg::LockExclusiveNonblock).map_err(|(_, why)| why)?;
    // Its last holder may have removed it, and a third process have made another.
    let of = |stat: FileStat| (stat.st_dev, stat.st_ino);
    let named = fstatat(folder, LOCK, AtFlags::AT_SYMLINK_NOFOLLOW).map(of);
    Ok((named == fstat(locked.as_fd()).map(of)).then_some(locked))
}

fn only_we_can_open(stat: &FileStat) -> bool {
    let is_file = stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits();
    is_file && stat.st_mode & 0o077 == 0 && [ROOT, geteuid().as_raw()].contains(&stat.st_uid)
}
