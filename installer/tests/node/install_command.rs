//! `gybe install`: what it places, writes and prints, and what it leaves alone; the lock that lets one process at a
//! time change a node, and that unprivileged users cannot hold.

use crate::test_node::{TestNode, chained, uninstalled};
use crate::{HostRoot, LIST, SINGLE, plugin_script};
use gybe_installer::host::apply::NodeLock;
use gybe_installer::host::desired::PutBack;
use gybe_installer::host::observe::LOCK;
use gybe_installer::host::settings::KEYS;
use serde_json::Value;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn entry(node: &HostRoot, file: &str) -> Value {
    let list: Value = serde_json::from_slice(&fs::read(node.conf(file)).unwrap()).unwrap();
    list["plugins"].as_array().unwrap().last().unwrap().clone()
}

#[test]
fn install_places_the_programs_and_adds_the_entry_as_the_last_plugin() {
    let node = HostRoot::with(&[("10-calico.conflist", LIST)]);
    let ran = node.install("");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    let steps = "placed program gybe-cni\nwrote 10-calico.conflist\nplaced program gybe\nthis node is as configured\n";
    assert_eq!(ran.out, steps);
    assert_eq!(node.programs(), ["gybe", "gybe-cni"]);
    for program in ["gybe", "gybe-cni"] {
        let mode = fs::metadata(node.root.join("opt/cni/bin").join(program)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755, "{program}");
    }
    let entry = entry(&node, "10-calico.conflist");
    assert_eq!((&entry["type"], &entry["backend"]), (&"gybe-cni".into(), &"auto".into()));
    assert_eq!(entry["capabilities"]["io.kubernetes.cri.pod-annotations"], true);
    let excluded = serde_json::json!(["gybe-system", "istio-system", "kube-system"]);
    assert_eq!(entry["exclude_namespaces"], excluded);
    let again = node.install("");
    assert_eq!((again.code, again.out.as_str()), (0, "nothing to do\nthis node is as configured\n"));
}

/// Keys that only concern a running agent; and `cni_network_config`, a template, which is a file of `--config`.
const WITHOUT_FLAG: [&str; 18] = [
    "mode",
    "put_back_istio",
    "leave_when_daemonset_gone",
    "events",
    "node_condition",
    "node_taints",
    "repair",
    "repair_label",
    "repair_label_selector",
    "repair_field_selector",
    "repair_exit_code",
    "repair_init_container",
    "pod_source",
    "istio_cni_namespace",
    "cni_network_config",
    "ambient_enablement_selectors",
    "ambient_dns_capture",
    "ambient_ipv6",
];

#[test]
fn every_key_of_the_config_map_has_a_flag_of_its_name_that_the_page_names() {
    let help = HostRoot::new().gybe("install --help").out;
    let page = include_str!("../../../docs/BY-HAND.md");
    for key in KEYS.iter().map(|key| key.name) {
        let flag = format!("--{}", key.replace('_', "-"));
        let (is_offered, is_documented) =
            (help.contains(&format!("{flag} <")), page.contains(&format!("`{flag}`")));
        let expected = !WITHOUT_FLAG.contains(&key);
        assert_eq!((is_offered, is_documented && expected), (expected, expected), "{flag}");
    }
}

#[test]
fn every_setting_of_the_config_map_has_a_flag_that_overrides_it() {
    let node = HostRoot::with(&[("10-db.conf", SINGLE)]);
    let config = node.root.join("config");
    fs::create_dir(&config).unwrap();
    for (key, value) in [("log_level", "debug"), ("backend", "nft"), ("gates", "strict")] {
        fs::write(config.join(key), value).unwrap();
    }
    let flags = "--config ROOT/config --backend iptables-legacy --ipv6 reject --inbound-default containerPorts \
                 --exclude-namespaces a,b --pods-from /etc/gybe/pods --also-as istio-iptables --max-intervals 9000";
    let ran = node.install(flags);
    assert_eq!(ran.code, 0, "{ran:?}");
    let entry = entry(&node, "10-db.conflist");
    for (key, value) in [
        ("log_level", "debug"),
        ("backend", "iptables-legacy"),
        ("gates", "strict"),
        ("ipv6", "reject"),
        ("inboundDefault", "containerPorts"),
    ] {
        assert_eq!(entry[key], value, "{key}");
    }
    assert_eq!(entry["exclude_namespaces"], serde_json::json!(["a", "b"]));
    assert_eq!(entry["max_intervals"], 9000);
    assert_eq!(
        (&entry["facts"]["directory"], &entry["facts"]["socket"]),
        (&"/etc/gybe/pods".into(), &"".into())
    );
    assert_eq!(node.programs(), ["gybe", "gybe-cni", "istio-iptables"]);
    assert!(ran.err.contains("note: exclude_namespaces does not contain \"istio-system\""), "{}", ran.err);
}

#[test]
fn invalid_settings_are_all_reported_and_change_nothing() {
    let node = HostRoot::with(&[("10-calico.conflist", LIST)]);
    let ran = node.install("--backend nftt --shape round --also-as sh");
    assert_eq!(ran.code, 2);
    for word in ["backend is \"nftt\"", "shape is \"round\"", "also_as is \"sh\""] {
        assert!(ran.err.contains(word), "{word}: {}", ran.err);
    }
    assert!(node.programs().is_empty());
    fs::create_dir(node.root.join("config")).unwrap();
    fs::write(node.root.join("config/mode"), "leave").unwrap();
    let ran = node.install("--config ROOT/config");
    assert_eq!(ran.err, "gybe: the settings have mode: leave\nhint: run gybe uninstall\n");
    let none = node.install("--from ROOT/etc");
    assert_eq!(none.code, 2, "{none:?}");
}

#[test]
fn a_dry_run_prints_the_plan_and_changes_nothing() {
    let node = HostRoot::with(&[("10-db.conf", SINGLE)]);
    let ran = node.install("--dry-run");
    let would = "would place program gybe-cni\nwould write 10-db.conflist\n\
                 would rename 10-db.conf to 10-db.conf.gybe-original\nwould place program gybe\n";
    assert_eq!((ran.code, ran.out.as_str()), (0, would));
    assert_eq!((node.conf_files().len(), node.programs().len()), (1, 0));
    assert_eq!(node.install("").code, 0);
    let out = node.uninstall("--dry-run");
    let would = "would rename 10-db.conf.gybe-original to 10-db.conf\nwould remove 10-db.conflist\n";
    assert_eq!((out.code, out.out.as_str()), (0, would));
    assert_eq!(node.conf_files().len(), 2);
    assert_eq!(node.uninstall("").code, 0);
    assert_eq!(
        node.uninstall("--dry-run").out,
        "nothing to do\n",
        "within the grace period a sandbox may still be starting"
    );
    let out = node.after_grace_period().uninstall("--dry-run");
    assert_eq!(
        out.out,
        "would remove program gybe-cni\nwould remove program gybe\nwould remove the lock file\n"
    );
    assert_eq!(node.programs(), ["gybe", "gybe-cni"]);
}

#[test]
fn a_dry_run_fails_if_a_problem_prevents_the_change() {
    let node = HostRoot::new();
    let ran = node.install("--dry-run");
    assert!(ran.code == 1 && ran.out.contains("waiting for the primary"), "{ran:?}");
    node.put_conf("90-x.conflist", "{\"plugins\":[{\"type\":\"gybe-cni\"},]}");
    let ran = node.uninstall("--dry-run");
    assert!(ran.code == 1 && ran.out.contains("90-x.conflist still names gybe-cni"), "{ran:?}");
}

#[test]
fn f04_without_the_primarys_file_the_programs_are_placed_and_the_entry_waits() {
    let node = HostRoot::new();
    let ran = node.install("--json");
    assert_eq!(ran.code, 1, "{ran:?}");
    let report = ran.json();
    assert_eq!(report["problems"][0]["what"], "waiting for the primary plugin's conf file");
    assert_eq!(node.programs(), ["gybe", "gybe-cni"]);
    node.put_conf("10-calico.conflist", LIST);
    assert_eq!(node.install("").code, 0);
}

#[test]
fn f10_a_program_that_does_not_run_here_does_not_replace_the_previous_one() {
    let node = HostRoot::with(&[("10-calico.conflist", LIST)]);
    assert_eq!(node.install("").code, 0);
    node.write_program("image/gybe-cni", "#!/bin/sh\necho broken\n");
    let ran = node.install("");
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.out.contains("does not run on this node: it did not answer VERSION"), "{}", ran.out);
    assert_eq!(fs::read_to_string(node.root.join("opt/cni/bin/gybe-cni")).unwrap(), plugin_script("1"));
}

#[test]
fn f37_the_directories_of_the_detected_platform_are_used() {
    let node = HostRoot::new();
    for folder in ["var/lib/rancher/k3s/agent/etc/cni/net.d", "var/lib/rancher/k3s/data/cni"] {
        fs::create_dir_all(node.root.join(folder)).unwrap();
    }
    let conf = node.root.join("var/lib/rancher/k3s/agent/etc/cni/net.d/10-flannel.conflist");
    fs::write(&conf, LIST).unwrap();
    node.root.write_programs("var/lib/rancher/k3s/data/cni", ["calico", "loopback", "portmap"]);
    assert_eq!(node.install("").code, 0);
    assert!(fs::read_to_string(&conf).unwrap().contains("gybe-cni"));
    assert!(node.root.join("var/lib/rancher/k3s/data/cni/gybe-cni").exists() && node.programs().is_empty());
    // The operator's flags take precedence over the detected directories.
    node.put_conf("10-calico.conflist", LIST);
    assert_eq!(node.install("--conf-dir ROOT/etc/cni/net.d --bin-dir ROOT/opt/cni/bin").code, 0);
    assert_eq!(node.programs(), ["gybe", "gybe-cni"]);
}

#[test]
fn a_further_name_that_is_no_longer_configured_is_removed_and_another_owners_program_stays() {
    let node = HostRoot::with(&[("10-calico.conflist", LIST)]);
    assert_eq!(node.install("--also-as istio-iptables").code, 0);
    node.write_program("opt/cni/bin/istio-cni-taint", "#!/bin/sh\necho theirs\n");
    // The name is no longer configured after an upgrade: the program in place is the previous version.
    node.write_program("image/gybe", "#!/bin/sh\necho gybe 2\n");
    assert_eq!(node.install("").code, 0);
    assert_eq!(node.programs(), ["gybe", "gybe-cni", "istio-cni-taint"]);
}

/// A network whose programs a `TestNode` has.
const CALICO: &str = "{\"name\":\"net\",\"plugins\":[{\"type\":\"calico\"}]}";

/// The uid and gid of an unprivileged user.
const NOBODY: u32 = 65534;

/// Returns a `flock` of an unprivileged user on a path. It opens the path from the directory that contains it, because the
/// user may have no access to a directory above: root's home, for instance.
#[expect(clippy::disallowed_methods, reason = "another user's process")]
fn flock_of_nobody(path: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".into()]);
    command.args(["flock", "--nonblock"]).arg(path.file_name().unwrap());
    command.current_dir(path.parent().unwrap());
    command
}

/// A `flock` process of an unprivileged user that holds the lock of a path until dropped.
struct Holder(Child);

impl Holder {
    fn of(path: &Path) -> Self {
        let mut command = flock_of_nobody(path);
        command.args(["sh", "-c", "echo held; read -r _"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("tests of locks need root, setpriv and flock (util-linux)");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        Self(child)
    }

    fn is_refused(path: &Path) -> bool {
        !flock_of_nobody(path).arg("true").stderr(Stdio::null()).status().unwrap().success()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.stdin.take().unwrap().write_all(b"\n");
        let _ = self.0.wait();
    }
}

#[test]
fn a_lock_on_the_directory_by_another_user_stops_neither_repair_nor_uninstall() {
    let node = TestNode::with(&[("10-a.conflist", CALICO)]);
    let _holder = Holder::of(&node.root.join("bin"));
    node.settle(&chained(&node.root));
    assert!(Holder::is_refused(&node.root.join("bin").join(LOCK)));
    node.put("10-a.conflist", CALICO);
    node.settle(&chained(&node.root));
    assert_eq!(node.chain().1, ["calico", "gybe-cni"]);
    node.settle(&uninstalled(&node.root, PutBack::Nothing));
    assert_eq!(node.text("10-a.conflist"), CALICO);
}

/// In a directory that other users may write, the lock file may have any owner, or not be a regular file.
#[test]
fn a_lock_file_that_other_users_can_open_is_replaced() {
    let lock_files: [fn(&Path); 4] = [
        |lock| {
            fs::write(lock, "").unwrap();
            chown(lock, Some(NOBODY), Some(NOBODY)).unwrap();
        },
        |lock| {
            fs::write(lock, "")
                .and_then(|()| fs::set_permissions(lock, Permissions::from_mode(0o644)))
                .unwrap();
        },
        |lock| symlink("/etc/passwd", lock).unwrap(),
        |lock| nix::unistd::mkfifo(lock, nix::sys::stat::Mode::S_IRUSR).unwrap(),
    ];
    for (n, make) in lock_files.iter().enumerate() {
        let node = TestNode::with(&[("10-a.conflist", CALICO)]);
        let lock = node.root.join("bin").join(LOCK);
        make(&lock);
        let holder = (n < 2).then(|| Holder::of(&lock));
        node.settle(&chained(&node.root));
        assert_eq!(node.chain().1, ["calico", "gybe-cni"], "{n}");
        let there = lock.symlink_metadata().unwrap();
        assert!(there.is_file() && there.uid() == nix::unistd::geteuid().as_raw(), "{n}: {there:?}");
        assert_eq!(there.mode() & 0o777, 0o600, "{n}");
        drop(holder);
    }
}

#[test]
fn the_lock_file_is_created_with_the_first_change_and_removed_with_the_last_program() {
    let node = TestNode::with(&[("10-a.conflist", CALICO)]);
    let lock = node.root.join("bin").join(LOCK);
    node.pass(&uninstalled(&node.root, PutBack::Nothing));
    assert!(!lock.exists(), "nothing had to be changed");
    node.settle(&chained(&node.root));
    let lock_held = NodeLock::take(&node.directories().programs).unwrap();
    assert!(NodeLock::take(&node.directories().programs).is_err());
    drop(lock_held);
    assert!(lock.exists());
    node.settle(&uninstalled(&node.root, PutBack::Nothing));
    assert_eq!(node.programs(), [""; 0]);
    assert!(!lock.exists());
}

/// A process that waited for the lock must not take the lock of a deleted file.
#[test]
fn the_lock_of_a_removed_file_does_not_count() {
    let node = TestNode::new();
    let (directories, lock) = (node.directories(), node.root.join("bin").join(LOCK));
    let lock_held = NodeLock::take(&directories.programs).unwrap();
    fs::remove_file(&lock).unwrap();
    let next = NodeLock::take(&directories.programs).unwrap();
    assert!(lock.exists() && NodeLock::take(&directories.programs).is_err());
    drop((lock_held, next));
}
