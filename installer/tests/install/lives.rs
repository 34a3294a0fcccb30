//! The chained shape from install to uninstall: repair, upgrade, a changed primary; uninstall restores the directory.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use gybe_installer::host::desired::{Confirmed, DesiredState, PutBack, Shape};
use gybe_installer::host::problem::Problem;
use gybe_installer::host::runtimes::DropIns;
use gybe_installer::host::runtimes::Runtime;
use gybe_installer::host::runtimes::{ConfiguredDirectory, Runtimes};

use crate::ground::Ground;
use crate::wants::{chained, install, installed, left, name};

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
        let ground =
            Ground::with(&[(file, content), ("99-loopback.conf", r#"{"name":"lo","type":"loopback"}"#)]);
        fs::set_permissions(ground.conf(file), fs::Permissions::from_mode(0o640)).unwrap();
        let before = (ground.files(), fs::metadata(ground.conf(file)).unwrap().ino());
        ground.settle(&chained(&ground.root));
        let (loaded, plugins) = ground.chain();
        assert_eq!(plugins.last().map(String::as_str), Some("gybe-cni"), "{file}");
        let mode = fs::metadata(ground.conf(&loaded.to_string())).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o640, "{file}: the mode is kept");
        ground.settle(&left(&ground.root, PutBack::Nothing));
        assert_eq!(ground.files(), before.0, "{file}");
        if content == SINGLE {
            assert_eq!(
                fs::metadata(ground.conf(file)).unwrap().ino(),
                before.1,
                "{file} is the original inode"
            );
        }
    }
}

#[test]
fn f33_a_converted_conf_never_overwrites_another_owners_list() {
    let other = LIST.replace("calico", "flannel");
    let ground = Ground::with(&[("10-a.conf", SINGLE), ("10-a.conflist", &other)]);
    let before = ground.files();
    ground.settle(&chained(&ground.root));
    assert_eq!(ground.chain(), (name("10-a.conf.conflist"), vec!["bridge".into(), "gybe-cni".into()]));
    assert_eq!(ground.text("10-a.conflist"), other);
    ground.settle(&left(&ground.root, PutBack::Nothing));
    assert_eq!(ground.files(), before);
}

#[test]
fn a_conversion_does_not_use_a_file_name_that_makes_the_runtime_load_another_network() {
    let second = SINGLE.replace("dbnet", "second");
    let ground = Ground::with(&[("10-a.conf", SINGLE), ("10-a.conf5.conf", &second)]);
    ground.settle(&chained(&ground.root));
    assert_eq!(ground.chain().0, name("10-a.conf.conflist"));
    let ground = Ground::with(&[("10-a.conf", SINGLE), ("10-a.conf-5.conf", &second)]);
    let stuck = ground.pass(&chained(&ground.root));
    assert_eq!(stuck.left.problems, [Problem::NoNameLeft(name("10-a.conf"))]);
    assert_eq!(ground.chain().1, ["bridge"]);
}

#[test]
fn f05_a_rewritten_file_is_repaired_with_one_write() {
    let ground = Ground::with(&[("10-calico.conflist", LIST), ("20-b.conf", SINGLE)]);
    ground.settle(&chained(&ground.root));
    let changed = LIST.replace("1500", "1400");
    for content in [LIST, &changed, LIST] {
        ground.put("10-calico.conflist", content);
        let healed = ground.pass(&chained(&ground.root));
        assert_eq!((healed.applied.done, healed.left.is_done()), (1, true));
    }
    ground.settle(&left(&ground.root, PutBack::Nothing));
    assert_eq!(ground.text("10-calico.conflist"), LIST);
}

#[test]
fn a_single_conf_written_again_is_converted_again() {
    let ground = Ground::with(&[("10-db.conf", SINGLE)]);
    ground.settle(&chained(&ground.root));
    let newer = SINGLE.replace("cni0", "cni1");
    ground.put("10-db.conf", &newer);
    ground.settle(&chained(&ground.root));
    assert!(ground.text("10-db.conflist").contains("cni1"));
    ground.settle(&left(&ground.root, PutBack::Nothing));
    assert_eq!(ground.files().into_iter().collect::<Vec<_>>(), [("10-db.conf".into(), newer.into_bytes())]);
}

#[test]
fn the_primary_is_followed_when_it_changes() {
    let ground = Ground::with(&[("10-aws.conflist", LIST)]);
    ground.settle(&chained(&ground.root));
    ground.put("05-cilium.conf", SINGLE);
    ground.settle(&chained(&ground.root));
    assert_eq!(ground.chain(), (name("05-cilium.conflist"), vec!["bridge".into(), "gybe-cni".into()]));
    assert_eq!(ground.text("10-aws.conflist"), LIST, "the old primary's file is restored");
    fs::remove_file(ground.conf("05-cilium.conflist")).unwrap();
    ground.settle(&chained(&ground.root));
    assert_eq!(ground.chain().0, name("10-aws.conflist"));
    assert_eq!(ground.files().len(), 1, "the saved copy of a deleted file is deleted too");
}

#[test]
fn the_entry_waits_for_a_pinned_file_with_either_ending_and_stays_there() {
    for (asked, there, becomes) in [
        ("a.conflist", "a.conf", "a.conflist"),
        ("a.conf", "a.conflist", "a.conflist"),
        ("a.conf", "a.conf", "a.conflist"),
        ("odd.file", "odd.file", "odd.file"),
    ] {
        let content = if there.ends_with(".conf") { SINGLE } else { LIST };
        let ground = Ground::new();
        let wanted = installed(&ground.root, pinned(asked));
        assert_eq!(
            ground.pass(&wanted).left.problems,
            [Problem::WaitingFor { file: name(asked), by: "conf_name" }, Problem::Waiting]
        );
        ground.put(there, content);
        let before = ground.files();
        ground.settle(&wanted);
        assert!(ground.text(becomes).contains("gybe-cni"), "{asked}");
        ground.put("00-first.conflist", LIST);
        let preempted = ground.pass(&wanted);
        let by = name("00-first.conflist");
        assert_eq!(preempted.left.problems, [Problem::Preempted { file: name(becomes), by }]);
        assert!(!preempted.left.is_done() && preempted.left.changes.is_empty(), "{:?}", preempted.left);
        fs::remove_file(ground.conf("00-first.conflist")).unwrap();
        let DesiredState::Uninstalled(mut leave) = left(&ground.root, PutBack::Nothing) else {
            unreachable!()
        };
        leave.pinned = Some(name(asked));
        ground.settle(&DesiredState::Uninstalled(leave));
        assert_eq!(ground.files(), before, "{asked}");
    }
}

#[test]
fn a_pinned_file_that_multus_calls_redirects_pods_although_the_runtime_uses_another() {
    for plugin in ["multus", "multus-shim"] {
        let multus = format!(r#"{{"name":"multus-cni-network","type":"{plugin}"}}"#);
        let ground = Ground::with(&[("00-multus.conf", multus.as_str()), ("10-calico.conflist", LIST)]);
        fs::write(ground.root.join("bin").join(plugin), "").unwrap();
        ground.settle(&installed(&ground.root, pinned("10-calico.conflist")));
        assert!(ground.text("10-calico.conflist").contains("gybe-cni"), "{plugin}");
        assert_eq!(ground.text("00-multus.conf"), multus);
    }
}

#[test]
fn f37_our_entry_is_removed_if_the_runtime_looks_elsewhere_for_plugins() {
    for (file, text) in [("10-calico.conflist", LIST), ("10-calico.conf", SINGLE)] {
        let ground = Ground::with(&[(file, text)]);
        for shape in [Shape::Chained { pinned: None }, Shape::DropIn] {
            if file.ends_with(".conf") && shape == Shape::DropIn {
                continue;
            }
            let before = ground.files();
            let DesiredState::Installed(mut install) = installed(&ground.root, shape) else { unreachable!() };
            // The primary's plugin is in the program directory, and the runtime's directories are unknown.
            ground.settle(&DesiredState::Installed(install.clone()));
            let chained = ground.files();
            assert_ne!(chained, before);
            let others = ConfiguredDirectory::Others(vec!["/usr/lib/cni".into()]);
            let known = Runtimes::of([(Runtime::Containerd, Some(DropIns::Loaded))]);
            let known = || Runtimes { plugin_directory: others.clone(), ..known.clone() };
            let pass = ground.pass_by(&DesiredState::Installed(install.clone()), known());
            assert_eq!(ground.files(), before, "{file}");
            let is_elsewhere = |problem: &Problem| matches!(problem, Problem::PluginsElsewhere(_));
            assert!(
                pass.left.problems.iter().any(is_elsewhere) && !pass.left.judgement.is_redirected(),
                "{pass:?}"
            );
            assert!(pass.left.changes.is_empty(), "the next pass has nothing to do: {pass:?}");
            install.confirmed = Confirmed::Yes;
            ground.pass_by(&DesiredState::Installed(install), known());
            assert_eq!(ground.files(), chained, "the operator's confirmation takes precedence");
            ground.settle(&left(&ground.root, PutBack::Nothing));
        }
    }
}

#[test]
fn f06_another_owners_broken_file_is_skipped_and_never_written() {
    for broken in
        ["", "{", "\"text\"", "[]", "{}", r#"{"name":"x","plugins":[]}"#, r#"{"plugins":[{"type":"a"}]}"#]
    {
        let ground = Ground::with(&[("00-bad.conflist", broken), ("10-calico.conflist", LIST)]);
        let by = |runtime| {
            let runtimes = Runtimes::of([(runtime, Some(DropIns::Loaded))]);
            ground.pass_by(&chained(&ground.root), runtimes).left
        };
        let (crio, containerd) = (by(Runtime::CriO), by(Runtime::Containerd));
        assert!(crio.judgement.is_redirected() && crio.is_done(), "{broken:?}: {crio:?}");
        let bad = name("00-bad.conflist");
        assert!(matches!(&crio.problems[..], [Problem::Broken(it)] if it.file == bad));
        assert!(!containerd.judgement.is_redirected(), "it loads nothing");
        assert!(matches!(&containerd.problems[..], [Problem::BrokenFirst(it)] if it.file == bad));
        assert!(
            ground.text("10-calico.conflist").contains("gybe-cni"),
            "the entry applies once the broken file is gone"
        );
        assert_eq!(ground.text("00-bad.conflist"), broken);
        ground.settle(&left(&ground.root, PutBack::Nothing));
        assert_eq!(ground.text("10-calico.conflist"), LIST);
    }
}

#[test]
fn f06_no_prefix_of_the_primarys_own_write_is_changed() {
    let ground = Ground::with(&[("10-calico.conflist", LIST)]);
    ground.settle(&chained(&ground.root));
    for end in 0..LIST.trim_end().len() {
        ground.put("10-calico.conflist", &LIST[..end]);
        let pass = ground.pass(&chained(&ground.root));
        assert_eq!(pass.applied.done, 0, "{end}");
        assert_eq!(ground.text("10-calico.conflist"), LIST[..end]);
    }
    ground.put("10-calico.conflist", LIST);
    ground.settle(&chained(&ground.root));
}

#[test]
fn f06_the_entry_waits_for_the_primarys_file() {
    let ground = Ground::with(&[("YYY-istio-cni.conf", r#"{"name":"istio-cni","type":"istio-cni"}"#)]);
    let before = ground.files();
    let pass = ground.pass(&chained(&ground.root));
    assert_eq!(pass.left.problems, [Problem::NoPrimary(name("YYY-istio-cni.conf"))]);
    assert_eq!(ground.files(), before);
    assert_eq!(
        ground.programs(),
        ["gybe", "gybe-cni"],
        "programs are placed before any conf file names them"
    );
}

#[test]
fn f30_an_upgrade_replaces_program_and_entry_and_a_downgrade_does_too() {
    let ground = Ground::with(&[("10-calico.conflist", LIST)]);
    for build in ["1", "2", "1"] {
        ground.settle(&DesiredState::Installed(install(
            &ground.root,
            Shape::Chained { pinned: None },
            build,
        )));
        let there = fs::read_to_string(ground.root.join("bin/gybe-cni")).unwrap();
        assert!(there.contains(&format!("# {build}\n")));
        assert_eq!(ground.text("10-calico.conflist").contains("debug"), build == "2");
    }
    ground.settle(&left(&ground.root, PutBack::Nothing));
    assert_eq!(ground.text("10-calico.conflist"), LIST);
}
