//! The shapes standalone and drop-in, and files to which the entry is not added.

use crate::chained::{LIST, SINGLE};
use crate::test_node::TestNode;
use crate::test_node::{chained, install, installed, name, uninstalled};
use gybe_installer::host::desired::{Confirmed, DesiredState, Install, PutBack, Shape};
use gybe_installer::host::problem::Problem;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn standalone_writes_a_network_of_its_own_and_no_other_file() {
    let node = TestNode::with(&[("10-calico.conflist", LIST)]);
    node.settle(&chained(&node.root));
    let shape = Shape::Standalone { file: name("YYY-gybe-cni.conf") };
    node.settle(&installed(&node.root, shape.clone()));
    assert_eq!(node.text("10-calico.conflist"), LIST, "no longer chained");
    let ours: serde_json::Value = serde_json::from_str(&node.text("YYY-gybe-cni.conf")).unwrap();
    assert_eq!((&ours["type"], &ours["name"]), (&"gybe-cni".into(), &"istio-cni".into()));
    let mode = fs::metadata(node.conf("YYY-gybe-cni.conf")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    node.put("YYY-gybe-cni.conf", SINGLE);
    let pass = node.pass(&installed(&node.root, shape.clone()));
    assert_eq!(pass.left.problems, [Problem::NotOurs(name("YYY-gybe-cni.conf"))]);
    assert!(!pass.left.judgement.is_redirected());
    fs::remove_file(node.conf("YYY-gybe-cni.conf")).unwrap();
    node.settle(&installed(&node.root, shape));
    node.settle(&uninstalled(&node.root, PutBack::Nothing));
    assert_eq!(node.files().into_keys().collect::<Vec<_>>(), ["10-calico.conflist"]);
}

#[test]
fn a_drop_in_leaves_the_primarys_file_unchanged_and_moves_with_its_network() {
    let node = TestNode::with(&[("10-calico.conflist", LIST)]);
    let desired = installed(&node.root, Shape::DropIn);
    node.settle(&chained(&node.root));
    node.settle(&desired);
    assert_eq!(node.chain().1, ["calico", "portmap", "gybe-cni"]);
    assert_eq!(node.text("10-calico.conflist"), LIST);
    node.put("05-new.conflist", LIST.replace("k8s-pod-network", "new"));
    node.settle(&desired);
    assert!(node.files().contains_key("new/zz-gybe-cni.conf"));
    assert!(!node.conf("k8s-pod-network").exists());
    fs::remove_file(node.conf("05-new.conflist")).unwrap();
    node.settle(&desired);
    node.settle(&uninstalled(&node.root, PutBack::Nothing));
    assert_eq!(node.files().into_keys().collect::<Vec<_>>(), ["10-calico.conflist"]);
    for content in
        [SINGLE.to_owned(), LIST.replace("\"cniVersion\"", "\"loadOnlyInlinedPlugins\":true,\"cniVersion\"")]
    {
        let file = if content == SINGLE { "00-a.conf" } else { "00-a.conflist" };
        let node = TestNode::with(&[(file, &content)]);
        assert_eq!(node.pass(&desired).left.problems, [Problem::NoDropIns(name(file))]);
    }
}

#[test]
fn a08_a_link_is_read_as_the_runtime_reads_it_and_never_written_through() {
    let node = TestNode::new();
    let elsewhere = node.root.join("elsewhere");
    fs::write(&elsewhere, LIST).unwrap();
    symlink(&elsewhere, node.conf("10-calico.conflist")).unwrap();
    let pass = node.pass(&chained(&node.root));
    assert_eq!(pass.left.problems, [Problem::Link(name("10-calico.conflist"))]);
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), LIST);
    assert!(node.conf("10-calico.conflist").is_symlink());
    // A link under Gybe's temporary file name is not followed.
    let node = TestNode::with(&[("10-calico.conflist", LIST)]);
    fs::write(&elsewhere, "precious").ok();
    symlink("/dev/null", node.conf(".gybe.tmp")).unwrap();
    symlink("/dev/null", node.root.join("bin/gybe-cni")).unwrap();
    node.settle(&chained(&node.root));
    assert!(!node.root.join("bin/gybe-cni").is_symlink());
}

#[test]
fn a_file_that_is_too_large_to_read_stops_chaining() {
    let large = LIST.replace("\"cniVersion\"", &format!("\"x\":\"{}\",\"cniVersion\"", "x".repeat(1 << 20)));
    let node = TestNode::with(&[("10-calico.conflist", LIST), ("05-large.conflist", &large)]);
    let length = large.len() as u64;
    let pass = node.pass(&chained(&node.root));
    assert_eq!(pass.left.problems, [Problem::TooLarge { file: name("05-large.conflist"), length }]);
    assert!(!pass.left.is_done());
    assert_eq!(node.text("10-calico.conflist"), LIST);
    // If it sorts after the chosen file, it is ignored.
    let node = TestNode::with(&[("10-calico.conflist", LIST), ("15-large.conflist", &large)]);
    node.settle(&chained(&node.root));
}

#[test]
fn f37_without_the_primarys_plugins_the_program_directory_is_unconfirmed() {
    let node = TestNode::with(&[("10-calico.conflist", LIST)]);
    node.settle(&chained(&node.root));
    for plugin in ["calico", "portmap"] {
        fs::remove_file(node.root.join("bin").join(plugin)).unwrap();
    }
    for shape in [Shape::Chained { pinned: None }, Shape::DropIn] {
        let pass = node.pass(&installed(&node.root, shape));
        let plugins = vec!["calico".to_owned(), "portmap".to_owned()];
        let unconfirmed = Problem::PluginDirUnconfirmed { file: name("10-calico.conflist"), plugins };
        assert!(pass.left.problems.contains(&unconfirmed), "{:?}", pass.left.problems);
        assert!(!pass.left.judgement.is_redirected());
    }
    assert!(node.text("10-calico.conflist").contains("gybe-cni"), "the existing entry stays");
    node.put("10-calico.conflist", LIST);
    fs::remove_dir_all(node.conf("k8s-pod-network")).ok();
    for shape in [Shape::Chained { pinned: None }, Shape::DropIn] {
        node.pass(&installed(&node.root, shape));
        assert_eq!(node.files().into_keys().collect::<Vec<_>>(), ["10-calico.conflist"]);
        assert_eq!(node.text("10-calico.conflist"), LIST, "no entry is added to an unconfirmed directory");
    }
    let confirmed = Install { confirmed: Confirmed::Yes, ..install(&node.root, chain(), "1") };
    assert!(node.pass(&DesiredState::Installed(confirmed)).left.judgement.is_redirected());
    node.put("10-calico.conflist", LIST);
    node.root.write_programs("bin", ["portmap"]);
    assert!(!node.pass(&chained(&node.root)).left.judgement.is_redirected(), "a pod needs both");
    assert!(node.text("10-calico.conflist").contains("gybe-cni"), "the directory is the right one");
    node.root.write_programs("bin", ["calico"]);
    assert!(node.pass(&chained(&node.root)).left.judgement.is_redirected());
}

fn chain() -> Shape {
    Shape::Chained { pinned: None }
}

#[test]
fn f06_no_entry_is_written_after_an_unreadable_file_and_the_node_is_not_ready() {
    for (first, end) in [("05-link.conflist", None), ("05-pipe.conflist", Some(()))] {
        let node = TestNode::with(&[("10-calico.conflist", LIST)]);
        match end {
            // A link whose target is not mounted in the agent's container.
            None => symlink("/nowhere/05.conflist", node.conf(first)).unwrap(),
            Some(()) => nix::unistd::mkfifo(&node.conf(first), nix::sys::stat::Mode::S_IRWXU).unwrap(),
        }
        let left = node.pass(&chained(&node.root)).left;
        assert!(
            matches!(&left.problems[..], [Problem::UnreadableFirst(it)] if it.file == name(first)),
            "{left:?}"
        );
        assert!(!left.judgement.is_redirected());
        assert_eq!(node.text("10-calico.conflist"), LIST);
        fs::remove_file(node.conf(first)).unwrap();
        node.settle(&chained(&node.root));
    }
}

#[test]
fn f06_a_drop_in_or_its_directory_that_cannot_be_read_leaves_the_network_alone() {
    let node = TestNode::with(&[("10-calico.conflist", LIST)]);
    fs::create_dir(node.conf("k8s-pod-network")).unwrap();
    symlink("/nowhere/x", node.conf("k8s-pod-network/50-x.conf")).unwrap();
    let unread = || {
        let left = node.pass(&chained(&node.root)).left;
        assert!(matches!(&left.problems[..], [Problem::UnreadableFirst(_)]), "{left:?}");
        assert_eq!(node.text("10-calico.conflist"), LIST);
    };
    unread();
    fs::remove_dir_all(node.conf("k8s-pod-network")).unwrap();
    symlink("/nowhere/directory", node.conf("k8s-pod-network")).unwrap();
    unread();
    fs::remove_file(node.conf("k8s-pod-network")).unwrap();
    symlink(node.root.join("image"), node.conf("k8s-pod-network")).unwrap();
    node.settle(&chained(&node.root));
}
