//! `gybe doctor` on nodes with faults that need a kernel: mounts, limits, refused access; and on a complete node with
//! the real programs and a running agent.

use gybe_integration::plugin_call::PluginDir;
use gybe_integration::programs::{Run, path_of_ours};
use gybe_test_support::Agent;
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

const LIST: &str = r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"}]}"#;

/// A node's root directory, with the primary's file in it; the programs are the real ones.
struct Node(PluginDir);

impl Node {
    fn new(test: &str) -> Self {
        let directory = PluginDir::new(&format!("doctor-{test}"));
        for folder in ["etc/cni/net.d", "opt/cni/bin", "var/lib/cni/results"] {
            fs::create_dir_all(directory.path().join("root").join(folder)).unwrap();
        }
        fs::write(directory.path().join("root/etc/cni/net.d/10-net.conflist"), LIST).unwrap();
        for program in ["bridge", "loopback"] {
            let program = directory.path().join("root/opt/cni/bin").join(program);
            fs::write(&program, "").unwrap();
            fs::set_permissions(program, Permissions::from_mode(0o755)).unwrap();
        }
        Self(directory)
    }

    /// Runs a shell command: `ROOT` is the node's root, `GYBE` the program, `/run` its own.
    fn sh(&self, command: &str) -> Run {
        let root = self.0.path().join("root").display().to_string();
        let gybe = path_of_ours("gybe").unwrap().display().to_string();
        self.0.sh(&command.replace("ROOT", &root).replace("GYBE", &gybe), "").unwrap()
    }

    fn installed(test: &str) -> Self {
        let node = Self::new(test);
        let ran = node.sh("exec GYBE install --root ROOT --pods-from /pods");
        assert_eq!(ran.code, Some(0), "{ran:#?}");
        node
    }

    /// Runs these shell commands on the node, and returns the findings that are wrong, each with its remedy.
    fn wrong_after(&self, commands: &str) -> Vec<String> {
        let ran = self.sh(&format!("{commands} GYBE doctor --root ROOT --json"));
        assert_eq!(ran.code, Some(1), "{ran:#?}");
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let wrong = report["findings"].as_array().unwrap().iter().filter(|it| it["state"] == "wrong");
        wrong
            .map(|it| format!("{} -> {}", it["says"].as_str().unwrap(), it["remedy"].as_str().unwrap()))
            .collect()
    }
}

fn assert_only(wrong: &[String], parts: &[&str]) {
    assert_eq!(wrong.len(), 1, "{wrong:#?}");
    for part in parts {
        assert!(wrong[0].contains(part), "{part} in {wrong:#?}");
    }
}

#[test]
fn f11_a_mount_that_is_read_only_full_or_noexec_is_named() {
    let node = Node::installed("mounts");
    // Mounts a tmpfs over the directory, copies its files, and runs `then` to make the mount unusable.
    let on = |folder: &str, options: &str, then: &str| {
        format!(
            "cp -a ROOT/{folder} ROOT/kept && mount -t tmpfs -o {options} test ROOT/{folder} && cp -a ROOT/kept/. ROOT/{folder} \
             && rm -r ROOT/kept && {then};"
        )
    };
    let read_only = on("opt/cni/bin", "size=512m", "mount -o remount,ro ROOT/opt/cni/bin");
    let wrong = node.wrong_after(&read_only);
    assert_only(
        &wrong,
        &[
            "root/opt/cni/bin (tmpfs), which is read-only",
            "name other directories with --conf-dir and --bin-dir",
        ],
    );
    let wrong = node.wrong_after(&on("etc/cni/net.d", "size=64k", "true"));
    assert_only(&wrong, &["root/etc/cni/net.d (tmpfs), which holds", "KiB left", "free space"]);
    let wrong = node.wrong_after(&on("etc/cni/net.d", "nr_inodes=3", "touch ROOT/etc/cni/net.d/x"));
    assert_only(&wrong, &["has no inodes left", "df -i"]);
    let wrong = node.wrong_after(&on("opt/cni/bin", "size=512m", "mount -o remount,noexec ROOT/opt/cni/bin"));
    assert_only(&wrong, &["(tmpfs), which is mounted noexec", "mount it without noexec"]);
}

/// The install keeps the existing files and names the full mount.
#[test]
fn f11_an_install_onto_a_full_mount_keeps_the_old_program_and_reports_it() {
    let node = Node::new("full");
    let ran = node.sh("mount -t tmpfs -o size=64k full ROOT/opt/cni/bin && exec GYBE install --root ROOT");
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    assert!(ran.out.contains("opt/cni/bin") && ran.out.contains("free space or inodes"), "{}", ran.out);
    assert!(ran.out.ends_with("this node is not as configured\n"), "{}", ran.out);
    assert_eq!(fs::read_to_string(node.0.path().join("root/etc/cni/net.d/10-net.conflist")).unwrap(), LIST);
}

/// The test sets the limit of a user namespace of its own.
#[test]
fn f12_exhausted_inotify_is_reported_with_the_limit_to_raise() {
    let node = Node::installed("inotify");
    let inside = "echo 0 > /proc/sys/user/max_inotify_instances && GYBE doctor --root ROOT --json";
    let ran = node.sh(&format!("exec unshare --user --map-root-user sh -c '{inside}'"));
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let wrong = report["findings"].as_array().unwrap().iter().find(|it| it["about"] == "watching").unwrap();
    assert_eq!(wrong["state"], "wrong", "{report:#}");
    assert!(wrong["says"].as_str().unwrap().starts_with("inotify is exhausted"), "{wrong}");
    assert_eq!(wrong["remedy"], "raise fs.inotify.max_user_instances, which the runtime needs too");
}

#[test]
fn a_user_without_rights_gets_one_hint_to_run_as_root_and_no_finding_about_what_cannot_be_read() {
    let node = Node::installed("unprivileged");
    let copy = "chmod 0755 ROOT/.. && cp GYBE ROOT/gybe && chmod 0755 ROOT ROOT/gybe";
    let user = "setpriv --reuid=1000 --regid=1000 --clear-groups ROOT/gybe";
    let ran = node.sh(copy);
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    for (closed, command, code) in [
        ("etc/cni/net.d", "doctor", 1),
        ("opt/cni/bin", "doctor", 1),
        ("var/lib/cni/results", "doctor", 1),
        ("var/lib/cni/results", "verify --all", 2),
        ("var/lib/cni/results", "verify --pod shop/cart-0", 2),
        ("var/lib/cni/results", "migrate --dry-run", 2),
        ("opt/cni/bin", "uninstall", 1),
    ] {
        let ran = node.sh(&format!("chmod 0700 ROOT/{closed}; exec {user} {command} --root ROOT"));
        let all = ran.out + &ran.err;
        assert_eq!(
            (ran.code, all.matches("run as root").count()),
            (Some(code), 1),
            "{closed}: {command}: {all}"
        );
        let of_others = ["is missing", "no pod sandbox", "SELinux", "chown"].map(|part| all.contains(part));
        assert_eq!(of_others, [false; 4], "{closed}: {command}: {all}");
        node.sh(&format!("chmod 0755 ROOT/{closed}"));
    }
}

/// Root without CAP_DAC_OVERRIDE gets the error that a security module would cause.
#[test]
fn f36_an_access_that_root_is_refused_is_attributed_to_a_security_module() {
    let node = Node::installed("refused");
    let refused =
        "chown 1000 ROOT/etc/cni/net.d && chmod 0700 ROOT/etc/cni/net.d && exec setpriv --bounding-set=-all";
    let wrong = node.wrong_after(refused);
    assert_only(&wrong, &["conf directory", "cannot be read: Permission denied", "SELinux", "AppArmor"]);
}

/// Root without capabilities, as the agent runs, and then with the three capabilities of components/foreign-owner.
#[test]
fn f36_another_users_directory_is_reported_and_needs_three_capabilities() {
    let node = Node::new("foreign");
    let install = "GYBE install --root ROOT --pods-from /pods";
    let bare = node.sh(&format!(
        "chown 1000 ROOT/opt/cni/bin ROOT/etc/cni/net.d && exec setpriv --bounding-set=-all {install}"
    ));
    assert_eq!(bare.code, Some(1), "{bare:#?}");
    assert!((bare.out + &bare.err).contains("components/foreign-owner"));
    let report = node.sh("exec GYBE doctor --root ROOT");
    assert!(report.out.contains("opt/cni/bin belongs to user 1000\n"), "{report:#?}");
    let ran = node.sh(&format!("exec setpriv --bounding-set=-all,+dac_override,+chown,+fowner {install}"));
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    let entry = fs::read_to_string(node.0.path().join("root/etc/cni/net.d/10-net.conflist")).unwrap();
    assert!(entry.contains("gybe-cni"), "{entry}");
}

fn start_agent(node: &Node) -> Agent {
    let socket = node.0.run().join("gybe/facts.sock");
    #[expect(clippy::disallowed_methods, reason = "the agent runs in the background of the test")]
    let mut command = Command::new(path_of_ours("gybe").unwrap());
    command.args(["node", "--pods-from"]).arg(node.0.path()).arg("--socket").arg(socket);
    Agent::start_serving(command)
}

#[test]
fn doctor_finds_nothing_wrong_on_a_complete_node() {
    let node = Node::new("complete");
    fs::create_dir_all(node.0.run().join("gybe")).unwrap();
    let agent = start_agent(&node);
    let ran =
        node.sh("GYBE probe >&2 && GYBE install --root ROOT --backend auto && exec GYBE doctor --root ROOT");
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    for line in [
        "ok     the node agent answers at /run/gybe/facts.sock\n",
        "ok     the agent receives the plugin's log at /run/gybe/log.sock\n",
        "ok     backend: auto; the backend in use is nft: auto: nft does everything\n",
        "ok     gybe-cni answers VERSION\n",
        "\nnothing is wrong\n",
    ] {
        assert!(ran.out.contains(line), "{line} in {}", ran.out);
    }
    let entry = fs::read_to_string(node.0.path().join("root/etc/cni/net.d/10-net.conflist")).unwrap();
    assert!(entry.contains(r#""probed":{"backend":"nft","kernel":"#), "{entry}");
    // The doctor of the installed program reports the same as the image's.
    let own = node.sh("exec ROOT/opt/cni/bin/gybe doctor --root ROOT");
    assert_eq!(own.code, Some(0), "{own:#?}");
    let conf = || fs::read_to_string(node.0.path().join("root/etc/cni/net.d/10-net.conflist")).unwrap();
    let refused = node.sh("exec GYBE uninstall --root ROOT");
    assert_eq!((refused.code, refused.out.as_str()), (Some(2), ""), "{refused:#?}");
    for words in ["the node agent runs and answers at /run/gybe/facts.sock", "set mode: leave", "--force"] {
        assert!(refused.err.contains(words), "{words} in {}", refused.err);
    }
    let planned = node.sh("exec GYBE uninstall --dry-run --root ROOT");
    assert!(planned.out.contains("would write 10-net.conflist"), "{planned:#?}");
    assert!(planned.err.contains("restores its entry within a second"), "{planned:#?}");
    assert_eq!(conf(), entry);
    let forced = node.sh("exec GYBE uninstall --force --root ROOT");
    assert_eq!(forced.code, Some(0), "{forced:#?}");
    assert!(!conf().contains("gybe-cni"), "{forced:#?}");
    drop(agent);
    let gone = node.sh("GYBE install --root ROOT; exec GYBE doctor --root ROOT");
    assert_eq!(gone.code, Some(1), "{gone:#?}");
    assert!(gone.out.contains("WRONG  the node agent at /run/gybe/facts.sock is gone"), "{}", gone.out);
}

#[test]
fn f23_a_configured_backend_that_cannot_work_is_reported() {
    let node = Node::new("backend");
    let ran = node.sh("GYBE probe >&2 && exec GYBE install --root ROOT --backend iptables --pods-from /p");
    assert_eq!(ran.code, Some(0), "{ran:#?}");
    let kept = node.0.run().join("gybe/probe.json");
    let mut known: Value = serde_json::from_str(&fs::read_to_string(&kept).unwrap()).unwrap();
    for backend in ["iptables-nft", "iptables-legacy"] {
        known["backends"][backend]["v4"] =
            serde_json::json!({ "finding": "misbehaves", "what": "no answer" });
    }
    fs::write(&kept, known.to_string()).unwrap();
    let wrong = node.wrong_after("");
    assert_only(
        &wrong,
        &["backend: iptables, and the plugin refuses every pod of the mesh", "set backend to nft"],
    );
}
