//! The chained shape from install to uninstall: repair, upgrade, a changed primary, and what uninstall restores and
//! keeps. A conf file that Gybe rewrites keeps its owner, mode and extended attributes.

use crate::test_node::{TestNode, chained, install, installed, name, uninstalled};
use gybe_installer::host::desired::{Confirmed, DesiredState, PutBack, Shape};
use gybe_installer::host::observe::runtimes::{ConfiguredDirectory, DropIns, Runtime, Runtimes};
use gybe_installer::host::problem::Problem;
use rustix::fs::{XattrFlags, fsetxattr, getxattr};
use std::fs;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

pub(crate) const LIST: &str = "{\n  \"name\": \"k8s-pod-network\",\n  \"cniVersion\": \"0.3.1\",\n  \"plugins\": [\n    {\n      \"type\": \"calico\",\n      \"mtu\": 1500\n    },\n    {\n      \"type\": \"portmap\"\n    }\n  ]\n}\n";
pub(crate) const SINGLE: &str = "{\n  \"cniVersion\": \"0.4.0\",\n  \"name\": \"dbnet\",\n  \"type\": \"bridge\",\n  \"bridge\": \"cni0\"\n}\n";

fn pinned(file: &str) -> Shape {
    Shape::Chained { pinned: Some(name(file)) }
}

#[test]
fn install_and_uninstall_restore_every_byte() {
    for (file, content) in
        [("10-calico.conflist", LIST), ("10-db.conf", SINGLE), ("10-db.json", SINGLE), (".conf", SINGLE)]
    {
        let node =
            TestNode::with(&[(file, content), ("99-loopback.conf", r#"{"name":"lo","type":"loopback"}"#)]);
        fs::set_permissions(node.conf(file), fs::Permissions::from_mode(0o640)).unwrap();
        let before = (node.files(), fs::metadata(node.conf(file)).unwrap().ino());
        node.settle(&chained(&node.root));
        let (loaded, plugins) = node.chain();
        assert_eq!(plugins.last().map(String::as_str), Some("gybe-cni"), "{file}");
        let mode = fs::metadata(node.conf(&loaded.to_string())).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o640, "{file}: the mode is kept");
        node.settle(&uninstalled(&node.root, PutBack::Nothing));
        assert_eq!(node.files(), before.0, "{file}");
        if content == SINGLE {
            assert_eq!(
                fs::metadata(node.conf(file)).unwrap().ino(),
                before.1,
                "{file} is the original inode"
            );
        }
    }
}

#[test]
fn f33_a_converted_conf_never_overwrites_another_owners_list() {
    let other = LIST.replace("calico", "flannel");
    let node = TestNode::with(&[("10-a.conf", SINGLE), ("10-a.conflist", &other)]);
    let before = node.files();
    node.settle(&chained(&node.root));
    assert_eq!(node.chain(), (name("10-a.conf.conflist"), vec!["bridge".into(), "gybe-cni".into()]));
    assert_eq!(node.text("10-a.conflist"), other);
    node.settle(&uninstalled(&node.root, PutBack::Nothing));
    assert_eq!(node.files(), before);
}

#[test]
fn a_conversion_does_not_use_a_file_name_that_makes_the_runtime_load_another_network() {
    let second = SINGLE.replace("dbnet", "second");
    let node = TestNode::with(&[("10-a.conf", SINGLE), ("10-a.conf5.conf", &second)]);
    node.settle(&chained(&node.root));
    assert_eq!(node.chain().0, name("10-a.conf.conflist"));
    let node = TestNode::with(&[("10-a.conf", SINGLE), ("10-a.conf-5.conf", &second)]);
    let stuck = node.pass(&chained(&node.root));
    assert_eq!(stuck.left.problems, [Problem::NoNameLeft(name("10-a.conf"))]);
    assert_eq!(node.chain().1, ["bridge"]);
}

#[test]
fn f05_a_rewritten_file_is_repaired_with_one_write() {
    let node = TestNode::with(&[("10-calico.conflist", LIST), ("20-b.conf", SINGLE)]);
    node.settle(&chained(&node.root));
    let changed = LIST.replace("1500", "1400");
    for content in [LIST, &changed, LIST] {
        node.put("10-calico.conflist", content);
        let repair = node.pass(&chained(&node.root));
        assert_eq!((repair.applied.done, repair.left.is_done()), (1, true));
    }
    node.settle(&uninstalled(&node.root, PutBack::Nothing));
    assert_eq!(node.text("10-calico.conflist"), LIST);
}

#[test]
fn a_single_conf_written_again_is_converted_again() {
    let node = TestNode::with(&[("10-db.conf", SINGLE)]);
    node.settle(&chained(&node.root));
    let newer = SINGLE.replace("cni0", "cni1");
    node.put("10-db.conf", &newer);
    node.settle(&chained(&node.root));
    assert!(node.text("10-db.conflist").contains("cni1"));
    node.settle(&uninstalled(&node.root, PutBack::Nothing));
    assert_eq!(node.files().into_iter().collect::<Vec<_>>(), [("10-db.conf".into(), newer.into_bytes())]);
}

#[test]
fn the_entry_moves_to_a_new_primarys_file() {
    let node = TestNode::with(&[("10-aws.conflist", LIST)]);
    node.settle(&chained(&node.root));
    node.put("05-cilium.conf", SINGLE);
    node.settle(&chained(&node.root));
    assert_eq!(node.chain(), (name("05-cilium.conflist"), vec!["bridge".into(), "gybe-cni".into()]));
    assert_eq!(node.text("10-aws.conflist"), LIST, "the old primary's file is restored");
    fs::remove_file(node.conf("05-cilium.conflist")).unwrap();
    node.settle(&chained(&node.root));
    assert_eq!(node.chain().0, name("10-aws.conflist"));
    assert_eq!(node.files().len(), 1, "the saved copy of a deleted file is deleted too");
}

#[test]
fn the_entry_waits_for_a_pinned_file_with_either_ending_and_stays_there() {
    for (pin, file, becomes) in [
        ("a.conflist", "a.conf", "a.conflist"),
        ("a.conf", "a.conflist", "a.conflist"),
        ("a.conf", "a.conf", "a.conflist"),
        ("odd.file", "odd.file", "odd.file"),
    ] {
        let content = if file.ends_with(".conf") { SINGLE } else { LIST };
        let node = TestNode::new();
        let desired = installed(&node.root, pinned(pin));
        assert_eq!(
            node.pass(&desired).left.problems,
            [Problem::WaitingFor { file: name(pin), by: "conf_name" }, Problem::Waiting]
        );
        node.put(file, content);
        let before = node.files();
        node.settle(&desired);
        assert!(node.text(becomes).contains("gybe-cni"), "{pin}");
        node.put("00-first.conflist", LIST);
        let preempted = node.pass(&desired);
        let by = name("00-first.conflist");
        assert_eq!(preempted.left.problems, [Problem::Preempted { file: name(becomes), by }]);
        assert!(!preempted.left.is_done() && preempted.left.changes.is_empty(), "{:?}", preempted.left);
        fs::remove_file(node.conf("00-first.conflist")).unwrap();
        let DesiredState::Uninstalled(mut leave) = uninstalled(&node.root, PutBack::Nothing) else {
            unreachable!()
        };
        leave.pinned = Some(name(pin));
        node.settle(&DesiredState::Uninstalled(leave));
        assert_eq!(node.files(), before, "{pin}");
    }
}

#[test]
fn a_pinned_file_that_multus_calls_redirects_pods_although_the_runtime_uses_another() {
    for plugin in ["multus", "multus-shim"] {
        let multus = format!(r#"{{"name":"multus-cni-network","type":"{plugin}"}}"#);
        let node = TestNode::with(&[("00-multus.conf", multus.as_str()), ("10-calico.conflist", LIST)]);
        node.settle(&installed(&node.root, pinned("10-calico.conflist")));
        assert!(node.text("10-calico.conflist").contains("gybe-cni"), "{plugin}");
        assert_eq!(node.text("00-multus.conf"), multus);
        let newer = multus.replacen('{', r#"{"cniVersion":"1.2.0","#, 1);
        node.put("00-multus.conf", &newer);
        node.settle(&installed(&node.root, pinned("10-calico.conflist")));
        assert!(
            node.text("10-calico.conflist").contains("gybe-cni"),
            "{plugin}: Multus' version does not count"
        );
    }
}

#[test]
fn f33_a_pinned_file_of_a_version_that_the_plugin_refuses_has_no_entry() {
    let refused = LIST.replace("0.3.1", "1.2.0");
    let desired = |node: &TestNode| installed(&node.root, pinned("10-calico.conflist"));
    for version in ["", r#""cniVersion":"1.0.0","#] {
        let multus = format!(r#"{{{version}"name":"multus-cni-network","type":"multus"}}"#);
        let node = TestNode::with(&[("00-multus.conf", multus.as_str()), ("10-calico.conflist", LIST)]);
        node.settle(&desired(&node));
        let with_entry = node.text("10-calico.conflist").replace("0.3.1", "1.2.0");
        assert!(with_entry.contains("gybe-cni"));
        for content in [&with_entry, &refused] {
            node.put("10-calico.conflist", content);
            let left = node.pass(&desired(&node)).left;
            let is_version = |problem: &Problem| matches!(problem, Problem::UnsupportedVersion { file, .. } if *file == name("10-calico.conflist"));
            assert!(matches!(left.problems.as_slice(), [only] if is_version(only)), "{:?}", left.problems);
            assert!(left.changes.is_empty() && !left.judgement.is_redirected(), "{left:?}");
            assert_eq!(node.text("10-calico.conflist"), refused);
        }
        node.put("10-calico.conflist", LIST);
        node.settle(&desired(&node));
        assert!(node.text("10-calico.conflist").contains("gybe-cni"));
    }
}

#[test]
fn f33_a_chain_of_a_version_that_the_plugin_refuses_has_no_entry() {
    let supported = LIST.replace("0.3.1", "1.1.0");
    let node = TestNode::with(&[("10-calico.conflist", &supported)]);
    node.settle(&chained(&node.root));
    let with_entry = node.text("10-calico.conflist");
    for content in [with_entry.replace("1.1.0", "1.2.0"), LIST.replace("0.3.1", "1.2.0")] {
        node.put("10-calico.conflist", &content);
        let pass = node.pass(&chained(&node.root));
        let is_version = |problem: &Problem| matches!(problem, Problem::UnsupportedVersion { .. });
        assert!(
            matches!(pass.left.problems.as_slice(), [only] if is_version(only)),
            "{:?}",
            pass.left.problems
        );
        assert!(!pass.left.judgement.is_redirected());
        assert_eq!(node.chain().1, ["calico", "portmap"]);
    }
    node.put("10-calico.conflist", &supported);
    node.settle(&chained(&node.root));
    assert_eq!(node.chain().1, ["calico", "portmap", "gybe-cni"]);
}

#[test]
fn f37_the_entry_is_removed_if_the_runtime_looks_elsewhere_for_plugins() {
    for (file, text) in [("10-calico.conflist", LIST), ("10-calico.conf", SINGLE)] {
        let node = TestNode::with(&[(file, text)]);
        for shape in [Shape::Chained { pinned: None }, Shape::DropIn] {
            if file.ends_with(".conf") && shape == Shape::DropIn {
                continue;
            }
            let before = node.files();
            let DesiredState::Installed(mut install) = installed(&node.root, shape) else { unreachable!() };
            // The primary's plugin is in the program directory, and the runtime's directories are unknown.
            node.settle(&DesiredState::Installed(install.clone()));
            let chained = node.files();
            assert_ne!(chained, before);
            let elsewhere = ConfiguredDirectory::Others(vec!["/usr/lib/cni".into()]);
            let known = Runtimes::of([(Runtime::Containerd, Some(DropIns::Loaded))]);
            let known = || Runtimes { plugin_directory: elsewhere.clone(), ..known.clone() };
            let pass = node.pass_with_runtimes(&DesiredState::Installed(install.clone()), known());
            assert_eq!(node.files(), before, "{file}");
            let is_elsewhere = |problem: &Problem| matches!(problem, Problem::PluginsElsewhere(_));
            assert!(
                pass.left.problems.iter().any(is_elsewhere) && !pass.left.judgement.is_redirected(),
                "{pass:?}"
            );
            assert!(pass.left.changes.is_empty(), "the next pass has nothing to do: {pass:?}");
            install.confirmed = Confirmed::Yes;
            node.pass_with_runtimes(&DesiredState::Installed(install), known());
            assert_eq!(node.files(), chained, "the operator's confirmation takes precedence");
            node.settle(&uninstalled(&node.root, PutBack::Nothing));
        }
    }
}

#[test]
fn f06_another_owners_broken_file_is_skipped_and_never_written() {
    for broken in
        ["", "{", "\"text\"", "[]", "{}", r#"{"name":"x","plugins":[]}"#, r#"{"plugins":[{"type":"a"}]}"#]
    {
        let node = TestNode::with(&[("00-bad.conflist", broken), ("10-calico.conflist", LIST)]);
        let by = |runtime| {
            let runtimes = Runtimes::of([(runtime, Some(DropIns::Loaded))]);
            node.pass_with_runtimes(&chained(&node.root), runtimes).left
        };
        let (crio, containerd) = (by(Runtime::CriO), by(Runtime::Containerd));
        assert!(crio.judgement.is_redirected() && crio.is_done(), "{broken:?}: {crio:?}");
        let bad = name("00-bad.conflist");
        assert!(matches!(&crio.problems[..], [Problem::Broken(it)] if it.file == bad));
        assert!(!containerd.judgement.is_redirected(), "containerd loads nothing");
        assert!(matches!(&containerd.problems[..], [Problem::BrokenFirst(it)] if it.file == bad));
        assert!(
            node.text("10-calico.conflist").contains("gybe-cni"),
            "the entry applies once the broken file is gone"
        );
        assert_eq!(node.text("00-bad.conflist"), broken);
        node.settle(&uninstalled(&node.root, PutBack::Nothing));
        assert_eq!(node.text("10-calico.conflist"), LIST);
    }
}

#[test]
fn f06_no_prefix_of_the_primarys_own_write_is_changed() {
    let node = TestNode::with(&[("10-calico.conflist", LIST)]);
    node.settle(&chained(&node.root));
    for end in 0..LIST.trim_end().len() {
        node.put("10-calico.conflist", &LIST[..end]);
        let pass = node.pass(&chained(&node.root));
        assert_eq!(pass.applied.done, 0, "{end}");
        assert_eq!(node.text("10-calico.conflist"), LIST[..end]);
    }
    node.put("10-calico.conflist", LIST);
    node.settle(&chained(&node.root));
}

#[test]
fn f06_the_entry_waits_for_the_primarys_file() {
    let node = TestNode::with(&[("YYY-istio-cni.conf", r#"{"name":"istio-cni","type":"istio-cni"}"#)]);
    let before = node.files();
    let pass = node.pass(&chained(&node.root));
    assert_eq!(pass.left.problems, [Problem::NoPrimary(name("YYY-istio-cni.conf"))]);
    assert_eq!(node.files(), before);
    assert_eq!(node.programs(), ["gybe", "gybe-cni"], "programs are placed before any conf file names them");
}

#[test]
fn f30_an_upgrade_replaces_program_and_entry_and_a_downgrade_does_too() {
    let node = TestNode::with(&[("10-calico.conflist", LIST)]);
    for build in ["1", "2", "1"] {
        node.settle(&DesiredState::Installed(install(&node.root, Shape::Chained { pinned: None }, build)));
        let program = fs::read_to_string(node.root.join("bin/gybe-cni")).unwrap();
        assert!(program.contains(&format!("# {build}\n")));
        assert_eq!(node.text("10-calico.conflist").contains("debug"), build == "2");
    }
    node.settle(&uninstalled(&node.root, PutBack::Nothing));
    assert_eq!(node.text("10-calico.conflist"), LIST);
}

#[test]
fn uninstall_keeps_only_a_single_conf_that_was_written_again() {
    let node = TestNode::with(&[("10-db.conf", SINGLE)]);
    node.settle(&chained(&node.root));
    node.put("10-db.conf", SINGLE);
    node.settle(&uninstalled(&node.root, PutBack::Nothing));
    assert_eq!(node.files().into_keys().collect::<Vec<_>>(), ["10-db.conf"]);
}

#[test]
fn uninstall_keeps_another_owners_change_of_a_list() {
    let node = TestNode::with(&[("10-db.conf", SINGLE)]);
    node.settle(&chained(&node.root));
    let theirs = node.text("10-db.conflist").replace("cni0", "cni9").replace("\n  ", "\n\t");
    node.put("10-db.conflist", theirs);
    node.settle(&chained(&node.root));
    node.settle(&uninstalled(&node.root, PutBack::Nothing));
    let files = node.files();
    assert_eq!(files.keys().collect::<Vec<_>>(), ["10-db.conflist"]);
    assert_eq!(node.chain().1, ["bridge"]);
    assert!(node.text("10-db.conflist").contains("cni9"));
}

#[test]
fn f29_the_plugin_stays_until_no_sandbox_needs_it() {
    let node = TestNode::with(&[("10-calico.conflist", LIST)]);
    node.settle(&chained(&node.root));
    // {"name":"n","plugins":[{"type":"a"},{"type":"gybe-cni"}]}
    let config = "eyJuYW1lIjoibiIsInBsdWdpbnMiOlt7InR5cGUiOiJhIn0seyJ0eXBlIjoiZ3liZS1jbmkifV19";
    let result = node.root.join("results/n-pod-eth0");
    fs::write(&result, format!("{{\"kind\":\"cniCacheV1\",\"config\":\"{config}\"}}")).unwrap();
    node.settle(&uninstalled(&node.root, PutBack::Nothing));
    assert_eq!(node.text("10-calico.conflist"), LIST);
    assert_eq!(node.programs(), ["gybe-cni"]);
    assert!(fs::read_to_string(node.root.join("bin/gybe-cni")).unwrap().contains("# tombstone"));
    fs::remove_file(result).unwrap();
    node.settle(&uninstalled(&node.root, PutBack::Nothing));
    assert!(node.programs().is_empty());
}

#[test]
fn f29_a_cache_that_cannot_be_read_keeps_the_plugin() {
    let node = TestNode::with(&[("10-calico.conflist", LIST)]);
    node.settle(&chained(&node.root));
    fs::remove_dir(node.root.join("results")).unwrap();
    node.settle(&uninstalled(&node.root, PutBack::Nothing));
    assert_eq!(node.programs(), ["gybe-cni"]);
}

#[test]
fn uninstall_keeps_every_program_that_an_unchangeable_conf_file_names() {
    let broken = "{\"plugins\":[{\"type\":\"gybe-cni\"},]}";
    let node = TestNode::with(&[("10-calico.conflist", LIST), ("90-x.conflist", broken)]);
    node.settle(&chained(&node.root));
    let pass = node.pass(&uninstalled(&node.root, PutBack::Nothing));
    assert_eq!(pass.left.problems, [Problem::StillNamed(name("90-x.conflist"), "gybe-cni".into())]);
    assert_eq!(node.programs(), ["gybe", "gybe-cni"]);
}

#[test]
fn uninstall_keeps_every_program_while_the_conf_directory_of_a_runtime_handler_has_our_entry() {
    let node = TestNode::with(&[("10-calico.conflist", LIST)]);
    node.settle(&chained(&node.root));
    let mut runtimes = Runtimes::of([(Runtime::Containerd, Some(DropIns::Loaded))]);
    runtimes.handlers_with_entry = vec![("kata".to_owned(), "/etc/cni/kata".into())];
    for _ in 0..2 {
        let pass = node.pass_with_runtimes(&uninstalled(&node.root, PutBack::Nothing), runtimes.clone());
        let [problem] = pass.left.problems.as_slice() else { panic!("{:?}", pass.left.problems) };
        assert!(
            problem.to_string().contains("kata use the first conf file in /etc/cni/kata, which still runs")
        );
        assert_eq!(node.text("10-calico.conflist"), LIST);
        assert_eq!(node.programs(), ["gybe", "gybe-cni"]);
    }
    node.settle(&uninstalled(&node.root, PutBack::Nothing));
    assert!(node.programs().is_empty());
}

/// Returns an access control list as the kernel stores it (`posix_acl_xattr.h`): its owner may write, user 1000 read.
fn acl() -> Vec<u8> {
    const NO_ID: u32 = u32::MAX;
    let entries =
        [(0x01_u16, 6_u16, NO_ID), (0x02, 4, 1000), (0x04, 0, NO_ID), (0x10, 4, NO_ID), (0x20, 0, NO_ID)];
    let bytes = entries.iter().flat_map(|(tag, rights, id)| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    });
    2_u32.to_le_bytes().into_iter().chain(bytes).collect()
}

/// Returns the extended attributes to preserve, with their values.
fn expected_attributes() -> [(&'static str, Vec<u8>); 3] {
    [
        ("user.origin", b"calico".to_vec()),
        ("security.selinux", b"system_u:object_r:container_file_t:s0\0".to_vec()),
        ("system.posix_acl_access", acl()),
    ]
}

fn has_all_attributes(path: &Path) -> bool {
    let metadata = fs::metadata(path).unwrap();
    let mut value = vec![0; 1024];
    (metadata.uid(), metadata.gid(), metadata.mode() & 0o777) == (1001, 1002, 0o640)
        && expected_attributes().iter().all(|(name, expected)| {
            getxattr(path, *name, value.as_mut_slice()).is_ok_and(|length| value[..length] == *expected)
        })
}

#[test]
fn a_conf_file_keeps_its_owner_mode_label_and_access_control_list() {
    for (name, content, ours) in
        [("10-a.conflist", LIST, "10-a.conflist"), ("10-a.conf", SINGLE, "10-a.conflist")]
    {
        let node = TestNode::with(&[(name, content)]);
        let (theirs, ours) = (node.conf(name), node.conf(ours));
        chown(&theirs, Some(1001), Some(1002)).unwrap();
        let file = File::open(&theirs).unwrap();
        for (attribute, value) in expected_attributes() {
            fsetxattr(&file, attribute, &value, XattrFlags::CREATE)
                .unwrap_or_else(|why| panic!("{attribute}: {why}"));
        }
        assert!(has_all_attributes(&theirs), "before");
        node.settle(&chained(&node.root));
        assert_eq!(node.chain().1.last().map(String::as_str), Some("gybe-cni"));
        assert!(has_all_attributes(&ours), "{name}: with our entry");
        node.settle(&uninstalled(&node.root, PutBack::Nothing));
        assert_eq!(node.text(name), content);
        assert!(has_all_attributes(&theirs), "{name}: without our entry again");
    }
}
