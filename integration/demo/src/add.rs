//! An ADD by the built plugin, and one that is traced: its system calls are counted, and its time in user space is
//! measured.

use gybe_netfilter::model::policy::RedirectPolicy;
use gybe_plugin::conf::{ConfError, PluginConf};
use gybe_plugin::decide::{Decision, decide};
use gybe_plugin::gates::InitContainer;
use gybe_plugin::pod::{ManifestError, PodFacts};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Event, Options};
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, execv};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fs, thread};

const ADD: &str = include_str!("../../../examples/add.json");
const POD: &str = include_str!("../../../examples/pod.json");

/// A recorded call of the plugin, and its pod's manifest.
#[derive(Debug, Clone)]
pub struct RecordedAdd {
    call: Recorded,
    manifest: Value,
}

#[derive(Debug, Clone, serde::Deserialize)]
struct Recorded {
    env: BTreeMap<String, String>,
    stdin: Map<String, Value>,
}

#[derive(Debug, thiserror::Error)]
pub enum AddError {
    #[error("the demo cannot use {file}")]
    Example { file: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the pod of examples/pod.json would not be redirected: {0}")]
    NotRedirected(String),
    #[error("cannot write {}", .path.display())]
    Manifest { path: PathBuf, source: io::Error },
    #[error("cannot run the plugin")]
    Trace(#[from] TraceError),
}

/// The paths that replace those of the recording.
#[derive(Debug, Clone, Copy)]
pub struct AddPaths<'a> {
    pub netns: &'a Path,
    /// The directory in which one for the manifest is created.
    pub scratch: &'a Path,
}

impl RecordedAdd {
    /// Reads the recording.
    pub fn recorded() -> Result<Self, AddError> {
        let example =
            |file| move |source: serde_json::Error| AddError::Example { file, source: source.into() };
        let call = serde_json::from_str(ADD).map_err(example("examples/add.json"))?;
        let manifest = serde_json::from_str(POD).map_err(example("examples/pod.json"))?;
        Ok(Self { call, manifest })
    }

    /// Returns the policy that the plugin will derive for a namespace with these addresses.
    pub fn policy(&self, addresses: &[IpAddr]) -> Result<RedirectPolicy, AddError> {
        let conf = |source: ConfError| AddError::Example { file: "examples/add.json", source: source.into() };
        let pod =
            |source: ManifestError| AddError::Example { file: "examples/pod.json", source: source.into() };
        let conf = PluginConf::read(&self.call.stdin).map_err(conf)?;
        let facts = PodFacts::from_manifest(&self.manifest).map_err(pod)?;
        match decide(&conf, &facts, addresses, InitContainer::Counts) {
            Decision::Redirect(policy) => Ok(policy),
            Decision::LeaveAlone(reason) => Err(AddError::NotRedirected(reason.to_string())),
            Decision::Refuse(cause) => Err(AddError::NotRedirected(cause.to_string())),
            Decision::Ambient(_) => Err(AddError::NotRedirected("it is ambient".to_owned())),
        }
    }

    /// Calls the plugin. `plugin` is a command that executes it once it is traced.
    pub fn call(&self, mut plugin: Command, paths: AddPaths<'_>) -> Result<TracedRun, AddError> {
        let manifests = Manifests::with(&self.manifest, paths.scratch)?;
        let mut env = self.call.env.clone();
        let recorded = env.insert("CNI_NETNS".into(), paths.netns.display().to_string()).unwrap_or_default();
        let mut stdin = Value::Object(self.call.stdin.clone());
        replace(&mut stdin, &recorded, &paths.netns.display().to_string());
        replace(&mut stdin, "/etc/gybe/pods", &manifests.path.display().to_string());
        plugin.env_clear().envs(env);
        Ok(run_traced(plugin, &stdin.to_string())?)
    }
}

/// Replaces every string `old` by `new`.
fn replace(value: &mut Value, old: &str, new: &str) {
    match value {
        Value::String(text) if text == old => new.clone_into(text),
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, old, new)),
        Value::Object(members) => members.values_mut().for_each(|member| replace(member, old, new)),
        _ => {}
    }
}

/// A directory of manifests with one pod, removed on drop.
struct Manifests {
    path: PathBuf,
}

impl Manifests {
    fn with(manifest: &Value, scratch: &Path) -> Result<Self, AddError> {
        let path = scratch.join(format!("gybe-demo-{}", std::process::id()));
        let failed = |source| AddError::Manifest { path: path.clone(), source };
        // An existing directory belongs to another process, so it is an error.
        fs::create_dir(&path).map_err(failed)?;
        let created = Self { path: path.clone() };
        let name = |key: &str| manifest.pointer(key).and_then(Value::as_str).unwrap_or_default();
        let namespace = path.join(name("/metadata/namespace"));
        fs::create_dir(&namespace).map_err(failed)?;
        let file = namespace.join(format!("{}.json", name("/metadata/name")));
        fs::write(file, manifest.to_string()).map_err(failed)?;
        Ok(created)
    }
}

impl Drop for Manifests {
    fn drop(&mut self) {
        // Best effort: nothing depends on it.
        let _removed = fs::remove_dir_all(&self.path);
    }
}

/// A finished run of a traced program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedRun {
    /// The exit code; `None` if a signal ended the program.
    pub exit: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// From the first instruction to the end.
    pub took: Duration,
    pub children: Children,
}

/// The programs and processes that a traced program started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Children {
    Counted {
        /// exec(2) calls after the program's own.
        programs: u32,
        /// Forks, without threads.
        processes: u32,
    },
    /// The kernel does not allow ptrace here.
    Unknown,
}

#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("cannot run {program}")]
    Run { program: String, source: io::Error },
    #[error("cannot trace {program}: {errno}")]
    Trace { program: String, errno: Errno },
}

/// Longer than any ADD may take; the program is then killed.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Called in the child: waits for the tracer, then executes `program`. Returns only an error.
pub fn exec_traced(program: &Path) -> io::Error {
    // Without ptrace the program runs untraced, and its children are unknown.
    if ptrace::traceme().is_ok()
        && let Err(errno) = raise(Signal::SIGSTOP)
    {
        return errno.into();
    }
    let Ok(path) = CString::new(program.as_os_str().as_bytes()) else {
        return io::Error::from(Errno::EINVAL);
    };
    match execv(&path, &[&path]) {
        Err(errno) => errno.into(),
    }
}

/// Runs `child`, a command that ends in [`exec_traced`], and traces it.
pub fn run_traced(mut child: Command, stdin: &str) -> Result<TracedRun, TraceError> {
    let program = child.get_program().to_string_lossy().into_owned();
    let run = |source| TraceError::Run { program: program.clone(), source };
    child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = Instant::now();
    let mut child = child.spawn().map_err(run)?;
    // The child reads after the tracer continues it; until then the pipe buffers this.
    child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(stdin.as_bytes())).map_err(run)?;
    let pid = i32::try_from(child.id()).map(Pid::from_raw).map_err(|_| run(Errno::ESRCH.into()))?;
    let tracing = |errno| TraceError::Trace { program: program.clone(), errno };
    let (alarm, ended) = mpsc::channel();
    let end = thread::scope(|scope| {
        scope.spawn(move || {
            if ended.recv_timeout(TIME_LIMIT).is_err() {
                let _ended_already = kill(pid, Signal::SIGKILL);
            }
        });
        let end = Tracer { pid, started, is_executed: false, children: Children::Unknown }.follow();
        if end.is_err() {
            let _ended_already = kill(pid, Signal::SIGKILL);
        }
        let _sent = alarm.send(());
        end
    });
    let End { exit, took, children } = end.map_err(tracing)?;
    let (stdout, stderr) = output(&mut child).map_err(run)?;
    Ok(TracedRun { exit, stdout, stderr, took, children })
}

/// Returns what the program wrote. It has ended, so all of it is in the pipes.
fn output(child: &mut Child) -> io::Result<(String, String)> {
    let (mut stdout, mut stderr) = (String::new(), String::new());
    child.stdout.take().map_or(Ok(0), |mut pipe| pipe.read_to_string(&mut stdout))?;
    child.stderr.take().map_or(Ok(0), |mut pipe| pipe.read_to_string(&mut stderr))?;
    Ok((stdout, stderr))
}

/// A program under trace.
struct Tracer {
    pid: Pid,
    /// The start of the program; until its exec, the start of the child.
    started: Instant,
    is_executed: bool,
    children: Children,
}

/// The end of the program.
struct End {
    exit: Option<i32>,
    took: Duration,
    children: Children,
}

impl Tracer {
    /// Continues the program after every stop until it ends.
    fn follow(mut self) -> nix::Result<End> {
        // __WALL: also threads. __WNOTHREAD: only children of this thread.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        loop {
            let status = waitpid(None, Some(flags))?;
            let (pid, deliver) = match status {
                WaitStatus::Exited(pid, code) if pid == self.pid => return Ok(self.end(Some(code))),
                WaitStatus::Signaled(pid, ..) if pid == self.pid => return Ok(self.end(None)),
                WaitStatus::PtraceEvent(pid, _, event) => {
                    self.count(pid, event)?;
                    (pid, None)
                }
                WaitStatus::Stopped(pid, Signal::SIGSTOP) => {
                    self.begin(pid)?;
                    (pid, None)
                }
                WaitStatus::Stopped(pid, signal) => (pid, Some(signal)),
                _ => continue,
            };
            match ptrace::cont(pid, deliver) {
                // Killed meanwhile: the next waitpid returns it.
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// The first SIGSTOP is the child's own; later ones are of new threads and processes.
    fn begin(&mut self, pid: Pid) -> nix::Result<()> {
        if pid != self.pid || self.children != Children::Unknown {
            return Ok(());
        }
        let forks = Options::PTRACE_O_TRACEFORK | Options::PTRACE_O_TRACEVFORK | Options::PTRACE_O_TRACECLONE;
        ptrace::setoptions(pid, forks | Options::PTRACE_O_TRACEEXEC | Options::PTRACE_O_EXITKILL)?;
        self.children = Children::Counted { programs: 0, processes: 0 };
        Ok(())
    }

    fn count(&mut self, pid: Pid, event: i32) -> nix::Result<()> {
        let Children::Counted { mut programs, mut processes } = self.children else { return Ok(()) };
        if event == Event::PTRACE_EVENT_EXEC as i32 {
            if self.is_executed {
                programs += 1;
            } else {
                self.is_executed = true;
                self.started = Instant::now();
            }
        } else {
            // clone(2) creates threads too; a thread is listed under its process.
            let new = ptrace::getevent(pid)?;
            let is_thread = Path::new(&format!("/proc/{}/task/{new}", self.pid)).exists();
            processes += u32::from(!is_thread);
        }
        self.children = Children::Counted { programs, processes };
        Ok(())
    }

    fn end(self, exit: Option<i32>) -> End {
        End { exit, took: self.started.elapsed(), children: self.children }
    }
}
