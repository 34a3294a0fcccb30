//! `gybe` as an operator and a script meet it: arguments, answers, sentences, exit codes. What needs
//! a network namespace is tested in the integration crate.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that meets what it did not expect has nothing better to do"
)]

use serde_json::Value;
use std::io::Write;
use std::process::{Command, Output, Stdio};

struct Run {
    code: i32,
    out: String,
    err: String,
}

fn gybe(arguments: &[&str], stdin: &str) -> Run {
    #[allow(clippy::disallowed_methods, reason = "the program under test")]
    let mut command = Command::new(env!("CARGO_BIN_EXE_gybe"));
    let pipes = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    // It may end without having read: then there is nobody to write to.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { code: status.code().unwrap(), out: text(stdout), err: text(stderr) }
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn json(arguments: &str, stdin: &str) -> Value {
    let run = gybe(&words(arguments), stdin);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{arguments}");
    serde_json::from_str(&run.out).unwrap()
}

/// A pod as the injector writes it, trimmed; `{}` is where more of its proxy or annotations goes.
fn pod(annotations: &str, proxy: &str) -> String {
    format!(
        r#"{{kind: Pod, metadata: {{name: shop, annotations: {{sidecar.istio.io/status: x, {annotations}}}}},
            spec: {{containers: [{{name: app}}, {{name: istio-proxy, {proxy}}}]}}}}"#
    )
}

fn two_deployments() -> String {
    let pod = pod("", "");
    format!(
        "kind: List\nitems:\n- {{kind: Deployment, metadata: {{name: a}}, spec: {{template: {pod}}}}}\n\
         - {{kind: Deployment, metadata: {{name: b}}, spec: {{template: {pod}}}}}\n"
    )
}

/// Were a check broken, root would write into the namespace of the calling thread, and not the machine's.
fn apart() {
    let _ = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET);
}

#[test]
fn help_and_version_are_answers_and_everything_misspelt_is_not() {
    for (line, code) in [
        ("--help", 0),
        ("--version", 0),
        ("help trace", 0),
        ("apply --help", 0),
        ("", 2),
        ("aply", 2),
        ("render", 2),
        ("render --policy - --pod -", 2),
        ("render --policy - --name x", 2),
        ("render --policy - --families v6", 2),
        ("render --policy - --backend pf", 2),
        ("apply --policy -", 2),
        ("inspect", 2),
        ("trace --policy - out icmp 10.0.0.1:1", 2),
        ("trace --policy - out tcp 10.0.0.1", 2),
        ("trace --policy - out tcp 10.0.0.1:80 --iface -x", 2),
    ] {
        let run = gybe(&words(line), "{}");
        assert_eq!(run.code, code, "{line}: {}{}", run.out, run.err);
        assert!(run.out.is_empty() != run.err.is_empty(), "{line}");
        assert_eq!(run.err.is_empty(), code == 0, "{line}");
    }
}

#[test]
fn a_policy_is_rendered_as_a_script_that_replaces_the_table() {
    let run = gybe(&words("render --policy - --backend nft"), "{}");
    assert_eq!(run.code, 0, "{}", run.err);
    for line in ["delete table inet gybe", "table inet gybe {", "\tchain nat-output {"] {
        assert!(run.out.lines().any(|found| found == line), "{line} in {}", run.out);
    }
}

#[test]
fn families_are_v4_unless_the_wish_or_the_operator_says_otherwise() {
    let dual = r#"env: [{name: ISTIO_DUAL_STACK, value: "true"}]"#;
    for (arguments, stdin, families) in [
        ("--policy -", "{}".to_owned(), "v4"),
        ("--policy - --families dual", "{}".to_owned(), "dual"),
        ("--policy -", r#"{"enable_ipv6": true}"#.to_owned(), "dual"),
        ("--policy - --families v4", r#"{"enable_ipv6": true}"#.to_owned(), "v4"),
        ("--policy -", r#"{"enable_ipv6": false, "dual_stack": true}"#.to_owned(), "v4"),
        ("--policy -", r#"{"dual_stack": true}"#.to_owned(), "dual"),
        ("--pod -", pod("", ""), "v4"),
        ("--pod - --families dual", pod("", ""), "dual"),
        ("--pod -", pod("", dual), "dual"),
        ("--pod - --families v4", pod("", dual), "v4"),
    ] {
        let answer = json(&format!("render --json {arguments}"), &stdin);
        assert_eq!(answer[0]["families"], families, "{arguments} {stdin}");
    }
}

#[test]
fn each_pod_of_a_manifest_is_rendered_and_one_can_be_chosen() {
    let names = |arguments: &str| -> Vec<String> {
        let answer = json(arguments, &two_deployments());
        answer.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("render --json --pod -"), ["Deployment/a", "Deployment/b"]);
    assert_eq!(names("render --json --pod - --name b"), ["Deployment/b"]);
    assert_eq!(names("render --json --pod - --name Deployment/a"), ["Deployment/a"]);
    let run = gybe(&words("render --pod - --name c"), &two_deployments());
    assert_eq!(run.code, 2);
    assert_eq!(run.err, "gybe: the manifest has no pod called c\nhint: it has Deployment/a, Deployment/b\n");
}

#[test]
fn where_one_pod_is_needed_several_are_refused_with_their_names() {
    apart();
    for line in ["apply --netns /proc/self/ns/net --pod -", "trace --pod - in tcp 10.0.0.1:80"] {
        let run = gybe(&words(line), &two_deployments());
        assert_eq!(run.code, 2, "{line}");
        let told =
            "gybe: the manifest has 2 pods\nhint: choose one with --name: Deployment/a, Deployment/b\n";
        assert_eq!(run.err, told, "{line}");
    }
}

#[test]
fn a_pod_that_is_left_alone_is_a_comment_with_the_reason() {
    let init = pod("", "").replace("containers: [", "initContainers: [{name: istio-init}], containers: [");
    let run = gybe(&words("render --pod -"), &init);
    assert_eq!(run.code, 0);
    assert!(run.out.starts_with("# Pod/shop is left alone: ") && run.out.lines().count() == 1, "{}", run.out);
    let run = gybe(&words("render --pod - --ignore-init"), &init);
    assert!(run.out.starts_with("# Pod/shop\ntable inet gybe\n"), "{}", run.out);
    let answer = json("render --json --pod -", &init);
    assert_eq!(answer[0]["redirected"], false);
}

#[test]
fn a01_no_name_in_a_manifest_can_end_the_comment_it_stands_in() {
    let evil = r#"{kind: "a\nadd table ip x\n#", metadata: {name: "b\nflush ruleset"}, template: {spec: {containers: []}}}"#;
    let run = gybe(&words("render --pod -"), evil);
    assert_eq!((run.code, run.out.lines().count()), (0, 1), "{}", run.out);
    let evil = "metadata: {name: \"a\\u001b[2J\\nb\"}\nkind: X\ntemplate: {spec: {containers: []}}\n";
    let run = gybe(&words("trace --pod - in tcp 10.0.0.1:80"), evil);
    assert!(!run.out.contains('\u{1b}') && run.out.lines().count() == 1, "{:?}", run.out);
}

#[test]
fn a_failure_is_one_sentence_with_all_layers() {
    apart();
    for (line, stdin, told) in [
        (
            "render --policy /nonexistent",
            "",
            "gybe: cannot use the policy: cannot open /nonexistent: No such file or directory (os error 2)",
        ),
        ("render --policy /", "", "gybe: cannot use the policy: cannot read /: Is a directory (os error 21)"),
        (
            "render --policy /dev/zero",
            "",
            "gybe: cannot use the policy: /dev/zero is longer than 8388608 bytes",
        ),
        (
            "render --policy -",
            r#"{"mode": "x"}"#,
            "gybe: cannot use the policy -: the policy has 1 fault: mode: \"x\" is neither REDIRECT nor TPROXY",
        ),
        (
            "render --pod -",
            "kind: Service",
            "gybe: cannot use the manifest -: the manifest has no pod and no pod template, only Service",
        ),
        (
            "trace --policy - in tcp 10.0.0.1:80 --uid 5",
            "{}",
            "gybe: what comes in has no process of the pod behind it",
        ),
        (
            "trace --policy - out tcp 10.0.0.1:80 --from ::1",
            "{}",
            "gybe: [::1]:40000 and 10.0.0.1:80 are addresses of different families",
        ),
        (
            "apply --netns /proc/self/ns/net --policy -",
            "{}",
            "gybe: /proc/self/ns/net is the network namespace gybe itself runs in",
        ),
        (
            "remove --netns /proc/self/ns/net",
            "",
            "gybe: /proc/self/ns/net is the network namespace gybe itself runs in",
        ),
    ] {
        let run = gybe(&words(line), stdin);
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{line}");
        assert_eq!(run.err.lines().next(), Some(told), "{line}");
        assert!(run.err.lines().skip(1).all(|line| line.starts_with("hint: ")), "{}", run.err);
    }
    let refused = pod("traffic.sidecar.istio.io/includeInboundPorts: http", "");
    let run = gybe(&words("render --pod -"), &refused);
    assert_eq!(run.code, 2);
    assert!(run.err.starts_with("gybe: cannot redirect Pod/shop: annotation traffic"), "{}", run.err);
    assert_eq!(run.err.lines().count(), 1);
}

#[test]
fn trace_tells_the_fate_and_the_rule() {
    for (line, fate, port, source) in [
        ("out tcp 10.1.2.3:80", "redirected", Some(15001), "192.0.2.1:40000"),
        ("out tcp 10.1.2.3:80 --uid 1337", "untouched", None, "192.0.2.1:40000"),
        ("out tcp 10.1.2.3:80 --gid 1337", "untouched", None, "192.0.2.1:40000"),
        ("out udp 10.1.2.3:53", "untouched", None, "192.0.2.1:40000"),
        ("out tcp 127.0.0.1:80", "untouched", None, "127.0.0.1:40000"),
        ("out tcp 10.1.2.3:80 --pod-ip 10.9.9.9", "redirected", Some(15001), "10.9.9.9:40000"),
        ("out tcp 10.9.9.9:80 --pod-ip 10.9.9.9 --uid 1337", "redirected", Some(15006), "10.9.9.9:40000"),
        ("out tcp 10.9.9.9:80 --pod-ip 10.9.9.9", "untouched", None, "10.9.9.9:40000"),
        ("in tcp 10.9.9.9:80", "redirected", Some(15006), "192.0.2.1:40000"),
        ("in tcp 10.9.9.9:15021 --from 10.1.1.1:5", "untouched", None, "10.1.1.1:5"),
        ("in tcp [fd00::1]:80 --families dual", "redirected", Some(15006), "[2001:db8::1]:40000"),
    ] {
        let answer = json(&format!("trace --json --policy - {line}"), "{}");
        assert_eq!(answer["fate"], fate, "{line}");
        assert_eq!(answer["port"].as_u64(), port, "{line}");
        assert_eq!(answer["packet"]["source"], source, "{line}");
    }
    let run = gybe(&words("trace --policy - in tcp [fd00::1]:80"), "{}");
    assert_eq!((run.code, run.err.as_str()), (0, "note: IPv6 is left alone here\n"));
    assert!(run.out.ends_with("goes where it would go without us (no rule applies)\n"), "{}", run.out);
}

#[test]
fn a_reader_that_has_had_enough_is_no_failure() {
    #[allow(clippy::disallowed_methods, reason = "the program under test")]
    let mut command = Command::new(env!("CARGO_BIN_EXE_gybe"));
    let pipes = command.args(["help", "trace"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    drop(child.stdout.take());
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    assert_eq!((status.code(), stderr.as_slice()), (Some(0), &b""[..]));
}
