//! Calls of the plugin: the example ADD and variants of it, for a namespace with addresses and nothing else; the
//! peak memory of the plugin and of each program that it runs. For that, each process is traced and stopped at its
//! exit, where its high-water mark is read: what wait4(2) reports of a child also counts the memory of its parent.

use crate::failure::Failure;
use crate::programs::{Run, path_of_ours, run};
use gybe_demo::testnet::namespace::Namespace;
use gybe_test_support::TestDir;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A test's directory with the example pod's manifest, and a `/run` for the programs that it runs.
#[derive(Debug)]
pub struct PluginDir(TestDir);

impl PluginDir {
    #[must_use]
    pub fn new(test: &str) -> Self {
        let directory = TestDir::new(test).with_subdirectories(&["run"]);
        directory.write("shop/cart-0.json", include_str!("../../examples/pod.json"));
        Self(directory)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of the example pod's manifest.
    pub fn manifest(&self) -> PathBuf {
        self.0.join("shop/cart-0.json")
    }

    /// The directory that programs see at `/run`.
    pub fn run(&self) -> PathBuf {
        self.0.join("run")
    }

    /// Runs a shell command with this directory's `/run`, so that tests share no probe results with each other or
    /// the machine.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn sh(&self, command: &str, stdin: &str) -> Result<Run, Failure> {
        run("unshare", &self.inside(command).each_ref().map(String::as_str), stdin)
    }

    /// The arguments of `unshare` that do so.
    pub(crate) fn inside(&self, command: &str) -> [String; 6] {
        let inside = format!("mount --bind {} /run && {command}", self.run().display());
        ["--mount", "--propagation", "private", "sh", "-c", &inside].map(str::to_owned)
    }
}

/// Makes a namespace with the addresses of the example's prevResult, of both families.
///
/// # Errors
/// When it cannot be made.
pub fn pod() -> Result<Namespace, Failure> {
    let pod = Namespace::new()?;
    pod.run(|| run("ip", &["address", "add", "10.244.0.10/32", "dev", "lo"], ""))??;
    pod.run(|| run("ip", &["address", "add", "fd00:10::10/128", "dev", "lo", "nodad"], ""))??;
    Ok(pod)
}

/// A call of the plugin.
#[derive(Debug, Clone, serde::Deserialize)]
pub struct PluginCall {
    pub env: BTreeMap<String, String>,
    pub stdin: Value,
}

impl PluginCall {
    /// Returns the example ADD for this namespace and the manifests of this directory.
    ///
    /// # Errors
    /// When the example has another form.
    pub fn add(pod: &Namespace, directory: &PluginDir) -> Result<Self, Failure> {
        let mut call: Self = serde_json::from_str(include_str!("../../examples/add.json"))?;
        call.env.insert("CNI_NETNS".into(), pod.path().display().to_string());
        let facts = call.stdin.pointer_mut("/facts/directory");
        *facts.ok_or_else(|| Failure::new("the example names no directory of manifests"))? =
            json!(directory.path());
        Ok(call)
    }

    /// Sets the verb.
    #[must_use]
    pub fn with_verb(mut self, verb: &str) -> Self {
        self.env.insert("CNI_COMMAND".into(), verb.into());
        self
    }

    /// Sets `backend`.
    #[must_use]
    pub fn with_backend(mut self, backend: &str) -> Self {
        if let Some(members) = self.stdin.as_object_mut() {
            members.insert("backend".into(), backend.into());
        }
        self
    }

    /// Runs the plugin, with `wrapper`, like `strace`, in front of it.
    ///
    /// # Errors
    /// When the plugin cannot be run.
    pub fn run(&self, directory: &PluginDir, wrapper: &str) -> Result<Run, Failure> {
        directory.sh(&self.shell_line(wrapper)?, &self.stdin.to_string())
    }

    /// The shell command that does so.
    pub(crate) fn shell_line(&self, wrapper: &str) -> Result<String, Failure> {
        let set = self.env.iter().map(|(name, value)| format!("'{name}={value}' ")).collect::<String>();
        Ok(format!("exec {wrapper} env -i {set}{}", path_of_ours("gybe-cni")?.display()))
    }
}

/// A call of the plugin and its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeakMemory {
    /// `None` when a signal ended it.
    pub code: Option<i32>,
    /// Stdout.
    pub out: String,
    /// KiB by program, `gybe-cni` included.
    pub programs: BTreeMap<String, u64>,
}

/// Runs the call and measures it. The plugin reads its stdin before it starts a program.
///
/// # Errors
/// When it cannot be run or traced.
#[allow(clippy::disallowed_methods, reason = "tests run programs: ours, and those that judge ours")]
pub fn peak_memory(call: &PluginCall, directory: &PluginDir) -> Result<PeakMemory, Failure> {
    let out = directory.path().join("peak-out");
    let mut child = Command::new("unshare")
        .args(directory.inside(&call.shell_line("")?))
        .stdin(Stdio::piped())
        .stdout(File::create(&out)?)
        .stderr(Stdio::null())
        .spawn()?;
    let root = Pid::from_raw(i32::try_from(child.id())?);
    let traced = Options::PTRACE_O_TRACEEXIT
        | Options::PTRACE_O_EXITKILL
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK;
    ptrace::seize(root, traced)?;
    let input = call.stdin.to_string();
    let stdin = child.stdin.take();
    // A call may be longer than a pipe holds, and the traced reader stops at every event.
    let writer = std::thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
    let mut programs = BTreeMap::new();
    let code = until_the_end(root, &mut programs)?;
    if let Ok(Some(Err(error))) = writer.join() {
        return Err(error.into());
    }
    Ok(PeakMemory { code, out: fs::read_to_string(out)?, programs })
}

fn until_the_end(root: Pid, programs: &mut BTreeMap<String, u64>) -> Result<Option<i32>, Failure> {
    // Not the children of the test's other threads.
    let own = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
    loop {
        match waitpid(None, Some(own))? {
            WaitStatus::PtraceEvent(pid, _, libc::PTRACE_EVENT_EXIT) => {
                let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
                if let (Some(name), Some(mark)) = (field(&status, "Name:"), high_water(&status)) {
                    let most = programs.entry(name.to_owned()).or_default();
                    *most = mark.max(*most);
                }
                ptrace::cont(pid, None)?;
            }
            WaitStatus::PtraceEvent(pid, ..) => ptrace::cont(pid, None)?,
            WaitStatus::Stopped(pid, signal) => ptrace::cont(pid, signal)?,
            WaitStatus::Exited(pid, code) if pid == root => return Ok(Some(code)),
            WaitStatus::Signaled(pid, ..) if pid == root => return Ok(None),
            _ => {}
        }
    }
}

fn field<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// `VmHWM:      1234 kB`
fn high_water(status: &str) -> Option<u64> {
    field(status, "VmHWM:")?.strip_suffix(" kB")?.parse().ok()
}
