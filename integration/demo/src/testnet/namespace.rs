//! A network namespace with a loopback interface that is up. The kernel frees it with this value. Links and
//! sockets inside it are made in `link` and `listener`.

use gybe_netfilter::kernel::netns::{CreateError, Netns, NetnsError};
use gybe_netfilter::kernel::routes::{RoutesError, Rtnetlink};
use gybe_netfilter::model::Hint;
use std::borrow::Cow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// A network namespace without a name or a bind mount: the kernel frees it with its last file descriptor, also
/// when the process is killed.
#[derive(Debug)]
pub struct Namespace {
    netns: Netns,
}

/// Why there is no namespace to work in.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    #[error("cannot create a network namespace")]
    Create(#[from] CreateError),
    #[error("cannot use a network namespace")]
    Netns(#[from] NetnsError),
    #[error("cannot bring up the loopback interface of a new network namespace")]
    Loopback(#[source] RoutesError),
}

impl Hint for NamespaceError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Create(error) => error.hint(),
            Self::Netns(error) => error.hint(),
            Self::Loopback(_) => None,
        }
    }
}

impl Namespace {
    /// Creates a namespace and brings up its loopback interface.
    pub fn new() -> Result<Self, NamespaceError> {
        let created = Self { netns: Netns::create()? };
        let raised = created.run(|| Rtnetlink::open()?.raise_loopback())?;
        raised.map_err(NamespaceError::Loopback)?;
        Ok(created)
    }

    /// Opens an existing namespace by the path of its file.
    pub fn open(path: &Path) -> Result<Self, NamespaceError> {
        Ok(Self { netns: Netns::open(path)? })
    }

    /// A path by which another process can open it as long as this value lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.as_fd().as_raw_fd()))
    }

    /// Runs `work` inside it, on a thread of its own.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
        Ok(self.netns.run(work)?)
    }

    /// Moves the calling thread into it for the rest of its life.
    pub(super) fn enter(&self) -> Result<(), NamespaceError> {
        Ok(self.netns.enter()?)
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netns.as_fd()
    }
}
