//! A socket's file: created atomically with mode 0600, in a directory that only its owner may write to, and removed
//! only while the path still is this process's socket.

use crate::host::istio_cni::is_served;
use gybe_netfilter::model::Hint;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};
use nix::unistd::geteuid;
use std::borrow::Cow;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a socket cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("its directory {} cannot be created or read", .directory.display())]
    Directory { directory: PathBuf, source: io::Error },
    #[error("its directory {} belongs to user {owner} and has mode {mode:o}; other users could replace the socket", .directory.display())]
    WritableDirectory { directory: PathBuf, owner: u32, mode: u32 },
    #[error("another file that is not a socket has its name")]
    Occupied,
    #[error("the kernel refused the socket")]
    Socket(#[from] Errno),
    #[error("its file cannot be put in place")]
    File(#[from] io::Error),
}

impl Hint for SocketError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::WritableDirectory { .. } => {
                Some("chown the directory to root, and chmod it 0755".into())
            }
            Self::Occupied => {
                Some("find out what it is, and remove it; or serve elsewhere: CNI_AGENT_RUN_DIR, --socket".into())
            }
            Self::Directory { .. } => Some(
                "mount the host's /run/gybe there, writable; or serve elsewhere: CNI_AGENT_RUN_DIR, --socket".into(),
            ),
            Self::Socket(Errno::ENAMETOOLONG) => Some(
                "shorten its path: with the suffix it has while it is created it may have 107 bytes (unix(7))".into(),
            ),
            Self::Socket(_) | Self::File(_) => None,
        }
    }
}

/// The file of a socket; dropping it removes the file.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    kind: SockType,
    inode: (u64, u64),
}

impl SocketFile {
    /// Binds a new socket, calls `prepare` (listen) with it, and renames it to `path`, replacing the socket of an
    /// earlier agent. Until it is prepared no process can connect to it (unix(7)), so no client sees it with another
    /// mode.
    pub(crate) fn create(
        path: &Path,
        kind: SockType,
        prepare: impl FnOnce(&OwnedFd) -> Result<(), Errno>,
    ) -> Result<(Self, OwnedFd), SocketError> {
        directory(path.parent().unwrap_or(Path::new("/")))?;
        match fs::symlink_metadata(path) {
            Ok(file) if !file.file_type().is_socket() => return Err(SocketError::Occupied),
            _ => {}
        }
        let temporary = path.with_extension(format!("{}.new", std::process::id()));
        let _ = fs::remove_file(&temporary);
        let fd = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
        bind(fd.as_raw_fd(), &UnixAddr::new(&temporary)?)?;
        let placed = place(&temporary, path, || prepare(&fd));
        if placed.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        Ok((Self { path: path.to_owned(), kind, inode: placed? }, fd))
    }

    /// Reports whether a process serves this path: ours, or an agent that replaced our socket.
    pub(crate) fn is_served(&self) -> bool {
        self.is_ours() || is_served(&self.path, self.kind)
    }

    /// The kernel does not reuse the inode number while the socket is open.
    fn is_ours(&self) -> bool {
        let file = fs::symlink_metadata(&self.path).map(|file| (file.dev(), file.ino()));
        file.is_ok_and(|inode| inode == self.inode)
    }
}

fn place(
    temporary: &Path,
    path: &Path,
    prepare: impl FnOnce() -> Result<(), Errno>,
) -> Result<(u64, u64), SocketError> {
    fs::set_permissions(temporary, Permissions::from_mode(0o600))?;
    let file = fs::symlink_metadata(temporary)?;
    prepare()?;
    fs::rename(temporary, path)?;
    Ok((file.dev(), file.ino()))
}

/// Creates the directory, or checks that only its owner, root or our user, writes to it.
pub(super) fn directory(directory: &Path) -> Result<(), SocketError> {
    let failed = |source| SocketError::Directory { directory: directory.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(failed)?;
    let metadata = fs::metadata(directory).map_err(failed)?;
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    let is_ours = owner == 0 || owner == geteuid().as_raw();
    if is_ours && mode & 0o022 == 0 {
        return Ok(());
    }
    Err(SocketError::WritableDirectory { directory: directory.to_owned(), owner, mode })
}

impl Drop for SocketFile {
    /// Leaves the socket of an agent that replaced ours.
    fn drop(&mut self) {
        if self.is_ours() {
            let _ = fs::remove_file(&self.path);
        }
    }
}
