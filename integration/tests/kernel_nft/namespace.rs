//! Programs that run in the namespace of a test.

pub(crate) use gybe_integration::namespace::in_new_namespace;
use std::process::Command;

/// Runs a program in the namespace of this thread and returns what it printed.
#[expect(clippy::disallowed_methods, reason = "the referees of these tests are nft and ip themselves")]
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn nft(arguments: &[&str]) -> String {
    run("nft", arguments)
}

pub(crate) fn ip(arguments: &str) -> String {
    run("ip", &arguments.split(' ').collect::<Vec<_>>())
}

/// Drops every capability of the calling thread; other threads keep theirs.
#[expect(unsafe_code, reason = "no crate here wraps capset(2), and libc's setuid(2) changes all threads")]
pub(crate) fn without_privilege() {
    // `struct __user_cap_header_struct`: version 3, pid 0 (the calling thread); then two empty data structures.
    let (header, no_capabilities) = ([0x2008_0522_u32, 0], [0_u32; 6]);
    // SAFETY: both pointers are to arrays of the size that this version of the call reads.
    let result = unsafe { nix::libc::syscall(nix::libc::SYS_capset, &header, &no_capabilities) };
    assert_eq!(result, 0, "capset");
}
