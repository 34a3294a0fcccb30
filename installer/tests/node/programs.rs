//! A program is renamed into place only after it was hashed and run once; until then the previous program stays.
//! Replacements by another owner's are rate limited after the fifth, and the likely owner is reported.

use crate::test_node::{StopFlag, TestNode, chained, install, program};
use gybe_installer::host::apply::{ChangeError, TrialError};
use gybe_installer::host::desired::{DesiredState, Install, PlacementOrder, Shape};
use gybe_installer::host::observe::{Directory, Hash};
use gybe_installer::host::pass::{PassHistory, pass};
use gybe_netfilter::model::Hint;
use gybe_plugin::version::BUILD_MARK;
use nix::errno::Errno;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

const LIST: &str = "{\"name\":\"net\",\"plugins\":[{\"type\":\"calico\"}]}";

/// Returns an install of build 2 with these bytes as its plugin.
fn with_plugin(node: &TestNode, bytes: &[u8]) -> Install {
    let mut desired = install(&node.root, Shape::Chained { pinned: None }, "2");
    let program = &mut desired.programs[0];
    program.source = node.root.join("image/bad");
    program.hash = Hash::of(bytes);
    fs::write(&program.source, bytes).unwrap();
    desired
}

fn refused_placement(node: &TestNode, desired: Install) -> ChangeError {
    let pass = node.pass(&DesiredState::Installed(desired));
    let mut failed = pass.applied.failed;
    assert_eq!(failed.len(), 1, "{failed:?}");
    failed.remove(0).why
}

#[test]
fn f10_a_program_that_does_not_run_is_not_installed_and_nothing_names_it() {
    let elf = [b"\x7fELF\x02\x01\x01".as_slice(), &[0; 57]].concat();
    let cases: [(&[u8], TrialError); 4] = [
        (&elf, TrialError::NotRun(Errno::ENOEXEC)),
        (b"#!/bin/sh\nexit 3\n", TrialError::Failed("exit status: 3".into())),
        (b"#!/bin/sh\necho hello\n", TrialError::NoVersions),
        (b"#!/no/such/interpreter\n", TrialError::NotRun(Errno::ENOENT)),
    ];
    for (bytes, expected) in cases {
        let node = TestNode::with(&[("10-a.conflist", LIST)]);
        let error = refused_placement(&node, with_plugin(&node, bytes));
        assert!(matches!(&error, ChangeError::Trial { why, .. } if *why == expected), "{error:?}");
        assert_eq!(node.text("10-a.conflist"), LIST);
        assert!(node.programs().is_empty(), "{:?}", node.programs());
    }
}

#[test]
fn f10_a_failed_upgrade_keeps_the_old_program_and_still_repairs_the_chain() {
    let node = TestNode::with(&[("10-a.conflist", LIST)]);
    node.settle(&chained(&node.root));
    node.put("10-a.conflist", LIST);
    let bad = with_plugin(&node, b"#!/bin/sh\nexit 1\n");
    refused_placement(&node, bad);
    assert_eq!(node.chain().1, ["calico", "gybe-cni"]);
    assert!(fs::read_to_string(node.root.join("bin/gybe-cni")).unwrap().contains("# 1\n"));
}

/// No conf file names a further name, and the existing program of that name may have another owner.
#[test]
fn f10_a_further_name_that_cannot_be_placed_does_not_delay_the_chain() {
    for is_foreign in [false, true] {
        let node = TestNode::with(&[("10-a.conflist", LIST)]);
        let (theirs, ran) = (node.root.join("bin/istio-iptables"), node.root.join("ran"));
        if is_foreign {
            fs::write(&theirs, format!("#!/bin/sh\n: > '{}'\n", ran.display())).unwrap();
            fs::set_permissions(&theirs, Permissions::from_mode(0o755)).unwrap();
        }
        let mut desired = install(&node.root, Shape::Chained { pinned: None }, "1");
        let mut further = program(&node.root, "istio-iptables", "1");
        further.source = node.root.join("image/none");
        desired.programs.push(further);
        assert!(matches!(refused_placement(&node, desired), ChangeError::System { .. }));
        assert_eq!(node.chain().1, ["calico", "gybe-cni"]);
        assert_eq!((theirs.exists(), ran.exists()), (is_foreign, false));
    }
}

#[test]
fn f37_the_entry_waits_for_the_tool_only_where_the_plugin_runs_it() {
    for (need, chain) in [
        (PlacementOrder::AfterEntry, ["calico", "gybe-cni"].as_slice()),
        (PlacementOrder::BeforeEntry, ["calico"].as_slice()),
    ] {
        let node = TestNode::with(&[("10-a.conflist", LIST)]);
        // Makes the tool's placement fail, as on a disk that has room for the plugin only.
        fs::create_dir(node.root.join("bin/gybe")).unwrap();
        let mut desired = install(&node.root, Shape::Chained { pinned: None }, "1");
        desired.programs[1].need = need;
        assert!(matches!(refused_placement(&node, desired), ChangeError::System { why: Errno::EISDIR, .. }));
        assert_eq!(node.chain().1, chain, "{need:?}");
        assert!(node.root.join("bin/gybe-cni").exists(), "the plugin is placed first");
    }
}

/// Entry and program were installed before; since then the program was damaged and the conf rewritten without the
/// entry.
#[test]
fn f10_no_conf_names_a_program_that_does_not_work_and_cannot_be_replaced() {
    let directory: fn(&Path) = |plugin| fs::create_dir(plugin).unwrap();
    let empty: fn(&Path) = |plugin| fs::write(plugin, "").unwrap();
    let good = b"#!/bin/sh\necho '{\"supportedVersions\":[\"1.0.0\"]}'\n".as_slice();
    for (spoil, image) in
        [(directory, good), (directory, b"#!/bin/sh\nexit 1\n"), (empty, b"#!/bin/sh\nexit 1\n")]
    {
        let node = TestNode::with(&[("10-a.conflist", LIST)]);
        node.settle(&chained(&node.root));
        node.put("10-a.conflist", LIST);
        let plugin = node.root.join("bin/gybe-cni");
        fs::remove_file(&plugin).unwrap();
        spoil(&plugin);
        refused_placement(&node, with_plugin(&node, image));
        assert_eq!(node.text("10-a.conflist"), LIST);
    }
}

/// The remaining process holds the program's stdout open.
#[test]
fn a10_a_trial_does_not_wait_for_processes_that_the_program_leaves_running() {
    let node = TestNode::with(&[("10-a.conflist", LIST)]);
    let fifo = node.root.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let answer = r#"{"supportedVersions":["1.0.0"]}"#;
    let script = format!("#!/bin/sh\nread -r _ <'{}' &\necho '{answer}'\n", fifo.display());
    let desired = with_plugin(&node, script.as_bytes());
    let pass = node.pass(&DesiredState::Installed(desired));
    // Opening and closing the other end of the fifo ends that process.
    drop(fs::OpenOptions::new().write(true).open(fifo).unwrap());
    assert!(pass.applied.failed.is_empty(), "{:?}", pass.applied.failed);
    assert_eq!(node.chain().1, ["calico", "gybe-cni"]);
}

#[test]
fn f10_a_single_flipped_bit_is_detected() {
    let node = TestNode::with(&[("10-a.conflist", LIST)]);
    let whole = [b"#!/bin/sh\nexit 0\n#".as_slice(), &[b'x'; 20_000]].concat();
    for page in 0..=whole.len() / 4096 {
        let mut desired = with_plugin(&node, &whole);
        let mut flipped = whole.clone();
        flipped[page * 4096] ^= 4;
        fs::write(&desired.programs[0].source, flipped).unwrap();
        desired.programs[0].hash = Hash::of(&whole);
        assert!(matches!(refused_placement(&node, desired), ChangeError::Damaged { .. }), "page {page}");
    }
    assert!(node.programs().is_empty());
}

#[test]
fn f09_a_program_is_replaced_while_it_runs() {
    const ROUNDS: usize = 50;
    let node = TestNode::with(&[("10-a.conflist", LIST)]);
    node.settle(&chained(&node.root));
    let (stop, runs, plugin) = (AtomicBool::new(false), AtomicUsize::new(0), node.root.join("bin/gybe-cni"));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                #[expect(clippy::disallowed_methods, reason = "as a runtime does")]
                while !stop.load(Ordering::Relaxed) {
                    let output = Command::new(&plugin).output().expect("the program can be run at any time");
                    assert!(output.status.success());
                    runs.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _stop = StopFlag(&stop);
        for round in 0..ROUNDS {
            let build = if round % 2 == 0 { "2" } else { "1" };
            let desired = install(&node.root, Shape::Chained { pinned: None }, build);
            let pass = node.pass(&DesiredState::Installed(desired));
            assert!(pass.applied.failed.is_empty(), "{:?}", pass.applied.failed);
        }
    });
    println!("replaced {ROUNDS} times under {} runs", runs.load(Ordering::Relaxed));
}

#[test]
fn a08_a_program_that_other_users_may_write_is_replaced_although_its_content_is_right() {
    let node = TestNode::with(&[("10-a.conflist", LIST)]);
    node.settle(&chained(&node.root));
    let plugin = node.root.join("bin/gybe-cni");
    fs::set_permissions(&plugin, Permissions::from_mode(0o777)).unwrap();
    node.settle(&chained(&node.root));
    assert_eq!(fs::metadata(&plugin).unwrap().permissions().mode() & 0o7777, 0o755);
}

#[test]
fn f37_missing_directories_are_reported_and_not_created() {
    let node = TestNode::with(&[("10-a.conflist", LIST)]);
    for folder in ["bin", "net.d"] {
        fs::remove_dir_all(node.root.join(folder)).unwrap();
        let pass = node.pass(&chained(&node.root));
        assert!(!pass.left.is_done() && pass.left.problems.iter().all(|problem| problem.hint().is_some()));
    }
}

type Undo = fn(&Path);

/// Replaces the program as istio-cni's installer does: with a complete file, by rename.
fn replace(program: &Path) {
    let theirs = program.with_file_name(".theirs");
    fs::write(&theirs, "#!/bin/sh\n# theirs\n").unwrap();
    fs::rename(theirs, program).unwrap();
}

fn remove(program: &Path) {
    fs::remove_file(program).unwrap();
}

fn open_to_all(program: &Path) {
    fs::set_permissions(program, Permissions::from_mode(0o777)).unwrap();
}

#[test]
fn f05_a_conflict_over_a_program_is_rate_limited_and_names_the_likely_owner_and_a_remedy() {
    let cases: [(&str, Undo, &str, &str); 6] = [
        ("gybe-cni", replace, "replaced", "an agent of another version of Gybe: one DaemonSet of Gybe"),
        ("gybe-cni", remove, "removed", "configuration management or malware scanner"),
        ("gybe-cni", open_to_all, "given another mode or owner", "owned by root and have mode 0755"),
        (
            "istio-iptables",
            replace,
            "replaced",
            "istio-cni's container install-cni: take the name out of also_as",
        ),
        ("istio-iptables", remove, "removed", "take the name out of also_as (--also-as)"),
        (
            "istio-cni",
            remove,
            "removed",
            "istio-cni's container install-cni: if istio-cni serves ambient pods",
        ),
    ];
    for (name, undo, how, words) in cases {
        let node = TestNode::with(&[("10-a.conflist", LIST)]);
        let mut desired = install(&node.root, Shape::Chained { pinned: None }, "1");
        desired.programs.extend(["istio-iptables", "istio-cni"].map(|name| program(&node.root, name, "1")));
        let (desired, directories, mut history) =
            (DesiredState::Installed(desired), node.directories(), PassHistory::default());
        let mut pass = || pass(&directories, &desired, &mut history).unwrap();
        assert!(pass().left.is_done());
        let path = directories.programs.join(name);
        for n in 1..=5 {
            undo(&path);
            let repair = pass();
            assert_eq!((repair.applied.done, repair.left.is_done()), (1, true), "{name} {how} {n}");
            assert_eq!(repair.conflicts.programs, None);
        }
        undo(&path);
        let slowed = pass();
        let conflict = slowed.conflicts.programs.unwrap();
        assert_eq!(
            (slowed.applied.done, conflict.rewrites, conflict.wait.is_some()),
            (0, 6, true),
            "{conflict:?}"
        );
        assert_eq!(slowed.left.changes.len(), 1, "the repair is still pending");
        let sentence = conflict.to_string();
        assert!(
            sentence.starts_with(&format!("the program {name} is {how} again and again, most likely by "))
        );
        assert!(sentence.contains(words), "{sentence}");
        assert_eq!(slowed.conflicts.conf, None);
    }
}

/// Replaces the program with another version of Gybe's plugin, which answers VERSION.
fn replace_by_another_version(program: &Path) {
    replace(program);
    fs::write(program, format!("#!/bin/sh\n# {BUILD_MARK}\necho '{{\"supportedVersions\":[\"1.0.0\"]}}'\n"))
        .unwrap();
    fs::set_permissions(program, Permissions::from_mode(0o755)).unwrap();
}

/// A chain that names a program that does not run would make the runtime refuse every pod.
#[test]
fn f05_while_a_programs_repair_waits_the_chain_is_repaired_if_a_working_program_is_in_place() {
    let cases: [(&str, Undo, bool); 8] = [
        // No pod depends on the tool.
        ("gybe", remove, true),
        ("gybe", replace, true),
        ("gybe-cni", replace_by_another_version, true),
        ("gybe-cni", open_to_all, true),
        ("gybe-cni", replace, false),
        ("gybe-cni", remove, false),
        // No conf file names a further name (`also_as`).
        ("istio-iptables", replace, true),
        ("istio-iptables", remove, true),
    ];
    for (name, undo, is_repaired) in cases {
        let node = TestNode::with(&[("10-a.conflist", LIST)]);
        let mut desired = install(&node.root, Shape::Chained { pinned: None }, "1");
        desired.programs.push(program(&node.root, "istio-iptables", "1"));
        let desired = DesiredState::Installed(desired);
        let (directories, mut history) = (node.directories(), PassHistory::default());
        let mut pass = || pass(&directories, &desired, &mut history).unwrap();
        for _ in 1..=6 {
            pass();
            undo(&directories.programs.join(name));
        }
        node.put("10-a.conflist", LIST);
        let slowed = pass();
        assert!(slowed.conflicts.programs.unwrap().wait.is_some());
        assert_eq!(node.chain().1.contains(&"gybe-cni".to_owned()), is_repaired);
        assert_eq!(slowed.applied.done, usize::from(is_repaired));
    }
}

/// A program whose placement failed does not count as undone, and neither does the repair of another program.
#[test]
fn f05_a_program_that_cannot_be_placed_causes_no_conflict() {
    let node = TestNode::with(&[("10-a.conflist", LIST)]);
    let mut desired = install(&node.root, Shape::Chained { pinned: None }, "1");
    let mut further = program(&node.root, "istio-iptables", "1");
    further.source = node.root.join("image/none");
    desired.programs.push(further);
    let (desired, directories, mut history) =
        (DesiredState::Installed(desired), node.directories(), PassHistory::default());
    assert_eq!(pass(&directories, &desired, &mut history).unwrap().applied.failed.len(), 1);
    for n in 1..=4 {
        // The directory's entries do not change, so the failed placement is not retried.
        open_to_all(&directories.programs.join("gybe-cni"));
        let repair = pass(&directories, &desired, &mut history).unwrap();
        assert_eq!((repair.applied.done, repair.conflicts.programs), (1, None), "{n}");
        let rewrites = history.rewrite_counts(Directory::Programs).rewrites;
        assert!(rewrites < n, "{rewrites} of {n}");
    }
}
