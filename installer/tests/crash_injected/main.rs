//! The installer with a fault injected at every one of its system calls: killed before it (F07, F14), or the call fails
//! (F11).
//!
//! A program without cargo's test harness, whose threads would add system calls: it runs itself under strace.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
#![allow(clippy::print_stdout, reason = "a program without a test harness prints its own report")]

mod scenario;
#[path = "../node/test_node.rs"]
#[allow(dead_code, reason = "shared with the tests of other targets")]
mod test_node;

use gybe_installer::host::watch::{DirectoryWatch, WakeReason, WatchMode};
use scenario::{ALL, Scenario, calls, traced};
use std::num::NonZero;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;
use test_node::TestNode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["one-pass", root, act] => scenario::one_pass(root.as_ref(), act),
        ["watch", root] => watch(root.as_ref()),
        ["scenario", name] => {
            let scenario = scenario::named(name);
            f07_f14_killed_before_every_call_the_node_works(scenario);
            f11_with_every_writing_call_refused_the_node_works(scenario);
            ExitCode::SUCCESS
        }
        // Arguments from cargo are ignored: the whole program is one test.
        _ => {
            run_every_scenario();
            f07_every_rename_is_synced_before_and_after();
            f12_without_inotify_changes_are_detected();
            f12_where_the_kernel_grants_no_inotify_changes_are_detected();
            ExitCode::SUCCESS
        }
    }
}

/// Runs the scenarios concurrently, one for each processor: strace and its tracee run alternately.
fn run_every_scenario() {
    let queue = Mutex::new(ALL.into_iter());
    let next = || queue.lock().unwrap().next();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| std::iter::from_fn(next).for_each(run_in_own_process));
        }
    });
}

/// Runs a scenario in a process of its own: between fork and exec a child holds all open files of its parent, so in one
/// shared process a scenario would find its lock held and its programs busy.
fn run_in_own_process(scenario: Scenario) {
    #[expect(clippy::disallowed_methods, reason = "runs this program for one scenario")]
    let status =
        Command::new(std::env::current_exe().unwrap()).args(["scenario", scenario.name]).status().unwrap();
    assert!(status.success(), "{}: {status}", scenario.name);
}

/// Kills the installer before each of its system calls: the node works, and the next pass completes the change.
fn f07_f14_killed_before_every_call_the_node_works(scenario: Scenario) {
    let desired = scenario.undisturbed();
    let calls = calls(&scenario.prepared(), scenario.act);
    let mut missed = Vec::new();
    for (n, call) in calls.iter().enumerate() {
        let node = scenario.prepared();
        let injection = call.injection("signal=KILL");
        let output = traced(&node, &["one-pass", scenario.act], &["-o", "/dev/null", "-e", &injection]);
        let when = format!("killed before call {n}: {}", call.text);
        if output.status.signal() != Some(9) && output.status.code() != Some(137) {
            missed.push(&call.text);
        }
        scenario.assert_node_works(&node, &when);
        assert_eq!(scenario.finish(&node), desired, "{} {when}", scenario.name);
    }
    // The number of calls for waiting and memory varies between runs; that of calls on files must not.
    let of_files =
        ["open", "read", "write", "rename", "unlink", "fsync", "mkdir", "fch", "close", "newfstat"];
    missed.retain(|call| of_files.iter().any(|name| call.starts_with(name)));
    assert!(missed.is_empty(), "{}: never reached: {missed:#?}", scenario.name);
    println!("{}: killed before each of {} calls", scenario.name, calls.len());
}

const WRITING: [&str; 7] = ["write", "fsync", "fchmod", "renameat2", "renameat", "unlinkat", "mkdirat"];

/// Each writing system call fails once with each usual error: existing files stay, the message names the path and a
/// hint, and the next pass completes the change.
fn f11_with_every_writing_call_refused_the_node_works(scenario: Scenario) {
    let desired = scenario.undisturbed();
    let mut calls = calls(&scenario.prepared(), scenario.act);
    calls.retain(|call| WRITING.contains(&call.name()));
    let mut reported = 0;
    for error in ["ENOSPC", "EROFS", "EACCES"] {
        for call in &calls {
            let node = scenario.prepared();
            let injection = call.injection(&format!("error={error}"));
            let output = traced(&node, &["one-pass", scenario.act], &["-o", "/dev/null", "-e", &injection]);
            let output_text = String::from_utf8(output.stdout.clone()).unwrap();
            let when = format!("refused with {error}: {}: {output_text}", call.text);
            // A failed call during cleanup or a program's trial run need not fail the pass.
            if output.status.code() == Some(3) {
                assert!(output_text.contains(node.root.to_str().unwrap()), "{} {when}", scenario.name);
                assert!(
                    output_text.contains(error) && !output_text.contains("hint: none"),
                    "{} {when}",
                    scenario.name
                );
                reported += 1;
            } else {
                assert!(output.status.success(), "{} {when}: {output:?}", scenario.name);
            }
            scenario.assert_node_works(&node, &when);
            assert_eq!(scenario.finish(&node), desired, "{} {when}", scenario.name);
        }
    }
    println!(
        "{}: {} writing calls failed with 3 errors each, {reported} reported",
        scenario.name,
        calls.len()
    );
}

/// Every file is synced before its rename, and its directory after it.
fn f07_every_rename_is_synced_before_and_after() {
    let mut renames = 0;
    for scenario in ALL {
        let calls = calls(&scenario.prepared(), scenario.act);
        let is = |n: usize, name: &str| calls.get(n).is_some_and(|call| call.is(name));
        for n in (0..calls.len()).filter(|n| is(*n, "renameat2") || is(*n, "renameat")) {
            renames += 1;
            let temporary_is_new = calls[n].text.contains(".gybe.tmp\", ");
            let made = (0..n).rev().find(|n| calls[*n].text.contains("O_CREAT"));
            let synced = (0..n).rev().find(|n| is(*n, "fsync"));
            assert!(!temporary_is_new || synced > made, "{}: {}", scenario.name, calls[n].text);
            let next = (n + 1..calls.len()).find(|n| is(*n, "renameat2") || is(*n, "renameat"));
            let then = (n + 1..next.unwrap_or(calls.len())).any(|n| is(n, "fsync"));
            assert!(then, "{}: not synced after {}", scenario.name, calls[n].text);
        }
        f07_any_part_of_an_unsynced_file_does_no_harm(scenario);
    }
    println!("{renames} renames, each synced before and after");
}

/// After a power loss any part of an unsynced file may exist under the temporary name.
fn f07_any_part_of_an_unsynced_file_does_no_harm(scenario: Scenario) {
    let desired = scenario.undisturbed();
    let longest =
        desired.0.iter().map(|(_, bytes)| bytes.as_slice()).max_by_key(|bytes| bytes.len()).unwrap();
    for end in 0..=longest.len() {
        let node = scenario.prepared();
        node.put(".gybe.tmp", &longest[..end]);
        std::fs::write(node.root.join("bin/.gybe.tmp"), &longest[..end]).unwrap();
        scenario.assert_node_works(&node, "with a part of a file");
        if end % 16 == 0 {
            assert_eq!(scenario.finish(&node), desired, "{} after {end} bytes", scenario.name);
        }
    }
}

/// Runs in the traced process: writes a file and waits until the watch reports it.
fn watch(root: &Path) -> ExitCode {
    let mut watch = DirectoryWatch::new([root.join("net.d")]);
    println!("{:?}", watch.mode());
    let by_inotify = watch.mode() == WatchMode::Inotify;
    std::fs::write(root.join("net.d/x"), "x").unwrap();
    let woken = watch.wait(Duration::from_secs(30), None);
    if woken == WakeReason::Changed && !by_inotify { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn f12_without_inotify_changes_are_detected() {
    for inject in ["inject=inotify_init1:error=EMFILE", "inject=inotify_add_watch:error=ENOSPC"] {
        let node = TestNode::new();
        let output = traced(&node, &["watch"], &["-o", "/dev/null", "-e", inject]);
        assert!(output.status.success(), "{inject}: {output:?}");
    }
    println!("without inotify: changes are detected by polling");
}

/// The same without fault injection: in a user namespace whose `user.max_inotify_instances` is 0.
fn f12_where_the_kernel_grants_no_inotify_changes_are_detected() {
    let node = TestNode::new();
    let limited = "echo 0 > /proc/sys/user/max_inotify_instances && exec \"$0\" watch \"$1\"";
    #[expect(clippy::disallowed_methods, reason = "unshare makes the namespace")]
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "sh", "-c", limited]);
    let output = unshare.arg(std::env::current_exe().unwrap()).arg(&node.root).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "Polling(EMFILE)\n");
    println!("with max_inotify_instances 0: changes are detected by polling");
}
