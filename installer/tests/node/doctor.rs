//! `gybe doctor` on correct nodes, and on nodes with exactly one fault each.

use crate::{HostRoot, LIST};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

/// Returns an installed node whose plugin reads pods from manifests, so it needs no agent.
pub(crate) fn installed_node() -> HostRoot {
    let node = HostRoot::with(&[("10-calico.conflist", LIST)]);
    assert_eq!(node.install("--pods-from /etc/gybe/pods").code, 0);
    node
}

/// Returns the text and remedy of each finding about `about` with this state.
pub(crate) fn findings(report: &Value, about: &str, state: &str) -> Vec<(String, String)> {
    let all = report["findings"].as_array().unwrap().iter();
    let these = all.filter(|it| it["about"] == about && it["state"] == state);
    let text = |it: &Value, key: &str| it[key].as_str().unwrap_or_default().to_owned();
    these.map(|it| (text(it, "says"), text(it, "remedy"))).collect()
}

/// Returns the only finding that is wrong: its subject, text and remedy.
pub(crate) fn only_wrong_finding(node: &HostRoot, arguments: &str) -> (String, String, String) {
    let ran = node.doctor(format!("{arguments} --json").trim_start());
    assert_eq!(ran.code, 1, "{ran:?}");
    let report = ran.json();
    let all = report["findings"].as_array().unwrap().iter();
    let wrong: Vec<&Value> = all.filter(|it| it["state"] == "wrong").collect();
    assert_eq!(wrong.len(), 1, "{wrong:#?}");
    let text = |key: &str| wrong[0][key].as_str().unwrap().to_owned();
    (text("about"), text("says"), text("remedy"))
}

#[test]
fn doctor_explains_a_healthy_node_and_finds_nothing_wrong() {
    let node = installed_node();
    let before = (node.conf_files(), node.programs(), node.files("run"));
    let ran = node.doctor("");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    for line in [
        "ok     containerd and CRI-O use 10-calico.conflist: network k8s-pod-network with the plugins calico, portmap, gybe-cni\n",
        "ok     gybe-cni is the last plugin in 10-calico.conflist\n",
        "ok     gybe-cni answers VERSION\n",
        "note   the plugin queries no agent: it reads pods from the manifests in /etc/gybe/pods\n",
        "note   backend: auto; no probe report yet\n",
        "\nnothing is wrong\n",
    ] {
        assert!(ran.out.contains(line), "{line} in {}", ran.out);
    }
    assert_eq!((node.conf_files(), node.programs(), node.files("run")), before, "it changes nothing");
    let report = node.doctor("--json").json();
    assert_eq!(report["well"], true);
    assert_eq!(findings(&report, "programs", "ok").len(), 3);
}

#[test]
fn an_unknown_annotation_of_an_injected_pod_is_noted_with_its_pod() {
    let node = installed_node();
    fs::create_dir(node.root.join("run/netns")).unwrap();
    let cached = |name: &str, annotations: Value| {
        let args = [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", name]];
        let capabilities = json!({ "io.kubernetes.cri.pod-annotations": annotations });
        let netns = format!("/run/netns/{name}");
        fs::write(node.root.join(&netns[1..]), "").unwrap();
        let cached =
            json!({ "kind": "cniCacheV1", "netns": netns, "cniArgs": args, "capabilityArgs": capabilities });
        fs::write(node.root.join("var/lib/cni/results").join(name), cached.to_string()).unwrap();
    };
    let misspelt = "traffic.sidecar.istio.io/excludeOutboundPort";
    cached("cart-0", json!({ "sidecar.istio.io/status": "{}", misspelt: "80" }));
    cached(
        "right",
        json!({ "sidecar.istio.io/status": "{}", "traffic.sidecar.istio.io/excludeOutboundPorts": "80" }),
    );
    cached("unmeshed", json!({ misspelt: "80" }));
    cached("none", Value::Null);
    let ran = node.doctor("--json");
    let says = format!("pod shop/cart-0: annotation {misspelt:?} is unknown: did you mean {misspelt}s?");
    let remedy = "correct the annotation in the pod's template".to_owned();
    let mut notes = findings(&ran.json(), "pods", "note");
    notes.retain(|(note, _)| note.starts_with("pod "));
    assert_eq!(notes, [(says, remedy)]);
}

#[test]
fn every_shape_is_recognized() {
    let multus = ("00-multus.conf", r#"{"name":"m","type":"multus"}"#);
    for (shape, files, says) in [
        (
            "dropin",
            vec![("10-calico.conflist", LIST)],
            "gybe-cni is the last plugin in 10-calico.conflist (as a drop-in)",
        ),
        (
            "standalone",
            vec![multus, ("10-calico.conflist", LIST)],
            "gybe-cni is a network of its own in YYY-gybe-cni.conf, which Multus calls",
        ),
    ] {
        let node = HostRoot::with(&files);
        node.write_program("opt/cni/bin/multus", "#!/bin/sh\n");
        node.add_runtime("containerd", "loadOnlyInlinedPlugins");
        assert_eq!(node.install(&format!("--shape {shape} --pods-from /p")).code, 0);
        let ran = node.doctor("--json");
        assert_eq!(ran.code, 0, "{shape}: {ran:?}");
        assert!(findings(&ran.json(), "chain", "ok").iter().any(|(it, _)| it == says), "{shape}: {ran:?}");
    }
}

#[test]
fn a_wrong_chain_is_reported_with_a_remedy() {
    let node = installed_node();
    node.put_conf("00-new.conflist", LIST);
    let (about, says, remedy) = only_wrong_finding(&node, "");
    assert_eq!(about, "chain");
    assert_eq!(says, "gybe-cni is in 10-calico.conflist, but the runtime uses 00-new.conflist");
    assert!(remedy.contains("run gybe install"), "{remedy}");
    fs::remove_file(node.conf("00-new.conflist")).unwrap();

    node.put_conf("10-calico.conflist", &LIST.replace("calico\"", "cilium-cni\""));
    let report = node.doctor("--json").json();
    let (says, remedy) = findings(&report, "chain", "wrong").remove(0);
    assert_eq!(says, "gybe-cni is not in 10-calico.conflist: new pods are not redirected");
    assert!(remedy.contains("cni.exclusive=false"), "{remedy}");
    assert!(remedy.contains("start the agent (DaemonSet gybe-node)"), "{remedy}");
    // The node may have no agent, and may have one whose socket was left.
    let (says, _) = findings(&report, "agent", "note").remove(0);
    assert!(says.starts_with("no node agent answers at"), "{says}");
    drop(UnixListener::bind(node.root.join("run/gybe/facts.sock")).unwrap());
    let report = node.doctor("--json").json();
    let (says, remedy) = findings(&report, "agent", "wrong").remove(0);
    assert!(says.contains("facts.sock is gone, and no conf file names gybe-cni, so new pods"), "{says}");
    assert!(remedy.contains("DaemonSet gybe-node"), "{remedy}");
    fs::remove_file(node.root.join("run/gybe/facts.sock")).unwrap();

    let not_last = r#"{"name":"n","plugins":[{"type":"calico"},{"type":"gybe-cni","facts":{"directory":"/p"},"capabilities":{"io.kubernetes.cri.pod-annotations":true}},{"type":"bandwidth"}]}"#;
    node.put_conf("10-calico.conflist", not_last);
    let ran = node.doctor("--json");
    assert_eq!(ran.code, 0, "pods are redirected: {ran:?}");
    let notes = findings(&ran.json(), "chain", "note");
    assert_eq!(
        notes[0].0,
        "gybe-cni should be the last plugin in 10-calico.conflist, but bandwidth follows it"
    );
}

#[test]
fn f06_a_broken_first_file_is_wrong_and_a_broken_later_one_a_note() {
    let node = installed_node();
    node.put_conf("99-broken.conflist", "{");
    let report = node.doctor("--json");
    assert_eq!(report.code, 0, "{report:?}");
    let notes = findings(&report.json(), "chain", "note");
    assert!(notes[0].0.starts_with("99-broken.conflist cannot be loaded: it is not JSON"), "{notes:?}");
    node.put_conf("00-broken.conf", "{}");
    let report = node.doctor("--json").json();
    let wrong = findings(&report, "chain", "wrong");
    let stops = "containerd loads no network because 00-broken.conf, which sorts first, is broken: its plugin 0 has no type";
    assert_eq!(wrong[0].0, stops);
    assert!(wrong[0].1.contains("containerd loads nothing while it is there"), "{wrong:?}");
}

#[test]
fn an_entry_that_the_plugin_would_refuse_is_found() {
    let node = installed_node();
    let text = fs::read_to_string(node.conf("10-calico.conflist")).unwrap();
    node.put_conf("10-calico.conflist", &text.replace("\"auto\"", "\"nftt\""));
    let (about, says, _) = only_wrong_finding(&node, "");
    assert_eq!(about, "entry");
    assert!(says.contains("backend is \"nftt\"") && says.contains("GYBE-ADD-009"), "{says}");
    node.put_conf("10-calico.conflist", &text.replace("io.kubernetes.cri.pod-annotations", "portMappings"));
    let (_, says, _) = only_wrong_finding(&node, "");
    assert!(says.contains("does not request the capability io.kubernetes.cri.pod-annotations"), "{says}");
    node.put_conf(
        "10-calico.conflist",
        &text.replace("\"kubeconfig\": \"\"", "\"kubeconfig\": \"/no/such\""),
    );
    let (_, says, _) = only_wrong_finding(&node, "");
    assert_eq!(says, "the kubeconfig /no/such cannot be read: No such file or directory");
}

#[test]
fn f10_a_plugin_that_does_not_run_or_is_writable_by_other_users_is_reported() {
    let node = installed_node();
    node.write_program("opt/cni/bin/gybe-cni", "#!/bin/sh\nexit 1\n");
    let (about, says, _) = only_wrong_finding(&node, "");
    assert_eq!(about, "programs");
    assert_eq!(says, "gybe-cni does not run: it ended with exit status: 1");
    node.write_program("opt/cni/bin/gybe-cni", "\u{7f}ELF cut off");
    let (_, says, _) = only_wrong_finding(&node, "");
    assert!(says.starts_with("gybe-cni does not run: it cannot be run"), "{says}");
    assert_eq!(node.install("--pods-from /p").code, 0);
    let plugin = node.root.join("opt/cni/bin/gybe-cni");
    fs::set_permissions(&plugin, Permissions::from_mode(0o777)).unwrap();
    let (_, says, remedy) = only_wrong_finding(&node, "");
    assert!(says.starts_with("gybe-cni is writable by other users: mode 0777"), "{says}");
    assert!(remedy.contains("can become root"), "{remedy}");
    fs::remove_file(plugin).unwrap();
    let (_, says, _) = only_wrong_finding(&node, "");
    assert_eq!(says, "the program gybe-cni is missing, and a conf file or an existing sandbox may need it");
}

#[test]
fn a_missing_a_dead_and_a_misbehaving_agent_are_distinguished() {
    let node = HostRoot::with(&[("10-calico.conflist", LIST)]);
    assert_eq!(node.install("").code, 0);
    let socket = node.root.join("run/gybe/facts.sock");
    let text = fs::read_to_string(node.conf("10-calico.conflist")).unwrap();
    node.put_conf("10-calico.conflist", &text.replace("/run/gybe/facts.sock", &socket.display().to_string()));
    let (about, says, remedy) = only_wrong_finding(&node, "");
    assert_eq!(about, "agent");
    assert!(says.contains("is not there, so the plugin refuses new pods of the mesh"), "{says}");
    assert!(remedy.contains("gybe-node"), "{remedy}");
    drop(UnixListener::bind(&socket).unwrap());
    assert!(only_wrong_finding(&node, "").1.contains("is gone"));
    fs::remove_file(&socket).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    let nonsense = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut client, b"HTTP/1.1 400 Bad Request\n").unwrap();
    });
    assert!(only_wrong_finding(&node, "").1.contains("does not answer correctly"));
    nonsense.join().unwrap();
}

#[test]
fn f37_directories_of_another_platform_are_reported_with_the_right_ones() {
    let node = installed_node();
    fs::create_dir_all(node.root.join("etc")).unwrap();
    fs::write(node.root.join("etc/os-release"), "ID=rhcos\n").unwrap();
    let ran = node.doctor("--json");
    assert_eq!(ran.code, 1, "{ran:?}");
    let report = ran.json();
    let wrong = findings(&report, "directories", "wrong");
    assert!(wrong[0].0.ends_with("etc/cni/multus/net.d"), "{wrong:?}");
    assert!(wrong[0].1.contains("on OpenShift the runtime uses /etc/cni/multus/net.d and /var/lib/cni/bin"));
    // GKE's Ubuntu image has ID=ubuntu.
    fs::write(node.root.join("etc/os-release"), "ID=ubuntu\n").unwrap();
    fs::create_dir_all(node.root.join("home/kubernetes/bin")).unwrap();
    let ran = node.doctor("--bin-dir ROOT/opt/cni/bin --json");
    assert_eq!(ran.code, 0, "{ran:?}");
    let notes = findings(&ran.json(), "directories", "note");
    assert!(notes[0].0.starts_with("these are not the directories of GKE"), "{notes:?}");
}

#[test]
fn f37_a_program_directory_without_the_primarys_plugins_is_reported() {
    let node = installed_node();
    fs::rename(node.root.join("opt/cni/bin"), node.root.join("bin-of-the-runtime")).unwrap();
    fs::create_dir(node.root.join("opt/cni/bin")).unwrap();
    let ran = node.install("--pods-from /etc/gybe/pods");
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.out.contains("(calico, portmap) is in the program directory"), "{ran:?}");
    let (about, says, remedy) = only_wrong_finding(&node, "");
    assert_eq!(about, "directories");
    assert!(says.starts_with("none of the plugins of 10-calico.conflist (calico, portmap) is in"), "{says}");
    assert!(remedy.contains("--bin-dir") && remedy.contains("--plugin-dir confirmed"), "{remedy}");
    assert_eq!(node.install("--plugin-dir confirmed --pods-from /etc/gybe/pods").code, 0);
    assert_eq!(node.doctor("--plugin-dir confirmed").code, 0);
}
