//! The shapes standalone and drop-in, and files to which the entry is not added.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use gybe_installer::host::desired::{Confirmed, DesiredState, Install, PutBack, Shape};
use gybe_installer::host::problem::Problem;

use crate::ground::Ground;
use crate::lives::{LIST, SINGLE};
use crate::wants::{chained, install, installed, left, name};

#[test]
fn standalone_writes_a_network_of_its_own_and_no_other_file() {
    let ground = Ground::with(&[("10-calico.conflist", LIST)]);
    ground.settle(&chained(&ground.root));
    let shape = Shape::Standalone { file: name("YYY-gybe-cni.conf") };
    ground.settle(&installed(&ground.root, shape.clone()));
    assert_eq!(ground.text("10-calico.conflist"), LIST, "chained no more");
    let ours: serde_json::Value = serde_json::from_str(&ground.text("YYY-gybe-cni.conf")).unwrap();
    assert_eq!((&ours["type"], &ours["name"]), (&"gybe-cni".into(), &"istio-cni".into()));
    let mode = fs::metadata(ground.conf("YYY-gybe-cni.conf")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    ground.put("YYY-gybe-cni.conf", SINGLE);
    let pass = ground.pass(&installed(&ground.root, shape.clone()));
    assert_eq!(pass.left.problems, [Problem::NotOurs(name("YYY-gybe-cni.conf"))]);
    assert!(!pass.left.judgement.is_redirected());
    fs::remove_file(ground.conf("YYY-gybe-cni.conf")).unwrap();
    ground.settle(&installed(&ground.root, shape));
    ground.settle(&left(&ground.root, PutBack::Nothing));
    assert_eq!(ground.files().into_keys().collect::<Vec<_>>(), ["10-calico.conflist"]);
}

#[test]
fn a_drop_in_never_touches_the_primarys_file_and_follows_its_network() {
    let ground = Ground::with(&[("10-calico.conflist", LIST)]);
    let wanted = installed(&ground.root, Shape::DropIn);
    ground.settle(&chained(&ground.root));
    ground.settle(&wanted);
    assert_eq!(ground.chain().1, ["calico", "portmap", "gybe-cni"]);
    assert_eq!(ground.text("10-calico.conflist"), LIST);
    ground.put("05-new.conflist", LIST.replace("k8s-pod-network", "new"));
    ground.settle(&wanted);
    assert!(ground.files().contains_key("new/zz-gybe-cni.conf"));
    assert!(!ground.conf("k8s-pod-network").exists());
    fs::remove_file(ground.conf("05-new.conflist")).unwrap();
    ground.settle(&wanted);
    ground.settle(&left(&ground.root, PutBack::Nothing));
    assert_eq!(ground.files().into_keys().collect::<Vec<_>>(), ["10-calico.conflist"]);
    for no in
        [SINGLE.to_owned(), LIST.replace("\"cniVersion\"", "\"loadOnlyInlinedPlugins\":true,\"cniVersion\"")]
    {
        let file = if no == SINGLE { "00-a.conf" } else { "00-a.conflist" };
        let ground = Ground::with(&[(file, &no)]);
        assert_eq!(ground.pass(&wanted).left.problems, [Problem::NoDropIns(name(file))]);
    }
}

#[test]
fn a08_a_link_is_read_as_the_runtime_reads_it_and_never_written_through() {
    let ground = Ground::new();
    let elsewhere = ground.root.join("elsewhere");
    fs::write(&elsewhere, LIST).unwrap();
    symlink(&elsewhere, ground.conf("10-calico.conflist")).unwrap();
    let pass = ground.pass(&chained(&ground.root));
    assert_eq!(pass.left.problems, [Problem::Link(name("10-calico.conflist"))]);
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), LIST);
    assert!(ground.conf("10-calico.conflist").is_symlink());
    // A link under Gybe's temporary file name is not followed.
    let ground = Ground::with(&[("10-calico.conflist", LIST)]);
    fs::write(&elsewhere, "precious").ok();
    symlink("/dev/null", ground.conf(".gybe.tmp")).unwrap();
    symlink("/dev/null", ground.root.join("bin/gybe-cni")).unwrap();
    ground.settle(&chained(&ground.root));
    assert!(!ground.root.join("bin/gybe-cni").is_symlink());
}

#[test]
fn a_file_that_is_too_large_to_read_stops_chaining() {
    let large = LIST.replace("\"cniVersion\"", &format!("\"x\":\"{}\",\"cniVersion\"", "x".repeat(1 << 20)));
    let ground = Ground::with(&[("10-calico.conflist", LIST), ("05-large.conflist", &large)]);
    let length = large.len() as u64;
    let pass = ground.pass(&chained(&ground.root));
    assert_eq!(pass.left.problems, [Problem::TooLarge { file: name("05-large.conflist"), length }]);
    assert!(!pass.left.is_done());
    assert_eq!(ground.text("10-calico.conflist"), LIST);
    // If it sorts after the chosen file, it is ignored.
    let ground = Ground::with(&[("10-calico.conflist", LIST), ("15-large.conflist", &large)]);
    ground.settle(&chained(&ground.root));
}

#[test]
fn f37_without_the_primarys_plugins_the_program_directory_is_unconfirmed() {
    let ground = Ground::with(&[("10-calico.conflist", LIST)]);
    ground.settle(&chained(&ground.root));
    fs::remove_file(ground.root.join("bin/calico")).unwrap();
    for shape in [Shape::Chained { pinned: None }, Shape::DropIn] {
        let pass = ground.pass(&installed(&ground.root, shape));
        let plugins = vec!["calico".to_owned(), "portmap".to_owned()];
        let alone = Problem::PluginDirUnconfirmed { file: name("10-calico.conflist"), plugins };
        assert!(pass.left.problems.contains(&alone), "{:?}", pass.left.problems);
        assert!(!pass.left.judgement.is_redirected());
    }
    assert!(ground.text("10-calico.conflist").contains("gybe-cni"), "the existing entry stays");
    ground.put("10-calico.conflist", LIST);
    fs::remove_dir_all(ground.conf("k8s-pod-network")).ok();
    for shape in [Shape::Chained { pinned: None }, Shape::DropIn] {
        ground.pass(&installed(&ground.root, shape));
        assert_eq!(ground.files().into_keys().collect::<Vec<_>>(), ["10-calico.conflist"]);
        assert_eq!(ground.text("10-calico.conflist"), LIST, "no entry is added to an unconfirmed directory");
    }
    let confirmed = Install { confirmed: Confirmed::Yes, ..install(&ground.root, chain(), "1") };
    assert!(ground.pass(&DesiredState::Installed(confirmed)).left.judgement.is_redirected());
    ground.put("10-calico.conflist", LIST);
    fs::write(ground.root.join("bin/portmap"), "").unwrap();
    assert!(ground.pass(&chained(&ground.root)).left.judgement.is_redirected());
}

fn chain() -> Shape {
    Shape::Chained { pinned: None }
}

#[test]
fn f06_no_entry_is_written_after_an_unreadable_file_and_the_node_is_not_ready() {
    for (first, end) in [("05-link.conflist", None), ("05-pipe.conflist", Some(()))] {
        let ground = Ground::with(&[("10-calico.conflist", LIST)]);
        match end {
            // A link whose target is not mounted in the agent's container.
            None => symlink("/nowhere/05.conflist", ground.conf(first)).unwrap(),
            Some(()) => nix::unistd::mkfifo(&ground.conf(first), nix::sys::stat::Mode::S_IRWXU).unwrap(),
        }
        let left = ground.pass(&chained(&ground.root)).left;
        assert!(
            matches!(&left.problems[..], [Problem::UnreadableFirst(it)] if it.file == name(first)),
            "{left:?}"
        );
        assert!(!left.judgement.is_redirected());
        assert_eq!(ground.text("10-calico.conflist"), LIST);
        fs::remove_file(ground.conf(first)).unwrap();
        ground.settle(&chained(&ground.root));
    }
}

#[test]
fn f06_a_drop_in_or_its_directory_that_cannot_be_read_leaves_the_network_alone() {
    let ground = Ground::with(&[("10-calico.conflist", LIST)]);
    fs::create_dir(ground.conf("k8s-pod-network")).unwrap();
    symlink("/nowhere/x", ground.conf("k8s-pod-network/50-x.conf")).unwrap();
    let unread = || {
        let left = ground.pass(&chained(&ground.root)).left;
        assert!(matches!(&left.problems[..], [Problem::UnreadableFirst(_)]), "{left:?}");
        assert_eq!(ground.text("10-calico.conflist"), LIST);
    };
    unread();
    fs::remove_dir_all(ground.conf("k8s-pod-network")).unwrap();
    symlink("/nowhere/directory", ground.conf("k8s-pod-network")).unwrap();
    unread();
    fs::remove_file(ground.conf("k8s-pod-network")).unwrap();
    symlink(ground.root.join("image"), ground.conf("k8s-pod-network")).unwrap();
    ground.settle(&chained(&ground.root));
}
