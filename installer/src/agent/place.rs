//! A socket of ours in the file system: there at once, for its owner alone, in a directory that
//! nobody else writes to, and gone again only if it is still ours.

use gybe_netfilter::hint::Hint;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, connect, socket};
use nix::unistd::geteuid;
use std::borrow::Cow;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The directory.
    #[error("its directory {} cannot be made or seen", .directory.display())]
    Directory {
        /// Which.
        directory: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Others can put a socket of theirs there.
    #[error("its directory {} belongs to user {owner} and has mode {mode:o}; others could replace the socket", .directory.display())]
    Open {
        /// Which.
        directory: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its mode.
        mode: u32,
    },
    /// Something else is there.
    #[error("there is something that is no socket")]
    Occupied,
    /// The socket.
    #[error("the kernel refused the socket")]
    Socket(#[from] Errno),
    /// Its file.
    #[error("its file cannot be put in place")]
    File(#[from] io::Error),
}

impl Hint for PlaceError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Open { .. } => {
                Some("give the directory to root, and take write permission from all others".into())
            }
            Self::Occupied => {
                Some("see what it is, and remove it; or serve elsewhere: CNI_AGENT_RUN_DIR, --socket".into())
            }
            Self::Directory { .. } => Some(
                "mount the host's /run/gybe there, to be written to; or serve elsewhere: CNI_AGENT_RUN_DIR, --socket".into(),
            ),
            Self::Socket(Errno::ENAMETOOLONG) => Some(
                "shorten its path: with what is added while it is made it has 107 bytes at most (unix(7))".into(),
            ),
            Self::Socket(_) | Self::File(_) => None,
        }
    }
}

/// Where a socket of ours stands; dropped, it is taken away.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    kind: SockType,
    inode: (u64, u64),
}

impl Place {
    /// Binds a new socket, lets `prepare` (listen) at it, and puts it at `path` in one step, in place
    /// of whatever socket an earlier agent left. Nobody ever meets it with another mode: until it is
    /// prepared nobody can connect (unix(7)).
    pub(crate) fn take(
        path: &Path,
        kind: SockType,
        prepare: impl FnOnce(&OwnedFd) -> Result<(), Errno>,
    ) -> Result<(Self, OwnedFd), PlaceError> {
        directory(path.parent().unwrap_or(Path::new("/")))?;
        match fs::symlink_metadata(path) {
            Ok(there) if !std::os::unix::fs::FileTypeExt::is_socket(&there.file_type()) => {
                return Err(PlaceError::Occupied);
            }
            _ => {}
        }
        let made = path.with_extension(format!("{}.new", std::process::id()));
        let _ = fs::remove_file(&made);
        let fd = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
        bind(fd.as_raw_fd(), &UnixAddr::new(&made)?)?;
        let placed = put(&made, path, || prepare(&fd));
        if placed.is_err() {
            let _ = fs::remove_file(&made);
        }
        Ok((Self { path: path.to_owned(), kind, inode: placed? }, fd))
    }

    /// Whether who asks there is heard: by us, or by an agent that took our place.
    pub(crate) fn stands(&self) -> bool {
        self.is_ours() || is_served(&self.path, self.kind)
    }

    /// The inode is not another's as long as the socket is held.
    fn is_ours(&self) -> bool {
        let there = fs::symlink_metadata(&self.path).map(|file| (file.dev(), file.ino()));
        there.is_ok_and(|inode| inode == self.inode)
    }
}

/// Whether somebody listens, or hears, there. Nothing is said, and nobody waited for.
pub(crate) fn is_served(path: &Path, kind: SockType) -> bool {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let Ok(caller) = socket(AddressFamily::Unix, kind, flags, None) else { return false };
    let Ok(address) = UnixAddr::new(path) else { return false };
    match connect(caller.as_raw_fd(), &address) {
        // A full backlog is somebody's (unix(7)).
        Ok(()) | Err(Errno::EAGAIN) => true,
        Err(_) => false,
    }
}

fn put(
    made: &Path,
    path: &Path,
    prepare: impl FnOnce() -> Result<(), Errno>,
) -> Result<(u64, u64), PlaceError> {
    fs::set_permissions(made, Permissions::from_mode(0o600))?;
    let file = fs::symlink_metadata(made)?;
    prepare()?;
    fs::rename(made, path)?;
    Ok((file.dev(), file.ino()))
}

/// Makes the directory, or looks whether it is one that only its owner, root or we, writes to.
fn directory(directory: &Path) -> Result<(), PlaceError> {
    let failed = |source| PlaceError::Directory { directory: directory.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(failed)?;
    let there = fs::metadata(directory).map_err(failed)?;
    let (owner, mode) = (there.uid(), there.mode() & 0o7777);
    let ours = owner == 0 || owner == geteuid().as_raw();
    if ours && mode & 0o022 == 0 {
        return Ok(());
    }
    Err(PlaceError::Open { directory: directory.to_owned(), owner, mode })
}

impl Drop for Place {
    /// An agent that took our place meanwhile keeps it.
    fn drop(&mut self) {
        if self.is_ours() {
            let _ = fs::remove_file(&self.path);
        }
    }
}
