//! `gybe support-bundle` on a node in which secrets are planted.

use crate::HostRoot;
use crate::doctor::installed_node;
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A JSON web token, a key, and plain words.
const SECRETS: [&str; 7] = [
    "eyJhbGciOiJSUzI1NiIsImtpZCI6IlBsYW50ZWQifQ.eyJpc3MiOiJwbGFudGVkIn0.UGxhbnRlZFNpZ25hdHVyZQ",
    "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7Planted",
    "planted-password",
    "planted-annotation",
    "planted-variable",
    "p!ss,w@rd;planted",
    "planted pre-shared words",
];

/// Plants each secret where such a secret may be on a node.
fn plant(node: &HostRoot) {
    let [token, key, password, annotation, variable, punctuated, spaced] = SECRETS;
    let conf = json!({ "cniVersion": "1.0.0", "name": "other", "plugins": [{
        "type": "bridge", "k8s_auth_token": token, "etcd_key": key, "mtu": 1500,
        "datastore": { "password": password, "url": format!("https://etcd:{password}@10.0.0.1:2379") },
    }] });
    node.root.write("etc/cni/net.d/20-other.conflist", conf.to_string());
    node.root.write("etc/cni/net.d/30-broken.conf", format!("{{ \"password\": \"{password}\""));
    let kubeconfig = format!("users:\n- name: x\n  user:\n    token: {token}\n    client-key-data: {key}\n");
    node.root.write("run/gybe/kubeconfig", &kubeconfig);
    node.root.write("etc/cni/net.d/calico-kubeconfig", &kubeconfig);
    node.root
        .write("run/gybe/probe.json", json!({ "kernel": "6.18", "note": { "token": token } }).to_string());
    let pod = json!({ "kind": "Pod", "metadata": { "name": "cart-0", "namespace": "shop", "annotations": { "x": annotation } } });
    node.root.write("etc/gybe/pods/shop/cart-0.json", pod.to_string());
    let cached = json!({
        "containerId": "c0ffee", "netns": "/run/netns/gone", "capabilityArgs": { "io.kubernetes.cri.pod-annotations": { "x": annotation } },
        "cniArgs": [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "cart-0"]],
    });
    node.root.write("var/lib/cni/results/net-eth0", cached.to_string());
    let log = format!(
        "{{\"msg\":\"gybe node: leads\"}}\nAuthorization: Bearer {token}\npassword={password}\n{key}\n\
         GET https://user:{punctuated}@10.0.0.1/x\netcd --password {punctuated} --psk '{spaced}'\n"
    );
    node.root.write("var/log/pods/gybe-system_gybe-node-x_uid/install/0.log", log);
    let process = node.add_process("containerd");
    fs::write(process.join("environ"), format!("TOKEN={variable}\0")).unwrap();
    node.root.write("var/log/pods/shop_cart-0_uid/app/0.log", format!("{password}\n"));
}

/// The contents of the archive by the names of its files.
fn unpacked(archive: &Path) -> Vec<(String, String)> {
    let mut archive = tar::Archive::new(fs::File::open(archive).unwrap());
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        (name, std::io::read_to_string(&mut entry).unwrap())
    });
    entries.collect()
}

#[test]
fn the_archive_has_what_a_maintainer_needs_and_no_secret() {
    let node = installed_node();
    plant(&node);
    let archive = node.root.join("support.tar");
    let words = format!("support-bundle --root ROOT --run-dir ROOT/run/gybe --output {}", archive.display());
    let ran = node.gybe(&words);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    assert_eq!(fs::metadata(&archive).unwrap().permissions().mode() & 0o777, 0o600);
    let bytes = String::from_utf8_lossy(&fs::read(&archive).unwrap()).into_owned();
    for secret in SECRETS.iter().flat_map(|secret| secret.split('.')) {
        assert!(!bytes.contains(secret), "{secret}");
    }
    let files = unpacked(&archive);
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "agent.json",
        "conf/10-calico.conflist.json",
        "conf/20-other.conflist.json",
        "conf/30-broken.conf.json",
        "doctor.json",
        "log/gybe-system_gybe-node-x_uid/install/0.log",
        "run/probe.json",
        "run/runtime.json",
        "verify.json",
        "versions.json",
    ];
    assert_eq!(names, expected.map(|name| format!("gybe-support/{name}")));
    let text = |name: &str| &files.iter().find(|(found, _)| found.ends_with(name)).unwrap().1;
    assert!(text("10-calico.conflist.json").contains("\"gybe-cni\""));
    assert!(text("20-other.conflist.json").contains("\"mtu\": 1500"));
    assert!(text("30-broken.conf.json").contains("not_json"));
    assert!(text("doctor.json").contains("\"findings\""));
    assert!(text("0.log").contains("gybe node: leads"));
    // An existing file is not replaced.
    let again = node.gybe(&words);
    assert!(again.code == 2 && again.err.contains("File exists"), "{again:?}");
    let printed = node.gybe("support-bundle --root ROOT --run-dir ROOT/run/gybe --output - --json");
    assert_eq!(printed.json()["files"].as_object().unwrap().len(), expected.len());
    assert!(!SECRETS.iter().any(|secret| printed.out.contains(secret)), "{}", printed.out);
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the program under test")]
fn an_archive_that_cannot_be_written_leaves_no_part_of_it() {
    let node = installed_node();
    fs::create_dir(node.root.join("out")).unwrap();
    // The shell's limit for the size of a file, 512 bytes or 1 KiB, without the signal that would end the program.
    let words = "trap '' XFSZ; ulimit -f 1; exec \"$0\" support-bundle --root \"$1\" --run-dir \"$1/run/gybe\" \
                 --output \"$1/out/support.tar\"";
    let mut command = Command::new("sh");
    command.args(["-c", words, env!("CARGO_BIN_EXE_gybe")]).arg(&*node.root);
    let ran = command.output().unwrap();
    let err = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.code() == Some(2) && err.contains("out/support.tar: File too large"), "{ran:?}");
    assert!(node.files("out").is_empty(), "{:?}", node.files("out").keys());
}
