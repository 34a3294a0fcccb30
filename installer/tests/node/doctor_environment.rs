//! `gybe doctor` on links, runtimes, other meshes, and remains of earlier installs.

use crate::doctor::{findings, installed_node, only_wrong_finding};
use crate::{HostRoot, LIST, SINGLE};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn f13_a_linked_conf_directory_and_a_runtime_that_lost_its_watch_are_reported() {
    let node = installed_node();
    fs::rename(node.root.join("etc/cni/net.d"), node.root.join("etc/cni/real")).unwrap();
    symlink("real", node.root.join("etc/cni/net.d")).unwrap();
    let notes = findings(&node.doctor("--json").json(), "directories", "note");
    assert!(notes[0].0.ends_with("net.d is a link to real") && notes[0].1.contains("restart"), "{notes:?}");
    // As /proc shows a containerd, whose watch is on this inode.
    let process = node.add_process("containerd");
    for folder in ["fd", "fdinfo"] {
        fs::create_dir_all(process.join(folder)).unwrap();
    }
    symlink("anon_inode:inotify", process.join("fd/9")).unwrap();
    let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(node.root.join("etc/cni/net.d")).unwrap());
    let watches = |inode: u64| {
        fs::write(
            process.join("fdinfo/9"),
            format!("pos:\t0\nflags:\t02004000\ninotify wd:1 ino:{inode:x} sdev:800001\n"),
        )
        .unwrap();
    };
    watches(inode);
    let report = node.doctor("--json").json();
    assert_eq!(
        findings(&report, "watching", "ok")[1].0,
        "containerd (process 77) watches the conf directory"
    );
    watches(inode + 1);
    let (about, says, remedy) = only_wrong_finding(&node, "");
    assert_eq!(about, "watching");
    assert!(
        says.contains("it was removed and made again") && remedy.starts_with("restart containerd"),
        "{says}"
    );
}

#[test]
fn leftovers_of_another_mesh_are_reported() {
    let node = installed_node();
    fs::create_dir_all(node.root.join("var/run/istio-cni")).unwrap();
    fs::write(node.root.join("var/run/istio-cni/istio-cni-kubeconfig"), "token: x").unwrap();
    node.write_program("opt/cni/bin/istio-cni", "#!/bin/sh\n");
    let report = node.doctor("--json").json();
    let notes = findings(&report, "others", "note");
    assert!(notes[0].0.contains("istio-cni-kubeconfig") && notes[0].1.contains("token"), "{notes:?}");
    assert_eq!(notes[1].0, "the program istio-cni exists");
    let text = fs::read_to_string(node.conf("10-calico.conflist")).unwrap();
    node.put_conf("10-calico.conflist", &text.replace("\"portmap\"", "\"istio-cni\""));
    let (about, says, _) = only_wrong_finding(&node, "");
    assert_eq!(about, "others");
    assert!(
        says.contains("has entries of istio-cni and gybe-cni: a meshed pod gets the rules of both"),
        "{says}"
    );
}

/// Returns a node with istio-cni's entry; `program`: istio-cni's program is still installed.
fn with_istio(entry: &str, program: bool) -> HostRoot {
    let list = LIST.replace("\"type\": \"portmap\"", entry);
    let node = HostRoot::with(&[("10-calico.conflist", &list)]);
    node.write_program("opt/cni/bin/gybe", "#!/bin/sh\necho gybe 1\n");
    node.write_program("opt/cni/bin/gybe-cni", &crate::plugin_script("1"));
    if program {
        node.write_program("opt/cni/bin/istio-cni", "#!/bin/sh\n");
    }
    node
}

#[test]
fn no_remedy_about_istio_cni_leaves_pods_without_redirection() {
    for (entry, program, state, says, remedy) in [
        (
            "\"type\": \"istio-cni\"",
            true,
            "note",
            "istio-cni redirects pods",
            "to change to Gybe: run gybe install",
        ),
        (
            "\"type\": \"istio-cni\"",
            false,
            "wrong",
            "the program istio-cni is missing",
            "deploy the DaemonSet istio-cni-node again",
        ),
        (
            "\"type\": \"istio-cni\", \"ambient_enabled\": true",
            true,
            "note",
            "serves ambient mode",
            "set AMBIENT_ENABLED for gybe's agent",
        ),
    ] {
        let node = with_istio(entry, program);
        let report = node.doctor("--json").json();
        let (text, hint) = findings(&report, "others", state).remove(0);
        assert!(text.contains(says) && hint.starts_with(remedy), "{entry}: {text}: {hint}");
        assert!(!hint.starts_with("remove the DaemonSet istio-cni-node"), "{hint}");
        let chain = findings(&report, "chain", if program { "note" } else { "wrong" });
        let expected = if program { "istio-cni redirects pods" } else { "new pods are not redirected" };
        assert!(chain.iter().any(|(says, _)| says.contains(expected)), "{entry}: {chain:?}");
    }
}

#[test]
fn ciliums_socket_load_balancing_is_named_with_the_setting_that_excludes_pods() {
    let node = HostRoot::with(&[("05-cilium.conflist", &LIST.replace("calico", "cilium-cni"))]);
    assert_eq!(node.install("--pods-from /p").code, 0);
    let notes = findings(&node.doctor("--json").json(), "others", "note");
    let (_, remedy) = notes.iter().find(|(says, _)| says.contains("bpf-lb-sock")).unwrap();
    assert!(remedy.contains("socketLB.hostNamespaceOnly=true"), "{remedy}");
}

/// The probe report says that iptables-nft works, but the package was removed since.
#[test]
fn a_backend_whose_programs_are_gone_is_reported() {
    let node = HostRoot::with(&[("10-calico.conflist", LIST)]);
    assert_eq!(node.install("--pods-from /p --backend iptables-nft").code, 0);
    for name in ["iptables-nft-save", "iptables-nft-restore"] {
        fs::create_dir_all(node.root.join("usr/sbin")).unwrap();
        node.write_program(&format!("usr/sbin/{name}"), "#!/bin/sh\n");
    }
    assert!(findings(&node.doctor("--json").json(), "backend", "wrong").is_empty());
    fs::remove_file(node.root.join("usr/sbin/iptables-nft-restore")).unwrap();
    let (about, says, remedy) = only_wrong_finding(&node, "");
    assert_eq!(about, "backend");
    assert!(says.starts_with("backend: iptables-nft, and iptables-nft can no longer write rules"), "{says}");
    assert!(remedy.contains("refuses every pod of the mesh"), "{remedy}");
}

#[test]
fn a_directory_that_every_user_may_write_to_is_wrong() {
    let node = installed_node();
    for folder in ["etc/cni/net.d", "opt/cni/bin"] {
        let path = node.root.join(folder);
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        let (about, says, remedy) = only_wrong_finding(&node, "");
        assert_eq!(about, "directories");
        assert!(says.starts_with("every user may write to") && says.ends_with("mode 0777"), "{says}");
        assert!(remedy.contains("can become root"), "{remedy}");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn f29_leftovers_of_an_uninstall_are_reported_with_how_to_finish() {
    let node = HostRoot::with(&[("10-db.conf", SINGLE)]);
    let nothing = node.doctor("--json");
    assert_eq!(nothing.code, 0, "{nothing:?}");
    assert_eq!(
        findings(&nothing.json(), "chain", "note")[0].0,
        "no conf file names gybe-cni: Gybe is not installed on this node"
    );
    node.install("--pods-from /p");
    node.add_sandbox("n-cart-eth0", &["bridge", "gybe-cni"]);
    node.uninstall("");
    let left = |says: &str| {
        let notes = findings(&node.doctor("--json").json(), "leftovers", "note");
        assert!(notes[0].0.contains(says) && notes[0].1.contains("gybe uninstall"), "{notes:?}");
    };
    left("has to stay: the DEL of existing sandboxes needs it");
    node.end_sandbox("n-cart-eth0");
    left("no sandbox needs its program");
    fs::remove_dir(node.root.join("var/lib/cni/results")).unwrap();
    left("it is unknown which sandboxes still need it");
}

/// Adds a runtime's process, as /proc shows it, that watches a directory.
fn add_watching_runtime(node: &HostRoot, name: &str) {
    let process = node.add_process(name);
    for folder in ["fd", "fdinfo"] {
        fs::create_dir_all(process.join(folder)).unwrap();
    }
    symlink("anon_inode:inotify", process.join("fd/9")).unwrap();
    fs::write(process.join("fdinfo/9"), "inotify wd:1 ino:1 sdev:800001\n").unwrap();
}

#[test]
fn f37_on_openshift_only_the_network_that_multus_calls_counts() {
    let node = HostRoot::new();
    for folder in ["etc/cni/multus/net.d", "var/lib/cni/bin"] {
        fs::create_dir_all(node.root.join(folder)).unwrap();
    }
    fs::write(node.root.join("etc/os-release"), "ID=\"rhcos\"\n").unwrap();
    add_watching_runtime(&node, "crio");
    let nothing = node.doctor("--json");
    assert_eq!(nothing.code, 0, "{nothing:?}");
    assert!(findings(&nothing.json(), "chain", "note")[0].0.contains("is not installed"), "{nothing:?}");
    assert_eq!(node.install("--shape standalone --pods-from /p").code, 0);
    let ran = node.doctor("--json");
    assert_eq!(ran.code, 0, "{ran:?}");
    let chain = findings(&ran.json(), "chain", "ok");
    assert!(chain.len() == 1 && chain[0].0.ends_with("YYY-gybe-cni.conf, which Multus calls"), "{chain:?}");
    assert!(!ran.out.contains("restart crio"), "{}", ran.out);
    fs::remove_file(node.root.join("etc/cni/multus/net.d/YYY-gybe-cni.conf")).unwrap();
    let report = node.doctor("--json").json();
    assert!(findings(&report, "chain", "wrong")[0].0.contains("Multus has no network to call"), "{report}");
}

#[test]
fn f06_a_broken_first_file_is_a_note_where_cri_o_runs() {
    let node = installed_node();
    node.put_conf("00-broken.conf", "{}");
    add_watching_runtime(&node, "crio");
    let report = node.doctor("--json").json();
    assert!(findings(&report, "chain", "wrong").is_empty(), "{report}");
    assert!(
        findings(&report, "chain", "note")[0].0.starts_with("00-broken.conf cannot be loaded"),
        "{report}"
    );
    fs::write(node.root.join("proc/77/comm"), "containerd\n").unwrap();
    assert_eq!(findings(&node.doctor("--json").json(), "chain", "wrong").len(), 1);
}

#[test]
fn a_drop_in_that_the_running_runtime_does_not_read_is_wrong() {
    let node = HostRoot::with(&[("10-calico.conflist", LIST)]);
    assert_eq!(node.install("--shape dropin --pods-from /p").code, 1, "the runtime is unknown");
    let of_chain = |state: &str| findings(&node.doctor("--json").json(), "chain", state);
    let unknown = "whether the runtime reads k8s-pod-network/zz-gybe-cni.conf is unknown here";
    assert!(of_chain("wrong")[0].0.starts_with(unknown));
    add_watching_runtime(&node, "containerd");
    assert!(of_chain("wrong")[0].0.starts_with(unknown));
    assert!(of_chain("note")[0].0.contains("containerd (process 77) reads drop-ins is unknown"));
    let program = node.root.join("proc/77/exe");
    fs::write(&program, "\u{7f}ELF github.com/containernetworking/cni/libcni disableGC").unwrap();
    let (says, remedy) = of_chain("wrong").remove(0);
    assert!(says.starts_with("the runtime does not read k8s-pod-network/zz-gybe-cni.conf"), "{says}");
    assert_eq!(remedy, "set shape: auto, or update the runtime");
    fs::write(program, "\u{7f}ELF github.com/containernetworking/cni/libcni loadOnlyInlinedPlugins").unwrap();
    assert!(of_chain("note").iter().any(|(says, _)| says == "containerd (process 77) reads drop-ins"));
    assert!(of_chain("wrong").is_empty());
}

#[test]
fn f37_the_runtimes_directory_of_plugins_is_read_from_its_configuration() {
    let node = HostRoot::with(&[("10-calico.conflist", LIST)]);
    node.add_runtime("containerd", "loadOnlyInlinedPlugins");
    fs::create_dir_all(node.root.join("etc/containerd")).unwrap();
    let set = |directory: &str| {
        let text =
            format!("version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"{directory}\"\n");
        fs::write(node.root.join("etc/containerd/config.toml"), text).unwrap();
    };
    // The primary's plugins are in Gybe's program directory too, but containerd does not use that directory.
    set("/usr/lib/cni");
    let refused = node.install("--pods-from /p");
    let elsewhere = "the runtime looks for plugins in /usr/lib/cni, not where gybe-cni is placed";
    assert!(refused.code == 1 && refused.out.contains(elsewhere), "{refused:?}");
    assert!(!node.conf_files().values().any(|text| String::from_utf8_lossy(text).contains("gybe-cni")));
    let wrong = findings(&node.doctor("--json").json(), "directories", "wrong");
    assert_eq!(wrong[0].0, elsewhere);
    set("/opt/cni/bin");
    for plugin in ["calico", "loopback"] {
        let program = node.root.join("opt/cni/bin").join(plugin);
        fs::remove_file(&program).unwrap();
        let missing =
            format!("{plugin}, which the runtime runs for 10-calico.conflist, is in none of the directories");
        for confirmed in ["", " --plugin-dir confirmed"] {
            let refused = node.install(&format!("--pods-from /p{confirmed}"));
            assert!(refused.code == 1 && refused.out.contains(&missing), "{refused:?}");
        }
        let (says, remedy) = findings(&node.doctor("--json").json(), "programs", "wrong").remove(0);
        assert!(says.starts_with(&missing), "{says}");
        assert!(remedy.contains("the DaemonSet or the package") && !remedy.contains("confirmed"), "{remedy}");
        node.root.write_programs("opt/cni/bin", [plugin]);
    }
    assert_eq!(node.install("--pods-from /p").code, 0);
    assert_eq!(node.doctor("").code, 0);
}
