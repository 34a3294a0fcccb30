//! Starts programs in the user namespace that owns the network namespace. The only module of `iptables` with unsafe
//! code.
//!
//! The kernel refuses the owner match with EINVAL unless the writing process is in that user namespace (`owner_check`,
//! net/netfilter/xt_owner.c, v6.18), and it refuses `setns(CLONE_NEWUSER)` to a process with several threads. The
//! child therefore enters the user namespace, between fork and exec.
#![expect(
    unsafe_code,
    reason = "an ioctl that returns a descriptor, and pre_exec: neither has a safe wrapper"
)]

use nix::sched::{CloneFlags, setns};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// `NS_GET_USERNS`, include/uapi/linux/nsfs.h.
mod request {
    nix::ioctl_none!(owning_user_namespace, 0xb7, 0x1);
}

/// Returns the user namespace that owns the calling thread's network namespace, or `None` if the thread is in it.
pub(super) fn foreign_owner() -> io::Result<Option<OwnedFd>> {
    let netns = File::open("/proc/thread-self/ns/net")?;
    // SAFETY: the descriptor is open for the whole call, and this request takes no argument.
    let owner = unsafe { request::owning_user_namespace(netns.as_raw_fd()) }?;
    // SAFETY: on success the kernel has opened this descriptor for this call, and no other value owns it.
    let owner = File::from(unsafe { OwnedFd::from_raw_fd(owner) });
    let own = std::fs::metadata("/proc/thread-self/ns/user")?;
    let theirs = owner.metadata()?;
    let same = (own.dev(), own.ino()) == (theirs.dev(), theirs.ino());
    Ok((!same).then(|| owner.into()))
}

/// Reports whether this process is in the user namespace that owns the calling thread's network namespace, whose ids the
/// rules compare (`nft_meta_get_eval_skugid`, net/netfilter/nft_meta.c, and `owner_mt`, net/netfilter/xt_owner.c, v6.18).
///
/// # Errors
/// When `/proc` cannot be read, or the kernel refuses the ioctl `NS_GET_USERNS`.
pub fn is_in_owning_user_namespace() -> io::Result<bool> {
    foreign_owner().map(|owner| owner.is_none())
}

/// Makes the kernel kill `command` when the thread that started it ends, and start it as root of `user_namespace`.
pub(super) fn confine(command: &mut Command, user_namespace: Option<OwnedFd>) {
    let enter = move || {
        if let Some(owner) = &user_namespace {
            // The node's groups own files of the node. Here it takes CAP_SETGID, there the right of every new root.
            let dropped = setgroups(&[]);
            setns(owner, CloneFlags::CLONE_NEWUSER)?;
            dropped.or_else(|_| setgroups(&[]))?;
            // Only uid 0 of the new namespace keeps its capabilities over exec.
            let (user, group) = (Uid::from_raw(0), Gid::from_raw(0));
            setresgid(group, group, group)?;
            setresuid(user, user, user)?;
        }
        // Last, because a change of uid clears the signal. When the caller is killed, the program must stop writing
        // rules.
        set_pdeathsig(Signal::SIGKILL)?;
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls only: it does not allocate, lock or panic, and it
    // captures a plain descriptor.
    unsafe { command.pre_exec(enter) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::time::{Duration, Instant};

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the tested function configures a command")]
    fn a_program_is_killed_with_the_thread_that_started_it() {
        let started = std::thread::spawn(|| {
            let mut command = Command::new("/bin/sleep");
            confine(command.arg("600"), None);
            command.spawn().unwrap()
        });
        let mut child = started.join().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let status = loop {
            match child.try_wait().unwrap() {
                None if Instant::now() < until => std::thread::yield_now(),
                status => break status,
            }
        };
        let _ = child.kill();
        let _ = child.wait();
        let signal = status.expect("the program outlives its caller").signal();
        assert_eq!(signal, Some(Signal::SIGKILL as i32));
    }
}
