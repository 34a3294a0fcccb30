//! Errors of the test node, containerd and the calls to it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a test node cannot be set up or a call fails.
#[derive(Debug, thiserror::Error)]
pub enum HarnessError {
    /// Namespaces need root.
    #[error("these tests need root, and this is uid {uid}; run:  sudo make -C integration containerd")]
    NotRoot {
        /// The effective user id.
        uid: u32,
    },
    /// A program or directory of the runtimes is missing.
    #[error("there is no {path}; run:  integration/containerd/setup.sh")]
    NotInstalled {
        /// The missing file.
        path: PathBuf,
    },
    /// A program of another package is not built: cargo builds only the packages it is given.
    #[error("there is no {path}; run:  make -C integration containerd")]
    NotBuilt {
        /// The missing program.
        path: PathBuf,
    },
    /// A file or directory cannot be made, read or written.
    #[error("cannot use {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A program cannot be started.
    #[error("cannot run {program}")]
    Start {
        /// The program.
        program: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A program failed or ended too early.
    #[error("{program} ended: {message}")]
    Ended {
        /// The program.
        program: PathBuf,
        /// Its standard error, or what was expected of it.
        message: String,
    },
    /// A condition did not hold in time.
    #[error("{what} did not happen within {within:?}")]
    Timeout {
        /// The condition.
        what: &'static str,
        /// The time limit.
        within: Duration,
    },
    /// containerd's socket does not accept connections.
    #[error("cannot connect to the CRI socket {path}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: tonic::transport::Error,
    },
    /// containerd refused a call.
    #[error("{call} failed: {}", status.message())]
    Refused {
        /// The CRI call.
        call: &'static str,
        /// containerd's response.
        status: Box<tonic::Status>,
    },
    /// A response lacks a member.
    #[error("the response to {call} has no {missing}")]
    Incomplete {
        /// The CRI call.
        call: &'static str,
        /// The member.
        missing: &'static str,
    },
    /// A recorded call is not the JSON that the recorder writes.
    #[error("cannot read the recorded call {path}")]
    RecordedCall {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
}

impl HarnessError {
    /// For `map_err`: makes an error about that path.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> HarnessError {
        let path = path.into();
        move |source| HarnessError::File { path, source }
    }

    /// For `map_err`: makes an error about a program that did not start.
    pub fn start(program: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> HarnessError {
        let program = program.into();
        move |source| HarnessError::Start { program, source }
    }

    /// The message of a refused call; empty for other errors.
    pub fn message(&self) -> &str {
        match self {
            HarnessError::Refused { status, .. } => status.message(),
            _ => "",
        }
    }
}
