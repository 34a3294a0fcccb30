//! The pipes a call is made with: never waited for without end, never taken for what they are not.

use crate::program::{exit_logging_to, exit_writing_to, run_held_open, run_reading, run_without};
use std::io::Write;
use std::sync::mpsc;
use std::time::Duration;
use std::{fs, io};

#[test]
fn f35_a_log_nobody_reads_does_not_hold_a_call() {
    let (_reader, mut writer) = io::pipe().unwrap();
    // A pipe holds 64 KiB (pipe(7)); now it holds no line more.
    writer.write_all(&[b'x'; 65536]).unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(exit_logging_to(writer, [("CNI_COMMAND", "FOO")])));
    assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(Some(1)));
}

#[test]
fn f35_a_log_whose_reader_is_gone_changes_no_answer() {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    assert_eq!(exit_logging_to(writer, [("CNI_COMMAND", "FOO")]), Some(1));
}

#[test]
fn a10_stdin_that_never_ends_is_not_waited_for() {
    let env = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/nonexistent"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
    ];
    let before = std::time::Instant::now();
    let outcome = run_held_open(env, r#"{"cniVersion": "1.0.0", "name": "net""#);
    assert!(before.elapsed() < Duration::from_secs(20), "{:?}", before.elapsed());
    assert_eq!((outcome.exit, outcome.code()), (Some(1), Some(5)), "{outcome:?}");
    assert!(outcome.message().contains("GYBE-ADD-003: stdin did not end within"), "{outcome:?}");
    let endless = fs::File::open("/dev/zero").unwrap();
    let outcome = run_reading(env, endless);
    assert!(outcome.message().contains("GYBE-ADD-003: stdin holds more than"), "{outcome:?}");
}

#[test]
fn f34_a_runtime_that_closed_its_ear_is_not_told_success() {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let closed = fs::File::from(std::os::fd::OwnedFd::from(writer));
    assert_eq!(exit_writing_to(closed, [("CNI_COMMAND", "VERSION")]), Some(1));
}

#[test]
fn f34_a_runtime_that_does_not_listen_is_not_told_success() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    assert_eq!(exit_writing_to(full, [("CNI_COMMAND", "VERSION")]), Some(1));
}

/// Else the next file opened takes the number, and is read or written in its place.
#[test]
fn f34_a_descriptor_that_the_caller_closed_stays_nobodys() {
    let status = [("CNI_COMMAND", "STATUS"), ("CNI_PATH", "/opt/cni/bin")];
    let outcome = run_without("<&-", status);
    assert_eq!((outcome.exit, outcome.code()), (Some(1), Some(6)), "an empty entry: {outcome:?}");
    for closing in [">&-", "2>&-", "<&- >&- 2>&-"] {
        assert_eq!(run_without(closing, [("CNI_COMMAND", "VERSION")]).exit, Some(0), "{closing}");
    }
}
