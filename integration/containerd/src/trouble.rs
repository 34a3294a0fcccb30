//! What can go wrong on the way to a running sandbox, and what to do about it; not what a test
//! finds wrong.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why the stage, containerd or a call to it did not come to pass.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The namespaces need a privilege this process does not have.
    #[error("these tests need root, and this is uid {uid}; run:  sudo make test-containerd")]
    NotRoot {
        /// The effective user.
        uid: u32,
    },
    /// A program or directory the tests run is not on this machine.
    #[error("there is no {path}; run:  integration/containerd/setup.sh")]
    NotInstalled {
        /// What was looked for.
        path: PathBuf,
    },
    /// The plugin is a program of another package, and cargo builds only what it is asked for.
    #[error("there is no {path}; run:  make test-containerd")]
    NotBuilt {
        /// Where it would be.
        path: PathBuf,
    },
    /// A file or directory could not be made, read or written.
    #[error("cannot use {path}")]
    File {
        /// Which one.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("cannot run {program}")]
    Start {
        /// Which one.
        program: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A program ended in failure, or too early.
    #[error("{program} ended: {said}")]
    Ended {
        /// Which one.
        program: PathBuf,
        /// Its last words.
        said: String,
    },
    /// Something awaited did not come in time.
    #[error("{what} did not happen within {within:?}")]
    Late {
        /// What was awaited.
        what: &'static str,
        /// For how long.
        within: Duration,
    },
    /// containerd's socket could not be reached.
    #[error("cannot connect to the CRI socket {path}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// gRPC's reason.
        source: tonic::transport::Error,
    },
    /// containerd refused a call.
    #[error("{call} failed: {}", status.message())]
    Refused {
        /// The CRI call.
        call: &'static str,
        /// containerd's answer.
        status: Box<tonic::Status>,
    },
    /// An answer lacks what it must have.
    #[error("{call} answered without {missing}")]
    Incomplete {
        /// The CRI call.
        call: &'static str,
        /// The member looked for.
        missing: &'static str,
    },
    /// A recorded call is not the JSON the recorder writes.
    #[error("cannot read the recorded call {path}")]
    Recording {
        /// The file.
        path: PathBuf,
        /// The parser's reason.
        source: serde_json::Error,
    },
}

impl Trouble {
    /// For `map_err`: this system error met that path.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Trouble {
        let path = path.into();
        move |source| Trouble::File { path, source }
    }

    /// What a refused call said, for tests of the message itself.
    pub fn message(&self) -> &str {
        match self {
            Trouble::Refused { status, .. } => status.message(),
            _ => "",
        }
    }
}
