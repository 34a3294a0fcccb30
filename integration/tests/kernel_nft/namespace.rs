//! A network namespace for one test, and programs run inside it.

use nix::sched::{CloneFlags, unshare};
use std::panic::resume_unwind;
use std::process::Command;
use std::thread;

/// Runs `work` on a thread in a network namespace of its own, which is gone afterwards.
pub(crate) fn in_new_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let errand = || {
        let entered = unshare(CloneFlags::CLONE_NEWNET);
        entered.expect("this test needs a network namespace of its own; run: make test-kernel");
        work()
    };
    thread::scope(|scope| scope.spawn(errand).join().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// Runs a program in the namespace of this thread and returns what it printed.
#[expect(clippy::disallowed_methods, reason = "the referees of these tests are nft and ip themselves")]
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn nft(arguments: &[&str]) -> String {
    run("nft", arguments)
}

pub(crate) fn ip(arguments: &str) -> String {
    run("ip", &arguments.split(' ').collect::<Vec<_>>())
}

/// Takes every capability from the calling thread, and from no other.
#[expect(unsafe_code, reason = "no crate here wraps capset(2), and setuid(2) of libc moves all threads")]
pub(crate) fn without_privilege() {
    // `struct __user_cap_header_struct` of version 3 for this thread, and two empty sets.
    let (header, nothing) = ([0x2008_0522_u32, 0], [0_u32; 6]);
    // SAFETY: both pointers are to arrays of the size that this version of the call reads.
    let answer = unsafe { nix::libc::syscall(nix::libc::SYS_capset, &header, &nothing) };
    assert_eq!(answer, 0, "capset");
}
