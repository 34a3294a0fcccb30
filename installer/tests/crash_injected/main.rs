//! The installer with faults injected at its system calls: it is killed before one (F07, F14), or one fails (F11).
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

mod system_calls;
#[path = "../node/test_node.rs"]
#[allow(dead_code, reason = "shared with the tests of other targets")]
mod test_node;

use gybe_installer::host::apply::ChangeError;
use gybe_installer::host::desired::{DesiredState, PutBack, Shape};
use gybe_installer::host::libcni::choose;
use gybe_installer::host::observe::runtimes::{DropIns, Runtime};
use gybe_installer::host::observe::{ObserveScope, TEMPORARY};
use gybe_installer::host::pass::{Pass, PassHistory, pass};
use gybe_installer::host::watch::{DirectoryWatch, WakeReason, WatchMode};
use gybe_netfilter::model::Hint;
use gybe_test_support::is_exhaustive;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::collections::{BTreeMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};
use system_calls::{Call, calls, traced};
use test_node::{TestNode, chained, directories, install, installed, name, uninstalled};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["one-pass", root, act] => one_pass(root.as_ref(), act),
        ["watch", root] => watch(root.as_ref()),
        ["scenario", name] => {
            let scenario = named(name);
            f07_f14_killed_before_a_call_the_node_works(scenario);
            f11_with_every_writing_call_refused_the_node_works(scenario);
            ExitCode::SUCCESS
        }
        ["in-memory"] => {
            run_every_scenario();
            f07_every_rename_is_synced_before_and_after();
            f12_without_inotify_changes_are_detected();
            f12_where_the_kernel_grants_no_inotify_changes_are_detected();
            ExitCode::SUCCESS
        }
        // Arguments from cargo are ignored: the whole program is one test.
        _ => {
            let status = in_memory().status().unwrap();
            assert!(status.success(), "{status}; this needs user namespaces: integration/as-root.sh");
            ExitCode::SUCCESS
        }
    }
}

/// Runs this program with the nodes' directories in memory: ext4 creates files slowly after many deletions, because it
/// does not use their inodes again for some seconds.
#[expect(clippy::disallowed_methods, reason = "unshare makes the namespaces")]
fn in_memory() -> Command {
    let mount = "mount -t tmpfs tmpfs \"$1\" && exec \"$0\" in-memory";
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--mount", "sh", "-c", mount]);
    unshare.arg(std::env::current_exe().unwrap()).arg(env!("CARGO_TARGET_TMPDIR"));
    unshare
}

/// Runs the scenarios concurrently, one on each processor: strace and its tracee run alternately, and to wake the other
/// one on another processor takes longer than most system calls.
fn run_every_scenario() {
    let queue = Mutex::new(ALL.into_iter());
    let next = || queue.lock().unwrap().next();
    let this_thread = Pid::from_raw(0);
    let allowed = sched_getaffinity(this_thread).unwrap();
    thread::scope(|scope| {
        for processor in (0..CpuSet::count()).filter(|n| allowed.is_set(*n).unwrap()) {
            scope.spawn(move || {
                let mut only = CpuSet::new();
                only.set(processor).unwrap();
                sched_setaffinity(this_thread, &only).unwrap();
                std::iter::from_fn(next).for_each(run_in_own_process);
            });
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

/// Kills the installer before its system calls: the node works, and the next pass completes the change. The result
/// depends on the disk, on locks and on children. Therefore no kill is made where the call before changed none of them,
/// unless `GYBE_EXHAUSTIVE` is set. Each state of the disk is examined once, and again right after a child was started.
fn f07_f14_killed_before_a_call_the_node_works(scenario: Scenario) {
    let desired = scenario.undisturbed();
    let calls = calls(&scenario.prepared(), scenario.act);
    let exhaustive = is_exhaustive();
    let (mut kills, mut missed, mut examined) = (0, Vec::new(), HashSet::new());
    for (n, call) in calls.iter().enumerate().filter(|(_, call)| exhaustive || call.follows_a_change) {
        kills += 1;
        let node = scenario.prepared();
        let injection = call.injection("signal=KILL");
        let output = traced(&node, &["one-pass", scenario.act], &["-o", "/dev/null", "-e", &injection]);
        let when = format!("killed before call {n}: {}", call.text);
        if output.status.signal() != Some(9) && output.status.code() != Some(137) {
            missed.push(&call.text);
        }
        let child_was_started = calls[n.saturating_sub(3)..n].iter().any(Call::starts_a_child);
        let is_new = examined.insert(state(&node.root, ""));
        assert!(!is_new || call.follows_a_change, "{} {when}: the call before has an effect", scenario.name);
        if is_new || child_was_started {
            scenario.assert_node_works(&node, &when);
            assert_eq!(scenario.finish(&node), desired, "{} {when}", scenario.name);
        }
    }
    // The number of calls for waiting and memory varies between runs; that of calls on files must not.
    let of_files =
        ["open", "read", "write", "rename", "unlink", "fsync", "mkdir", "fch", "close", "newfstat"];
    missed.retain(|call| of_files.iter().any(|name| call.starts_with(name)));
    assert!(missed.is_empty(), "{}: never reached: {missed:#?}", scenario.name);
    println!("{}: killed before {kills} of {} calls, {} states", scenario.name, calls.len(), examined.len());
}

/// Returns the name, owner, mode and content of all files below a directory. The name of a temporary file contains a
/// process ID and a time, and is replaced.
fn state(directory: &Path, prefix: &str) -> BTreeMap<String, (u32, u32, u32, Vec<u8>)> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let name = format!("{prefix}{}", if name.ends_with(TEMPORARY) { TEMPORARY } else { &name });
        let (of, kind) = (entry.metadata().unwrap(), entry.file_type().unwrap());
        if kind.is_dir() {
            files.extend(state(&entry.path(), &format!("{name}/")));
        }
        let content = if kind.is_file() { std::fs::read(entry.path()).unwrap() } else { Vec::new() };
        files.insert(name, (of.uid(), of.gid(), of.mode(), content));
    }
    files
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
    let leave = |node: &TestNode, end: usize| {
        node.put(".gybe.tmp", &longest[..end]);
        std::fs::write(node.root.join("bin/.gybe.tmp"), &longest[..end]).unwrap();
    };
    let node = scenario.prepared();
    for end in 0..=longest.len() {
        leave(&node, end);
        scenario.assert_node_works(&node, "with a part of a file");
    }
    for end in (0..=longest.len()).step_by(16) {
        let node = scenario.prepared();
        leave(&node, end);
        assert_eq!(scenario.finish(&node), desired, "{} after {end} bytes", scenario.name);
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

const LIST: &str =
    "{\n  \"name\": \"net\",\n  \"plugins\": [\n    {\n      \"type\": \"calico\"\n    }\n  ]\n}\n";
const SINGLE: &str = "{\n  \"name\": \"net\",\n  \"type\": \"calico\"\n}\n";
const ISTIO: &str = "{\"name\":\"net\",\"plugins\":[{\"type\":\"calico\"},{\"type\":\"istio-cni\"}]}\n";

/// One pass over a prepared directory.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    file: (&'static str, &'static str),
    /// The passes that prepare the directory, without faults.
    before: &'static [&'static str],
    /// Whether the primary rewrites its file after those.
    rewritten: bool,
    pub(crate) act: &'static str,
}

const fn scenario(
    name: &'static str,
    file: (&'static str, &'static str),
    before: &'static [&'static str],
    act: &'static str,
) -> Scenario {
    Scenario { name, file, before, rewritten: false, act }
}

const A_LIST: (&str, &str) = ("10-a.conflist", LIST);
const A_SINGLE: (&str, &str) = ("10-a.conf", SINGLE);

pub(crate) const ALL: [Scenario; 12] = [
    scenario("install into a list", A_LIST, &[], "chained"),
    scenario("install into a .conf", A_SINGLE, &[], "chained"),
    scenario("take over from istio-cni", ("10-a.conflist", ISTIO), &[], "chained"),
    scenario("upgrade", A_LIST, &["chained"], "upgraded"),
    Scenario { rewritten: true, ..scenario("repair a list", A_LIST, &["chained"], "chained") },
    Scenario { rewritten: true, ..scenario("repair a .conf", A_SINGLE, &["chained"], "chained") },
    scenario("uninstall from a list", A_LIST, &["chained"], "left"),
    scenario("uninstall from a .conf", A_SINGLE, &["chained"], "left"),
    scenario("remove the tombstone", A_LIST, &["chained", "left"], "left"),
    scenario("chained becomes a drop-in", A_LIST, &["chained"], "drop-in"),
    scenario("a drop-in becomes chained", A_LIST, &["drop-in"], "chained"),
    scenario("chained becomes standalone", A_SINGLE, &["chained"], "standalone"),
];

pub(crate) fn named(name: &str) -> Scenario {
    ALL.into_iter().find(|scenario| scenario.name == name).unwrap_or_else(|| panic!("no scenario {name}"))
}

pub(crate) fn desired_state(root: &Path, act: &str) -> DesiredState {
    match act {
        "chained" => chained(root),
        "upgraded" => DesiredState::Installed(install(root, Shape::Chained { pinned: None }, "2")),
        "drop-in" => installed(root, Shape::DropIn),
        "standalone" => installed(root, Shape::Standalone { file: name("YYY-gybe-cni.conf") }),
        "left" => uninstalled(root, PutBack::Nothing),
        other => panic!("no act {other}"),
    }
}

/// Runs in the traced process: makes one pass and prints its errors.
pub(crate) fn one_pass(root: &Path, act: &str) -> ExitCode {
    let desired_state = desired_state(root, act);
    // A marker in the trace: the calls before it only start the process.
    let _ = nix::unistd::getppid();
    let pass = pass(&directories(root), &desired_state, &mut PassHistory::default()).unwrap();
    for error in &pass.applied.failed {
        println!("{}", error_line(&error.why));
    }
    if pass.applied.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(3) }
}

fn error_line(error: &ChangeError) -> String {
    let mut line = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(why) = cause {
        line = format!("{line}: {why}");
        cause = why.source();
    }
    format!("{line}; hint: {}", error.hint().unwrap_or("none".into()))
}

impl Scenario {
    pub(crate) fn prepared(&self) -> TestNode {
        let node = TestNode::with(&[self.file]);
        for act in self.before {
            node.pass(&desired_state(&node.root, act));
        }
        if self.rewritten {
            node.put(self.file.0, self.file.1.replace("\"calico\"", "\"cilium\""));
        }
        // Writes the image's programs here, not in the traced process.
        let _ = desired_state(&node.root, self.act);
        node
    }

    /// Returns the files and programs after a run without faults.
    pub(crate) fn undisturbed(&self) -> (Vec<(String, Vec<u8>)>, Vec<String>) {
        let node = self.prepared();
        self.finish(&node)
    }

    /// Makes the next passes, which must complete the change, and returns the files and programs.
    pub(crate) fn finish(&self, node: &TestNode) -> (Vec<(String, Vec<u8>)>, Vec<String>) {
        let desired_state = desired_state(&node.root, self.act);
        for _ in 0..2 {
            let pass = pass_once_unlocked(node, &desired_state);
            assert!(pass.applied.failed.is_empty(), "{}: {:?}", self.name, pass.applied.failed);
        }
        let last = node.pass(&desired_state);
        assert!(last.plan.changes.is_empty(), "{}: {:#?}", self.name, last.plan);
        (node.files().into_iter().collect(), node.programs())
    }

    /// Asserts what must hold after any fault: both runtimes load the primary's chain, and if it names Gybe's plugin,
    /// that program is complete.
    pub(crate) fn assert_node_works(&self, node: &TestNode, when: &str) {
        let observed = node.observe(&ObserveScope::default());
        for runtime in [Runtime::Containerd, Runtime::CriO] {
            let choice = choose(&observed.conf, runtime, DropIns::Loaded)
                .unwrap_or_else(|why| panic!("{} {when}: {why:?}", self.name));
            assert_eq!(choice.network.name, "net", "{} {when}", self.name);
            let first = if self.rewritten { "cilium" } else { "calico" };
            assert_eq!(choice.network.plugins[0], first, "{} {when}", self.name);
            if choice.network.plugins.contains(&"gybe-cni".to_owned()) {
                let text = std::fs::read_to_string(node.root.join("bin/gybe-cni")).unwrap();
                assert!(text.contains("supportedVersions") && text.ends_with('\n'), "{} {when}", self.name);
            }
        }
    }
}

/// Repeats the pass until the lock is free: a child that the killed process had forked holds the lock until its exec.
fn pass_once_unlocked(node: &TestNode, desired_state: &DesiredState) -> Pass {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match pass(&node.directories(), desired_state, &mut PassHistory::default()) {
            Err(_) if Instant::now() < until => thread::yield_now(),
            pass => return pass.unwrap(),
        }
    }
}
