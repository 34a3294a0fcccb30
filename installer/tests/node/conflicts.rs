//! Conflicts over a program's name: replacements are rate limited after the fifth, and the likely owner is reported.

use crate::test_node::{TestNode, install, program};
use gybe_installer::host::desired::{DesiredState, Shape};
use gybe_installer::host::observe::Directory;
use gybe_installer::host::pass::{PassHistory, pass};
use gybe_plugin::version::BUILD_MARK;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const LIST: &str = "{\"name\":\"net\",\"plugins\":[{\"type\":\"calico\"}]}";

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
