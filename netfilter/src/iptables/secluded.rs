//! A thread whose view of the host's files is its own, so that numbers stay numbers.
//!
//! `iptables-restore` looks every id up as a name before it reads it as a number, also when only
//! numbers are written: libxt_owner calls `getpwnam("1337")`. Seen with
//! `strace -f -e trace=openat,connect iptables-nft-restore --noflush` (1.8.9, both variants) on one rule
//! with `--uid-owner 1337`: /var/run/nscd/socket, /etc/nsswitch.conf, /etc/passwd, libnss_systemd.
//! A directory service can thus make it wait, and a user named "1337" can change a rule's meaning.

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::{io, panic, thread};

/// What the programs must not see. Empty, the first means "files only" to the C library.
const MASKED: [&str; 4] = ["/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/var/run/nscd/socket"];

/// Does work on a thread with no users' and groups' names; its children inherit that.
///
/// The thread keeps the caller's network namespace, and ends with the work: nothing has to be
/// undone. Where the kernel does not allow the mounts the work is done all the same, as it is right
/// on every node whose users are not named like numbers.
pub(super) fn secluded<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let errand = thread::Builder::new().name("iptables".to_owned()).spawn_scoped(scope, || {
            let _best_effort = mask_names();
            work()
        })?;
        Ok(errand.join().unwrap_or_else(|panic| panic::resume_unwind(panic)))
    })
}

fn mask_names() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Private first: a shared mount would show the host an empty /etc/passwd.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
    for path in MASKED {
        match mount(Some("/dev/null"), path, None::<&str>, MsFlags::MS_BIND, None::<&str>) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
