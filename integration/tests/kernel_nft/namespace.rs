//! A network namespace for one test, and programs run inside it.

use gybe_netfilter::netns::Netns;
use std::process::Command;

/// Runs `work` in a network namespace of its own.
pub(crate) fn in_new_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let netns = Netns::create();
    let netns = netns.expect("this test needs a network namespace of its own; run: make test-kernel");
    netns.run(work).unwrap()
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
