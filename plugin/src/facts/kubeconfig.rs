//! Facts from the API server, by a kubeconfig. The plugin contains no API client: it runs `gybe pod-facts`,
//! the program that is installed in its own directory.

use super::wire::{self, FactsRequest, FactsResponse, MAX_RESPONSE_BYTES, WireError};
use crate::args::PodRef;
use crate::bounded_read;
use crate::pod::PodFacts;
use gybe_netfilter::iptables::program::{self, OutputLimits, ProgramError};
use gybe_netfilter::model::Hint;
use nix::errno::Errno;
use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// The program that queries the API server.
const PROGRAM: &str = "gybe";

/// The most bytes read from its stderr.
const MAX_STDERR_BYTES: usize = 16 << 10;

/// The most characters of its stderr in an error.
const MAX_MESSAGE: usize = 160;

/// The part of the time that the start and the end of the program take.
const START_AND_END: Duration = Duration::from_millis(50);

/// Why a kubeconfig gave no facts.
#[derive(Debug, thiserror::Error)]
#[error("kubeconfig {} {fault}", .path.display())]
pub struct KubeconfigError {
    /// The path of the kubeconfig.
    pub path: PathBuf,
    /// What went wrong.
    pub fault: KubeconfigFault,
}

/// What went wrong with a kubeconfig, or with the query by it.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigFault {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Read(io::Error),
    /// The program cannot be run.
    #[error("needs the program {}, which cannot be run: {source}", .program.display())]
    Program {
        /// Its path.
        program: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The program did not end before the deadline.
    #[error("gave no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The program failed.
    #[error("gave no answer: {0}")]
    Failed(String),
    /// A malformed response.
    #[error("gave an answer that is {0}")]
    Invalid(WireError),
    /// An error that the program reports: of the API server, or on the way to it.
    #[error("gave no answer: {0}")]
    Reported(String),
}

impl KubeconfigError {
    /// Reports whether every attempt fails until an operator changes this node.
    pub fn is_configured_wrong(&self) -> bool {
        match &self.fault {
            KubeconfigFault::Read(_) => true,
            // Other errors are temporary: no processes, memory or descriptors left.
            KubeconfigFault::Program { source, .. } => {
                let errno = source.raw_os_error().map(Errno::from_raw);
                matches!(errno, Some(Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::ENOEXEC))
            }
            _ => false,
        }
    }
}

impl Hint for KubeconfigError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        let hint = match self.fault {
            KubeconfigFault::Read(_) => {
                "check that the file exists, or remove kubeconfig and run the node agent"
            }
            KubeconfigFault::Program { .. } if self.is_configured_wrong() => {
                "install gybe in the directory of gybe-cni, or remove kubeconfig and run the node agent"
            }
            _ => "check that the API server answers and lets this kubeconfig get pods; the kubelet retries",
        };
        Some(hint.into())
    }
}

/// Queries the API server; `None` when it has no such pod.
pub(super) fn query(
    path: &Path,
    pod: &PodRef,
    deadline: Instant,
) -> Result<Option<PodFacts>, KubeconfigError> {
    request_pod(path, pod, deadline).map_err(|fault| KubeconfigError { path: path.to_owned(), fault })
}

fn request_pod(path: &Path, pod: &PodRef, deadline: Instant) -> Result<Option<PodFacts>, KubeconfigFault> {
    bounded_read::open_file(path).map_err(KubeconfigFault::Read)?;
    let program = program_path();
    let time = deadline.saturating_duration_since(Instant::now());
    // Its timeout is an argument, without the time for its start and end.
    let request =
        wire::encode_request(&FactsRequest { pod: pod.clone(), timeout: None, knows_ambient: false });
    let ended = run(&program, path, &request, time).map_err(|error| match error {
        ProgramError::Start(source) | ProgramError::Io(source) => {
            KubeconfigFault::Program { program, source }
        }
        ProgramError::Timeout(time) => KubeconfigFault::Timeout(time),
    })?;
    if !ended.status.success() {
        return Err(KubeconfigFault::Failed(failure_message(&ended)));
    }
    match wire::decode_response(&ended.stdout).map_err(KubeconfigFault::Invalid)? {
        FactsResponse::Pod(facts) => Ok(Some(*facts)),
        FactsResponse::Unknown => Ok(None),
        FactsResponse::Error(why) | FactsResponse::BrokenManifest(why) => Err(KubeconfigFault::Reported(why)),
    }
}

/// Returns the path of the program: the installer puts it into the directory of `gybe-cni`. PATH is not searched.
fn program_path() -> PathBuf {
    std::env::current_exe().unwrap_or_default().with_file_name(PROGRAM)
}

#[expect(clippy::disallowed_methods, reason = "the client for the API server is a program of its own")]
fn run(program: &Path, kubeconfig: &Path, request: &str, time: Duration) -> Result<Output, ProgramError> {
    let deadline = time.saturating_sub(START_AND_END).as_millis().to_string();
    let mut command = Command::new(program);
    command.arg("pod-facts").arg("--kubeconfig").arg(kubeconfig).args(["--deadline-ms", &deadline]);
    command.env_clear().current_dir("/");
    let bytes = |limit: usize| u64::try_from(limit).unwrap_or(u64::MAX);
    let limits = OutputLimits { stdout: bytes(MAX_RESPONSE_BYTES), stderr: bytes(MAX_STDERR_BYTES) };
    program::run(command, request.as_bytes(), time, limits)
}

/// Returns the beginning of its stderr, or its exit status.
fn failure_message(ended: &Output) -> String {
    let stderr = String::from_utf8_lossy(&ended.stderr);
    let stderr: String =
        stderr.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_MESSAGE).collect();
    if stderr.is_empty() { format!("gybe pod-facts ended with {}", ended.status) } else { stderr }
}
