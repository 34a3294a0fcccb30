//! Standard streams of a plugin call that are full, broken, closed, or never closed.

use crate::program::{
    exit_with_stderr, exit_with_stdout, run_with_closed, run_with_open_stdin, run_with_stdin,
};
use std::io::Write;
use std::sync::mpsc;
use std::time::Duration;
use std::{fs, io};

#[test]
fn f35_a_full_pipe_on_stderr_does_not_block_a_call() {
    let (_reader, mut writer) = io::pipe().unwrap();
    // A pipe holds 64 KiB (pipe(7)), so it is full now.
    writer.write_all(&[b'x'; 65536]).unwrap();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(exit_with_stderr(writer, [("CNI_COMMAND", "FOO")])));
    assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(Some(1)));
}

#[test]
fn f35_a_broken_pipe_on_stderr_does_not_change_the_exit_status() {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    assert_eq!(exit_with_stderr(writer, [("CNI_COMMAND", "FOO")]), Some(1));
}

#[test]
fn a10_stdin_that_never_ends_is_an_error_in_time() {
    let env = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/nonexistent"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
    ];
    let before = std::time::Instant::now();
    let outcome = run_with_open_stdin(env, r#"{"cniVersion": "1.0.0", "name": "net""#);
    assert!(before.elapsed() < Duration::from_secs(20), "{:?}", before.elapsed());
    assert_eq!((outcome.exit, outcome.code()), (Some(1), Some(5)), "{outcome:?}");
    assert!(outcome.message().contains("GYBE-ADD-003: stdin did not end within"), "{outcome:?}");
    let endless = fs::File::open("/dev/zero").unwrap();
    let outcome = run_with_stdin(env, endless);
    assert!(outcome.message().contains("GYBE-ADD-003: stdin holds more than"), "{outcome:?}");
}

#[test]
fn f34_a_result_that_goes_to_a_broken_pipe_is_a_failure() {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let closed = fs::File::from(std::os::fd::OwnedFd::from(writer));
    assert_eq!(exit_with_stdout(closed, [("CNI_COMMAND", "VERSION")]), Some(1));
}

#[test]
fn f34_a_result_that_cannot_be_written_is_a_failure() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    assert_eq!(exit_with_stdout(full, [("CNI_COMMAND", "VERSION")]), Some(1));
}

/// If a standard descriptor is closed, the next file that the plugin opens would get its number.
#[test]
fn f34_a_closed_standard_descriptor_is_not_reused_for_another_file() {
    let status = [("CNI_COMMAND", "STATUS"), ("CNI_PATH", "/opt/cni/bin")];
    let outcome = run_with_closed("<&-", status);
    assert_eq!((outcome.exit, outcome.code()), (Some(1), Some(6)), "empty stdin: {outcome:?}");
    for closing in [">&-", "2>&-", "<&- >&- 2>&-"] {
        assert_eq!(run_with_closed(closing, [("CNI_COMMAND", "VERSION")]).exit, Some(0), "{closing}");
    }
}
