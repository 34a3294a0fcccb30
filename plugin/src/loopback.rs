//! The plugin `loopback`, which containerd runs beside our chain and not before it. It refuses a `lo`
//! that has an address it does not know, so our `::6` waits until it has looked.
//!
//! Both attach at the same time since go-cni 1.1.1, so in every containerd from 1.6 on
//! (<https://github.com/containerd/go-cni/pull/76>); the refusal is `loopback interface found with
//! non-loopback address` in
//! <https://github.com/containernetworking/plugins/blob/v1.1.1/plugins/main/loopback/loopback.go>.

use gybe_netfilter::redirection::Redirection;
use gybe_netfilter::routes::{Address, Rtnetlink};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

/// How long a `loopback` that runs is waited for. It takes a millisecond, and seconds on a node that
/// starts a hundred pods at once.
const AT_WORK: Duration = Duration::from_secs(5);

/// How long a `lo` that is down is waited for: containerd may not have come to starting `loopback`. A
/// runtime that raises it later, if there is one, must not be held up for long.
const DOWN: Duration = Duration::from_millis(250);

/// Between two looks. The end of somebody else's child cannot be waited for.
const PAUSE: Duration = Duration::from_millis(2);

/// Returns when nobody minds another address on `lo`, or when that took too long: then the runtime
/// tries the pod again. At once where none is to be added, and nearly so where the runtime has no such
/// plugin at work.
///
/// `listed` is what the namespace had for addresses a moment ago.
pub(crate) fn settle(redirection: &Redirection, rtnetlink: &mut Rtnetlink, listed: &[Address], netns: &Path) {
    if !redirection.routes.needs_passthrough_address() {
        return;
    }
    let start = Instant::now();
    let (mut unseen_since, mut is_down) = (start, is_down_by(listed));
    loop {
        // Behind the list: whoever has raised it by then is a program by now, and is seen as long as it
        // runs.
        if is_at_work(parent_id(), netns) {
            // Becoming a program it has no environment for a moment, and is not known.
            unseen_since = Instant::now();
        } else if !is_down {
            return;
        }
        if start.elapsed() >= AT_WORK || unseen_since.elapsed() >= DOWN {
            tracing::warn!("gybe-cni cmdAdd: lo is not up, or the loopback plugin has not come to its end");
            return;
        }
        thread::sleep(PAUSE);
        is_down = rtnetlink.addresses().is_ok_and(|listed| is_down_by(&listed));
    }
}

/// The kernel gives `lo` its addresses as it comes up.
fn is_down_by(listed: &[Address]) -> bool {
    listed.iter().all(|address| address.index != 1)
}

/// Whether a child of `runtime` is the plugin `loopback`, for this namespace. A /proc that does not
/// tell (it needs CONFIG_PROC_CHILDREN) tells nothing.
fn is_at_work(runtime: u32, netns: &Path) -> bool {
    let threads = fs::read_dir(format!("/proc/{runtime}/task"));
    let lists = threads.into_iter().flatten().flatten();
    let lists = lists.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let meant = [b"CNI_NETNS=", netns.as_os_str().as_bytes()].concat();
    // This process is one of them, and to look at itself is half of what an ADD spends here.
    let own = process::id().to_string();
    let is_one = |child: &str| child != own && is_loopback(child, &meant);
    lists.into_iter().any(|list| list.split_whitespace().any(is_one))
}

fn is_loopback(pid: &str, meant: &[u8]) -> bool {
    let of = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    of("comm") == b"loopback\n" && of("environ").split(|byte| *byte == 0).any(|set| set == meant)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn a_loopback_plugin_is_known_by_its_name_its_parent_and_its_namespace() {
        let place = std::env::temp_dir().join(format!("gybe-loopback-{}", process::id()));
        fs::create_dir_all(&place).unwrap();
        let program = place.join("loopback");
        fs::copy("/bin/cat", &program).unwrap();
        #[expect(clippy::disallowed_methods, reason = "the plugin it looks for is a program")]
        let mut command = Command::new(&program);
        command.env("CNI_NETNS", "/run/netns/a").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Once it answers it has become the program, and has its environment.
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let us = process::id();
        let found = [(us, "/run/netns/a"), (us, "/run/netns/b"), (us, "/run/netns"), (1, "/run/netns/a")]
            .map(|(runtime, netns)| is_at_work(runtime, Path::new(netns)));
        drop(child.stdin.take());
        child.wait().unwrap();
        let after = is_at_work(us, Path::new("/run/netns/a"));
        fs::remove_dir_all(&place).unwrap();
        assert_eq!((found, after), ([true, false, false, false], false));
    }
}
