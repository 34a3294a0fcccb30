//! The CNI plugin `loopback`, which containerd runs at the same time as the conflist. It fails if `lo` has an
//! address other than its own, so ADD waits until it has ended before it adds `::6`.
//!
//! Both are attached at the same time since go-cni 1.1.1, so in every containerd from 1.6 on
//! (<https://github.com/containerd/go-cni/pull/76>); the refusal is `loopback interface found with
//! non-loopback address` in
//! <https://github.com/containernetworking/plugins/blob/v1.1.1/plugins/main/loopback/loopback.go>.

use gybe_netfilter::apply::redirection::Redirection;
use gybe_netfilter::kernel::routes::{Address, Rtnetlink};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::parent_id;
use std::path::Path;
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
/// `listed` are the namespace's addresses of a moment ago.
pub(crate) fn wait_for_loopback_plugin(
    redirection: &Redirection,
    rtnetlink: &mut Rtnetlink,
    listed: &[Address],
    netns: &Path,
) {
    if !redirection.routes.needs_passthrough_address() {
        return;
    }
    let start = Instant::now();
    let (mut last_running, mut is_down) = (start, lo_is_down(listed));
    loop {
        // Checked after the list: a process that has brought `lo` up by then has executed `loopback`, and is
        // found as long as it runs.
        if is_running(parent_id(), netns) {
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
    }
}

/// Reports whether `lo` is down: the kernel gives it addresses as it comes up.
fn lo_is_down(listed: &[Address]) -> bool {
    listed.iter().all(|address| address.index != 1)
}

/// Reports whether a child of `runtime` is the plugin `loopback` for this namespace. False where /proc does not list
/// children (it needs CONFIG_PROC_CHILDREN).
fn is_running(runtime: u32, netns: &Path) -> bool {
    let threads = fs::read_dir(format!("/proc/{runtime}/task"));
    let lists = threads.into_iter().flatten().flatten();
    let lists = lists.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let variable = [b"CNI_NETNS=", netns.as_os_str().as_bytes()].concat();
    // Without this process, whose files would take half of the time that an ADD spends here.
    let own = process::id().to_string();
    let is_match = |child: &str| child != own && is_loopback(child, &variable);
    lists.into_iter().any(|list| list.split_whitespace().any(is_match))
}

fn is_loopback(pid: &str, variable: &[u8]) -> bool {
    let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    read("comm") == b"loopback\n" && read("environ").split(|byte| *byte == 0).any(|set| set == variable)
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
        let own = process::id();
        let found = [(own, "/run/netns/a"), (own, "/run/netns/b"), (own, "/run/netns"), (1, "/run/netns/a")]
            .map(|(runtime, netns)| is_running(runtime, Path::new(netns)));
        drop(child.stdin.take());
        child.wait().unwrap();
        let after = is_running(own, Path::new("/run/netns/a"));
        assert_eq!((found, after), ([true, false, false, false], false));
    }
}
