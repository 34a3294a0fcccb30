//! `gybe render` of a manifest with several pods, one of which is refused.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Three pods; the second has an annotation with an invalid port.
fn manifest() -> String {
    let pod = |name: &str, ports: &str| {
        format!(
            r#"- {{kind: Pod, metadata: {{name: {name}, annotations: {{sidecar.istio.io/status: x,
                 traffic.sidecar.istio.io/excludeInboundPorts: "{ports}"}}}},
               spec: {{containers: [{{name: app}}, {{name: istio-proxy}}]}}}}"#
        )
    };
    format!("kind: List\nitems:\n{}\n{}\n{}\n", pod("a", "80"), pod("b", "70000"), pod("c", "81"))
}

fn render(arguments: &[&str]) -> (Option<i32>, String, String) {
    #[allow(clippy::disallowed_methods, reason = "the program under test")]
    let mut command = Command::new(env!("CARGO_BIN_EXE_gybe"));
    let command = command.args(["render", "--pod", "-"]).args(arguments);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    child.stdin.take().unwrap().write_all(manifest().as_bytes()).unwrap();
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn a_refused_pod_is_named_and_the_others_are_rendered() {
    let (code, out, err) = render(&[]);
    assert_eq!((code, err.lines().count()), (Some(2), 1), "{err}");
    assert!(err.starts_with("gybe: cannot redirect Pod/b: ") && err.contains("70000"), "{err}");
    let heads: Vec<&str> = out.lines().filter(|line| line.starts_with("# Pod/")).collect();
    let [a, b, c] = heads.as_slice() else { unreachable!("{out}") };
    assert_eq!((*a, *c), ("# Pod/a", "# Pod/c"));
    assert!(b.starts_with("# Pod/b is refused: "), "{b}");
    assert_eq!(out.matches("table inet gybe {").count(), 2, "{out}");
}

#[test]
fn the_json_array_has_the_reason_of_the_refused_pod() {
    let (code, out, _) = render(&["--json"]);
    let pods: Vec<Value> = serde_json::from_str(&out).unwrap();
    let redirected: Vec<bool> = pods.iter().map(|pod| pod["redirected"].as_bool().unwrap()).collect();
    assert_eq!((code, redirected), (Some(2), vec![true, false, true]));
    assert!(pods.iter().any(|pod| pod["refused"].as_str().is_some_and(|why| why.contains("70000"))));
}

#[test]
fn name_renders_one_pod_only() {
    let (code, out, err) = render(&["--name", "b"]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(err.starts_with("gybe: cannot redirect Pod/b: "), "{err}");
    assert_eq!(render(&["--name", "c"]).0, Some(0));
}
