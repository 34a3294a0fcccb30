//! `--plugin-conf`: a pod is decided about as the plugin on the node decides.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::{env, fs, process};

const POD: &str = r#"{kind: Pod, metadata: {name: cart, namespace: shop, annotations: {sidecar.istio.io/status: x}},
    spec: {containers: [{name: app, ports: [{containerPort: 8080}]}, {name: istio-proxy}]}}"#;

/// A file of this test's own, gone with the value.
struct Conf(PathBuf);

impl Conf {
    fn new(test: &str, text: &str) -> Self {
        let path = env::temp_dir().join(format!("gybe-plugin-conf-{test}-{}", process::id()));
        fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for Conf {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
    }
}

fn render(test: &str, conf: &str) -> (Option<i32>, String) {
    let conf = Conf::new(test, conf);
    #[allow(clippy::disallowed_methods, reason = "the program under test")]
    let mut command = Command::new(env!("CARGO_BIN_EXE_gybe"));
    let command = command.args(["render", "--pod", "-", "--plugin-conf"]).arg(&conf.0);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    child.stdin.take().unwrap().write_all(POD.as_bytes()).unwrap();
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

#[test]
fn the_plugins_keys_decide_whether_they_stand_alone_or_in_a_list() {
    for (conf, says) in [
        ("{}", "inbound-excluded-port"),
        (r#"{"type": "gybe-cni", "exclude_namespaces": ["shop"]}"#, "Pod/cart is left alone: "),
        (r#"{"inboundDefault": "containerPorts"}"#, "dport 8080"),
        (
            r#"{"plugins": [{"type": "bridge"}, {"type": "gybe-cni", "exclude_namespaces": ["shop"]}]}"#,
            "Pod/cart is left alone: ",
        ),
    ] {
        let (code, said) = render("keys", conf);
        assert_eq!(code, Some(0), "{conf}: {said}");
        assert!(said.contains(says), "{conf}: {said}");
    }
}

#[test]
fn other_json_is_refused_as_the_plugins_configuration() {
    for (conf, why) in [
        ("", "EOF"),
        ("[]", "no entry of type gybe-cni"),
        (r#"{"type": "bridge"}"#, "no entry of type gybe-cni"),
        (r#"{"plugins": [{"type": "bridge"}]}"#, "no entry of type gybe-cni"),
        (r#"{"gates": "wide"}"#, "gates"),
    ] {
        let (code, said) = render("refused", conf);
        assert_eq!(code, Some(2), "{conf}: {said}");
        assert!(
            said.starts_with("gybe: cannot use the plugin's configuration ") && said.contains(why),
            "{said}"
        );
    }
}
