//! The peak memory of the plugin and of each program that it runs.
//!
//! Each process is traced and stopped at its exit, where its high-water mark is read. What wait4(2) reports of a
//! child also counts the memory of its parent.

use crate::failure::Failure;
use crate::plugin_call::{PluginCall, PluginDir};
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};

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
