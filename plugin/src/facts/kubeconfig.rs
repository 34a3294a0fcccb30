//! Facts from the API server, for the operator who names a kubeconfig. The plugin holds no client for
//! it: `gybe pod-facts` asks, the program that is installed beside the plugin.

use super::file;
use super::wire::{self, Answer, LONGEST_ANSWER, Question, WireError};
use crate::args::PodRef;
use crate::pod::PodFacts;
use gybe_netfilter::hint::Hint;
use gybe_netfilter::program::{self, Ended, NotRun};
use nix::errno::Errno;
use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Who asks for us.
const PROGRAM: &str = "gybe";

/// What it may complain of at length, and what of that is passed on.
const LONGEST_COMPLAINT: usize = 16 << 10;
const TOLD: usize = 160;

/// What of the time is left for its start and its end.
const AROUND: Duration = Duration::from_millis(50);

/// Why the API server told nothing.
#[derive(Debug, thiserror::Error)]
#[error("kubeconfig {} {fault}", .path.display())]
pub struct KubeconfigError {
    /// Which.
    pub path: PathBuf,
    /// What is wrong.
    pub fault: KubeconfigFault,
}

/// What is wrong with a kubeconfig, or with asking by it.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigFault {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Read(io::Error),
    /// Who would ask by it is not there.
    #[error("is of no use without {}, which cannot be run: {source}", .program.display())]
    Program {
        /// Its path.
        program: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Who asks by it takes too long.
    #[error("led to no answer within {} ms", .0.as_millis())]
    Late(Duration),
    /// Who asks by it gave up.
    #[error("led to no answer: {0}")]
    Failed(String),
    /// Nothing we understand.
    #[error("led to an answer that is {0}")]
    Words(WireError),
    /// The API server, or the way to it.
    #[error("led to no answer: {0}")]
    Fault(String),
}

impl KubeconfigError {
    /// Whether another try would end the same way until somebody changes this node.
    pub fn is_configured_wrong(&self) -> bool {
        match &self.fault {
            KubeconfigFault::Read(_) => true,
            // Anything else is a shortage of the moment: of processes, of memory, of descriptors.
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
                "see that the file is there, or take kubeconfig out and run the node agent"
            }
            KubeconfigFault::Program { .. } if self.is_configured_wrong() => {
                "install gybe beside gybe-cni, or take kubeconfig out and run the node agent"
            }
            _ => "see that the API server answers and lets this kubeconfig get pods; the kubelet tries again",
        };
        Some(hint.into())
    }
}

/// Has the API server asked; `None` when it has no such pod.
pub(super) fn ask(path: &Path, pod: &PodRef, until: Instant) -> Result<Option<PodFacts>, KubeconfigError> {
    talk(path, pod, until).map_err(|fault| KubeconfigError { path: path.to_owned(), fault })
}

fn talk(path: &Path, pod: &PodRef, until: Instant) -> Result<Option<PodFacts>, KubeconfigFault> {
    file::open(path).map_err(KubeconfigFault::Read)?;
    let program = beside_us();
    let time = until.saturating_duration_since(Instant::now());
    // It is told its time by an argument, the start and the end of a program taken off.
    let question = wire::question(&Question { pod: pod.clone(), patience: None });
    let ended = run(&program, path, &question, time).map_err(|fault| match fault {
        NotRun::Start(source) | NotRun::Talk(source) => KubeconfigFault::Program { program, source },
        NotRun::Late(time) => KubeconfigFault::Late(time),
    })?;
    if !ended.status.success() {
        return Err(KubeconfigFault::Failed(complaint(&ended)));
    }
    match wire::answered(&ended.stdout).map_err(KubeconfigFault::Words)? {
        Answer::Pod(facts) => Ok(Some(*facts)),
        Answer::Unknown => Ok(None),
        Answer::Fault(why) => Err(KubeconfigFault::Fault(why)),
    }
}

/// The installer puts both into one directory. Nobody's PATH is searched.
fn beside_us() -> PathBuf {
    std::env::current_exe().unwrap_or_default().with_file_name(PROGRAM)
}

#[expect(clippy::disallowed_methods, reason = "the client for the API server is a program of its own")]
fn run(program: &Path, kubeconfig: &Path, question: &str, time: Duration) -> Result<Ended, NotRun> {
    let deadline = time.saturating_sub(AROUND).as_millis().to_string();
    let mut command = Command::new(program);
    command.arg("pod-facts").arg("--kubeconfig").arg(kubeconfig).args(["--deadline-ms", &deadline]);
    command.env_clear().current_dir("/");
    let longest = [LONGEST_ANSWER, LONGEST_COMPLAINT].map(|most| u64::try_from(most).unwrap_or(u64::MAX));
    program::run(command, question.as_bytes(), time, longest.into())
}

/// Its first words, or how it ended.
fn complaint(ended: &Ended) -> String {
    let said = String::from_utf8_lossy(&ended.stderr);
    let said: String = said.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(TOLD).collect();
    if said.is_empty() { format!("gybe pod-facts ended with {}", ended.status) } else { said }
}
