//! The CNI plugin `loopback`, which containerd runs at the same time as the conflist. It fails if `lo` has an
//! address other than its own, so ADD waits until it has ended before it adds `::6`.
//!
//! Both are attached at the same time since go-cni 1.1.1, so in every containerd from 1.6 on
//! (<https://github.com/containerd/go-cni/pull/76>); the refusal is `loopback interface found with
//! non-loopback address` in
//! <https://github.com/containernetworking/plugins/blob/v1.1.1/plugins/main/loopback/loopback.go>.

use crate::request::Request;
use gybe_netfilter::apply::redirection::Redirection;
use gybe_netfilter::kernel::routes::{Address, Rtnetlink};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

/// The longest wait for a `loopback` process to end. It takes a millisecond, and seconds on a node that
/// starts a hundred pods at once.
const MAX_RUN: Duration = Duration::from_secs(5);

/// The longest wait for a `lo` that is down while no `loopback` process runs: containerd may not have
/// started it yet. A runtime that brings `lo` up later must not be delayed for long.
const MAX_DOWN: Duration = Duration::from_millis(250);

/// The interval of polling: a process cannot wait for the end of another process's child.
const INTERVAL: Duration = Duration::from_millis(2);

/// Waits until `lo` can get another address, or until the wait is too long; the `loopback` plugin may then
/// fail, and the runtime retries the pod. Returns at once where no address is added, and nearly so where the
/// runtime does not run `loopback`.
///
/// Searches for the process last: that time grows with the number of the runtime's threads.
///
/// `listed` are the namespace's addresses of a moment ago.
pub(crate) fn wait_for_loopback_plugin(
    redirection: &Redirection,
    rtnetlink: &mut Rtnetlink,
    listed: &[Address],
    request: &Request,
) {
    if !redirection.routes.needs_passthrough_address() {
        return;
    }
    let runtime = parent_id().to_string();
    let result = result_of_loopback(&request.container);
    let netns = request.netns.as_deref().unwrap_or(Path::new(""));
    let start = Instant::now();
    let (mut last_running, mut is_down) = (start, lo_is_down(listed));
    if result.exists() || is_crio(&runtime) {
        return;
    }
    loop {
        // Checked after the list: a process that has brought `lo` up by then has executed `loopback`, and is
        // found as long as it runs.
        if is_running(&runtime, netns) {
            // During execve(2) a process has no environment for a moment, and is not found.
            last_running = Instant::now();
        } else if !is_down {
            return;
        }
        if start.elapsed() >= MAX_RUN || last_running.elapsed() >= MAX_DOWN {
            tracing::warn!("gybe-cni cmdAdd: lo is down, or the loopback plugin still runs");
            return;
        }
        thread::sleep(INTERVAL);
        is_down = rtnetlink.addresses().is_ok_and(|listed| lo_is_down(&listed));
        if result.exists() {
            return;
        }
    }
}

/// Returns the file in which containerd's libcni keeps the result of a sandbox's `loopback`: it exists from the plugin's
/// successful end to the sandbox's DEL. Every sandbox has a new id, so the file is never that of an earlier one, which
/// a reboot would leave.
///
/// containerd configures no other directory (`WithLoNetwork` and `defaultCNIConfig` in
/// <https://github.com/containerd/go-cni/blob/v1.1.13/opts.go> and `cni.go`, the same from 1.1.1 on; `getCacheDir` and
/// `getCacheFilePath` in <https://github.com/containernetworking/cni/blob/v1.3.0/libcni/api.go>), and the plugin
/// sees its files, as it runs in its mount namespace.
fn result_of_loopback(container: &str) -> PathBuf {
    PathBuf::from(format!("/var/lib/cni/results/cni-loopback-{container}-lo"))
}

/// Reports whether the runtime is CRI-O, which brings `lo` up itself before it runs a plugin (`SetUpPodWithContext` in
/// <https://github.com/cri-o/ocicni/blob/v0.5.0/pkg/ocicni/ocicni.go>).
fn is_crio(runtime: &str) -> bool {
    process_file(runtime, "comm") == b"crio\n"
}

/// Reports whether `lo` is down: the kernel gives it addresses as it comes up.
fn lo_is_down(listed: &[Address]) -> bool {
    listed.iter().all(|address| address.index != 1)
}

/// Reports whether a child of `runtime` is the plugin `loopback` for this namespace. False where /proc does not list
/// children (it needs CONFIG_PROC_CHILDREN).
fn is_running(runtime: &str, netns: &Path) -> bool {
    let variable = [b"CNI_NETNS=", netns.as_os_str().as_bytes()].concat();
    // Without this process, whose files would take half of the time that an ADD spends here.
    let own = process::id().to_string();
    let threads = fs::read_dir(format!("/proc/{runtime}/task"));
    threads.into_iter().flatten().flatten().any(|thread| {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        children.split_ascii_whitespace().any(|child| child != own && is_loopback(child, &variable))
    })
}

fn is_loopback(pid: &str, variable: &[u8]) -> bool {
    process_file(pid, "comm") == b"loopback\n"
        && process_file(pid, "environ").split(|byte| *byte == 0).any(|set| set == variable)
}

/// Reads a file of a process; empty when there is none, or no such process.
fn process_file(pid: &str, file: &str) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_test_support::TestDir;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn the_loopback_plugin_is_found_by_its_name_its_parent_and_its_namespace() {
        let directory = TestDir::new("loopback");
        let program = directory.join("loopback");
        fs::copy("/bin/cat", &program).unwrap();
        #[expect(clippy::disallowed_methods, reason = "the plugin that is searched for is a program")]
        let mut command = Command::new(&program);
        command.env("CNI_NETNS", "/run/netns/a").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Once it echoes a byte it has executed the program and has its environment.
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let own = process::id().to_string();
        let found = [
            (own.as_str(), "/run/netns/a"),
            (&own, "/run/netns/b"),
            (&own, "/run/netns"),
            ("1", "/run/netns/a"),
        ]
        .map(|(runtime, netns)| is_running(runtime, Path::new(netns)));
        drop(child.stdin.take());
        child.wait().unwrap();
        let after = is_running(&own, Path::new("/run/netns/a"));
        assert_eq!((found, after), ([true, false, false, false], false));
    }
}
