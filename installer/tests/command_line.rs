//! The `gybe` program: arguments, output, messages and exit codes. Tests that need a network namespace are in
//! the integration crate.
#![cfg(test)]

use gybe_test_support::TestDir;
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
    // The program may end without reading stdin; the write then fails, which is fine.
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

/// A shortened pod as the injector writes it, with more annotations and more members of its proxy.
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

/// Moves the thread into a namespace of its own: if a check were broken, a test run by root would otherwise
/// write into the machine's namespace.
fn leave_the_machines_namespace() {
    if let Ok(netns) = gybe_netfilter::kernel::netns::Netns::create() {
        netns.enter().unwrap();
    }
}

#[test]
fn help_and_version_go_to_stdout_and_usage_errors_to_stderr() {
    for (line, code) in [
        ("--help", 0),
        ("--version", 0),
        ("help trace", 0),
        ("version", 0),
        ("completion zsh", 0),
        ("istio-iptables --help", 0),
        ("init -p 15001 --help", 0),
        ("agent --help", 0),
        ("completion tcsh", 2),
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
fn only_ipv4_is_redirected_unless_the_policy_or_a_flag_adds_ipv6() {
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
        answer.as_array().unwrap().iter().map(|pod| pod["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("render --json --pod -"), ["Deployment/a", "Deployment/b"]);
    assert_eq!(names("render --json --pod - --name b"), ["Deployment/b"]);
    assert_eq!(names("render --json --pod - --name Deployment/a"), ["Deployment/a"]);
    let run = gybe(&words("render --pod - --name c"), &two_deployments());
    assert_eq!(run.code, 2);
    assert_eq!(run.err, "gybe: the manifest has no pod called c\nhint: it has Deployment/a, Deployment/b\n");
}

#[test]
fn commands_for_one_pod_refuse_a_manifest_with_several_and_name_them() {
    leave_the_machines_namespace();
    for line in ["apply --netns /proc/self/ns/net --pod -", "trace --pod - in tcp 10.0.0.1:80"] {
        let run = gybe(&words(line), &two_deployments());
        assert_eq!(run.code, 2, "{line}");
        let expected =
            "gybe: the manifest has 2 pods\nhint: choose one with --name: Deployment/a, Deployment/b\n";
        assert_eq!(run.err, expected, "{line}");
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
fn a01_no_name_in_a_manifest_can_end_the_comment_that_quotes_it() {
    let evil = r#"{kind: "a\nadd table ip x\n#", metadata: {name: "b\nflush ruleset"}, template: {spec: {containers: []}}}"#;
    let run = gybe(&words("render --pod -"), evil);
    assert_eq!((run.code, run.out.lines().count()), (0, 1), "{}", run.out);
    let evil = "metadata: {name: \"a\\u001b[2J\\nb\"}\nkind: X\ntemplate: {spec: {containers: []}}\n";
    let run = gybe(&words("trace --pod - in tcp 10.0.0.1:80"), evil);
    assert!(!run.out.contains('\u{1b}') && run.out.lines().count() == 1, "{:?}", run.out);
}

#[test]
fn a_failure_is_one_sentence_with_all_layers() {
    leave_the_machines_namespace();
    for (line, stdin, expected) in [
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
            "gybe: cannot use the policy -: the policy has 1 fault: line 1 column 10: mode: \"x\" is neither REDIRECT nor TPROXY",
        ),
        (
            "render --pod -",
            "kind: Service",
            "gybe: cannot use the manifest -: the manifest has no pod and no pod template, only Service",
        ),
        (
            "trace --policy - in tcp 10.0.0.1:80 --uid 5",
            "{}",
            "gybe: an inbound packet has no process of the pod as its owner",
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
        assert_eq!(run.err.lines().next(), Some(expected), "{line}");
        assert!(run.err.lines().skip(1).all(|line| line.starts_with("hint: ")), "{}", run.err);
    }
    let refused = pod("traffic.sidecar.istio.io/includeInboundPorts: http", "");
    let run = gybe(&words("render --pod -"), &refused);
    assert_eq!(run.code, 2);
    assert!(run.err.starts_with("gybe: cannot redirect Pod/shop: annotation traffic"), "{}", run.err);
    assert_eq!(run.err.lines().count(), 1);
}

#[test]
fn explain_takes_the_pod_without_the_flag() {
    let file = TestDir::new("explain");
    let path = file.path().join("pod.yaml");
    std::fs::write(&path, pod("", "")).unwrap();
    let path = path.to_str().unwrap();
    for arguments in [["explain", path].as_slice(), &["explain", "--pod", path]] {
        let run = gybe(arguments, "");
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{arguments:?}");
        assert!(run.out.starts_with("Pod/shop: redirected"), "{}", run.out);
    }
    assert_eq!(gybe(&["explain", "-"], &pod("", "")).code, 0);
    let both = gybe(&["explain", "--pod", path, path], "");
    assert!(both.code == 2 && both.err.contains("cannot be used with"), "{}", both.err);
    assert_eq!(gybe(&["explain"], "").code, 2);
    // A value of several lines is one line of the output.
    let run = gybe(&["explain", "-"], &pod("", r#"args: ["router\nof", "the mesh"]"#));
    assert!(run.out.contains("\"router of the mesh\"") && !run.out.contains("\\n"), "{}", run.out);
}

#[test]
fn trace_says_what_it_takes_instead_of_a_name() {
    for (argument, expected) in [
        ("example.com:80", "give one as ADDRESS:80"),
        ("example.com", "give one as ADDRESS:PORT"),
        ("10.1.2.3", "add the port: 10.1.2.3:PORT"),
        ("10.1.2.3:http", "http is no port"),
        ("10.1.2.3:99999", "99999 is no port"),
        ("[10.1.2.3]:80", "write 10.1.2.3:80"),
        ("2001:db8::1:80", "write [2001:db8::1]:80: IPv6 addresses alone have brackets"),
        ("fd00::1", "add the port: [fd00::1]:PORT"),
        ("::1", "add the port: [::1]:PORT"),
        ("[fd00::1]", "add the port: [fd00::1]:PORT"),
        ("[fd00::1]:99999", "99999 is no port"),
    ] {
        let run = gybe(&["trace", "--policy", "-", "out", "tcp", argument], "{}");
        assert_eq!(run.code, 2, "{argument}");
        assert!(run.err.contains(expected), "{argument}: {}", run.err);
    }
}

#[test]
fn trace_prints_the_outcome_and_the_rule() {
    for (line, outcome, port, source) in [
        ("out tcp 10.1.2.3:80", "redirected", Some(15001), "192.0.2.1:40000"),
        ("out tcp 10.1.2.3:80 --uid 1337", "untouched", None, "192.0.2.1:40000"),
        ("out tcp 10.1.2.3:80 --gid 1337", "untouched", None, "192.0.2.1:40000"),
        ("out udp 10.1.2.3:53", "untouched", None, "192.0.2.1:40000"),
        ("out tcp 127.0.0.1:80", "untouched", None, "127.0.0.1:40000"),
        ("out tcp 10.1.2.3:80 --pod-ip 10.9.9.9", "redirected", Some(15001), "10.9.9.9:40000"),
        ("out tcp 10.9.9.9:80 --pod-ip 10.9.9.9 --uid 1337", "redirected", Some(15006), "10.9.9.9:40000"),
        ("out tcp 10.9.9.9:80 --pod-ip 10.9.9.9", "untouched", None, "10.9.9.9:40000"),
        // The packets of these connections have other addresses.
        ("out tcp [::ffff:10.1.2.3]:80", "redirected", Some(15001), "192.0.2.1:40000"),
        ("out tcp 0.0.0.0:80 --uid 1337", "untouched", None, "127.0.0.1:40000"),
        ("out tcp [::]:80 --families dual --uid 1337", "untouched", None, "[::1]:40000"),
        ("in tcp 10.9.9.9:80", "redirected", Some(15006), "192.0.2.1:40000"),
        ("in tcp 10.9.9.9:15021 --from 10.1.1.1:5", "untouched", None, "10.1.1.1:5"),
        ("in tcp [fd00::1]:80 --families dual", "redirected", Some(15006), "[2001:db8::1]:40000"),
    ] {
        let answer = json(&format!("trace --json --policy - {line}"), "{}");
        assert_eq!(answer["outcome"], outcome, "{line}");
        assert_eq!(answer["port"].as_u64(), port, "{line}");
        assert_eq!(answer["packet"]["source"], source, "{line}");
    }
    let run = gybe(&words("trace --policy - in tcp [fd00::1]:80"), "{}");
    assert_eq!((run.code, run.err.as_str()), (0, "note: IPv6 is left alone here\n"));
    assert!(run.out.ends_with("keeps its destination (no rule applies)\n"), "{}", run.out);
}

#[test]
fn version_prints_the_version_as_text_and_as_json() {
    let version = env!("CARGO_PKG_VERSION");
    for line in ["version", "--version"] {
        assert_eq!(gybe(&[line], "").out, format!("gybe {version}\n"), "{line}");
    }
    assert_eq!(json("version --json", "")["version"], version);
}

#[test]
fn completion_scripts_name_commands_and_flags() {
    for (shell, flag) in [("bash", "--ignore-init"), ("zsh", "--ignore-init"), ("fish", "ignore-init")] {
        let script = gybe(&["completion", shell], "").out;
        assert!(script.contains("uninstall") && script.contains(flag), "{shell}");
    }
}

#[test]
fn man_writes_one_page_for_gybe_and_one_for_each_command() {
    let directory = TestDir::new("man");
    let run = gybe(&["man", directory.to_str().unwrap()], "");
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let page = std::fs::read_to_string(directory.join("gybe-verify.1")).unwrap();
    assert!(page.contains(".TH") && page.contains("gybe verify \\-\\-all"), "{page}");
    let mut pages: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|page| page.unwrap().file_name()).collect();
    pages.sort();
    assert!(pages.contains(&"gybe.1".into()) && pages.contains(&"gybe-version.1".into()), "{pages:?}");
    assert!(!pages.iter().any(|page| page.to_string_lossy().contains("help")), "{pages:?}");
}

#[test]
fn output_has_colour_on_a_terminal_only_and_never_with_no_color() {
    const ESCAPE: char = '\u{1b}';
    let on_a_terminal = |variables: &[(&str, &str)]| {
        #[allow(clippy::disallowed_methods, reason = "script(1) runs the program under test on a terminal")]
        let mut script = Command::new("script");
        let program = format!("{} --help", env!("CARGO_BIN_EXE_gybe"));
        script.args(["--quiet", "--command", &program, "/dev/null"]).stdin(Stdio::null());
        script.env_remove("NO_COLOR").env("TERM", "xterm").envs(variables.iter().copied());
        String::from_utf8(script.output().unwrap().stdout).unwrap()
    };
    assert!(on_a_terminal(&[]).contains(ESCAPE));
    assert!(!on_a_terminal(&[("NO_COLOR", "1")]).contains(ESCAPE));
    for line in ["--help", "aply", "version"] {
        let run = gybe(&words(line), "");
        assert!(!run.out.contains(ESCAPE) && !run.err.contains(ESCAPE), "{line}");
    }
}

#[test]
fn faults_of_a_policy_file_are_named_by_line_and_column() {
    for (policy, expected) in [
        ("{\n  \"mode\": \"x\"\n}", "line 2 column 11: mode: "),
        (
            "{\"proxy_port\": 15001,\n\t\"inbound_ports_include\": [\"90-80\"]}",
            "line 2 column 27: inbound_ports_include: ",
        ),
        ("{\n  \"mode\": \"TPROXY\",\n", "at line 3 column "),
    ] {
        let run = gybe(&words("render --policy -"), policy);
        assert_eq!(run.code, 2, "{policy}");
        assert!(run.err.contains(expected), "{policy}: {}", run.err);
    }
    let run = gybe(&words("render --pod -"), "kind: Pod\nmetadata: {name: x\nspec:");
    assert!(run.code == 2 && run.err.contains("at line 3, column 5"), "{}", run.err);
}

#[test]
fn a_pod_by_name_is_explained_from_the_sources_of_the_plugin() {
    let directory = TestDir::new("explain-by-name");
    let manifest = r#"{"metadata": {"name": "cart-0", "namespace": "shop", "annotations": {"sidecar.istio.io/status": "{}"}},
        "spec": {"containers": [{"name": "app", "ports": [{"containerPort": 8080}]}, {"name": "istio-proxy"}]}}"#;
    directory.write("shop/cart-0.json", manifest);
    let path = directory.path().to_string_lossy().into_owned();
    let conf = format!(
        r#"{{"inboundDefault": "containerPorts", "facts": {{"socket": "", "directory": "{path}"}}}}"#
    );
    directory.write("entry.json", &conf);
    let entry = format!("{path}/entry.json");
    let explained = json(&format!("explain --json --pod shop/cart-0 --plugin-conf {entry}"), "");
    assert_eq!(explained[0]["decision"], "redirect");
    assert_eq!(explained[0]["policy"]["inbound_ports_include"], serde_json::json!([8080]));

    let unknown = gybe(&["explain", "--pod", "shop/cart-1", "--plugin-conf", &entry], "");
    assert_eq!(unknown.code, 2, "{}", unknown.err);
    assert!(unknown.err.contains("cannot look up pod shop/cart-1: "), "{}", unknown.err);
}

#[test]
fn explain_exits_with_1_for_a_refused_pod_and_explains_the_others() {
    let run = gybe(&["explain", "--pod", "-"], &three_pods());
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    let headlines = run.out.lines().filter(|line| line.starts_with("Pod/"));
    let refused = headlines.clone().filter(|line| line.contains(": refused, so it does not start: "));
    assert_eq!((headlines.count(), refused.count()), (3, 1), "{}", run.out);
    assert_eq!(gybe(&["explain"], "").code, 2);
}

#[test]
fn a_manifest_that_is_not_injected_is_reported_with_a_hint() {
    let bare =
        "{kind: Deployment, metadata: {name: cart}, spec: {template: {spec: {containers: [{name: app}]}}}}";
    for line in ["render --pod -", "trace --pod - in tcp 10.0.0.1:80"] {
        let run = gybe(&words(line), bare);
        assert!(run.code == 0 && run.out.contains("Deployment/cart is left alone: "), "{line}: {}", run.out);
        assert!(
            run.err.starts_with("hint: Deployment/cart is not injected: run its manifest through `istioctl"),
            "{}",
            run.err
        );
    }
}

#[test]
fn a_closed_pipe_is_not_a_failure() {
    #[allow(clippy::disallowed_methods, reason = "the program under test")]
    let mut command = Command::new(env!("CARGO_BIN_EXE_gybe"));
    let pipes = command.args(["help", "trace"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    drop(child.stdout.take());
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    assert_eq!((status.code(), stderr.as_slice()), (Some(0), &b""[..]));
}

/// Three pods; the second has an annotation with an invalid port.
fn three_pods() -> String {
    let pod = |name: &str, ports: &str| {
        format!(
            r#"- {{kind: Pod, metadata: {{name: {name}, annotations: {{sidecar.istio.io/status: x,
                 traffic.sidecar.istio.io/excludeInboundPorts: "{ports}"}}}},
               spec: {{containers: [{{name: app}}, {{name: istio-proxy}}]}}}}"#
        )
    };
    format!("kind: List\nitems:\n{}\n{}\n{}\n", pod("a", "80"), pod("b", "70000"), pod("c", "81"))
}

#[test]
fn a_refused_pod_is_named_and_the_other_pods_are_rendered() {
    let Run { code, out, err } = gybe(&words("render --pod -"), &three_pods());
    assert_eq!((code, err.lines().count()), (2, 1), "{err}");
    assert!(err.starts_with("gybe: cannot redirect Pod/b: ") && err.contains("70000"), "{err}");
    let heads: Vec<&str> = out.lines().filter(|line| line.starts_with("# Pod/")).collect();
    let [a, b, c] = heads.as_slice() else { unreachable!("{out}") };
    assert_eq!((*a, *c), ("# Pod/a", "# Pod/c"));
    assert!(b.starts_with("# Pod/b is refused: "), "{b}");
    assert_eq!(out.matches("table inet gybe {").count(), 2, "{out}");
}

#[test]
fn the_json_array_has_the_reason_of_the_refused_pod() {
    let Run { code, out, .. } = gybe(&words("render --pod - --json"), &three_pods());
    let pods: Vec<Value> = serde_json::from_str(&out).unwrap();
    let redirected: Vec<bool> = pods.iter().map(|pod| pod["redirected"].as_bool().unwrap()).collect();
    assert_eq!((code, redirected), (2, vec![true, false, true]));
    assert!(pods.iter().any(|pod| pod["refused"].as_str().is_some_and(|why| why.contains("70000"))));
}

#[test]
fn with_name_only_that_pod_is_rendered() {
    let Run { code, out, err } = gybe(&words("render --pod - --name b"), &three_pods());
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.starts_with("gybe: cannot redirect Pod/b: "), "{err}");
    assert_eq!(gybe(&words("render --pod - --name c"), &three_pods()).code, 0);
}

/// A pod with a port, in the namespace `shop`.
const POD: &str = r#"{kind: Pod, metadata: {name: cart, namespace: shop, annotations: {sidecar.istio.io/status: x}},
    spec: {containers: [{name: app, ports: [{containerPort: 8080}]}, {name: istio-proxy}]}}"#;

/// Renders [`POD`] with this configuration of the plugin; returns the exit code, and stdout and stderr together.
fn render_with_plugin_conf(conf: &str) -> (i32, String) {
    let directory = TestDir::new("plugin-conf");
    let path = directory.write("plugin.conf", conf);
    let run = gybe(&["render", "--pod", "-", "--plugin-conf", path.to_str().unwrap()], POD);
    (run.code, run.out + &run.err)
}

#[test]
fn plugin_conf_is_read_from_an_entry_or_from_a_whole_list() {
    for (conf, expected) in [
        ("{}", "inbound-excluded-port"),
        (r#"{"type": "gybe-cni", "exclude_namespaces": ["shop"]}"#, "Pod/cart is left alone: "),
        (r#"{"inboundDefault": "containerPorts"}"#, "dport 8080"),
        (
            r#"{"plugins": [{"type": "bridge"}, {"type": "gybe-cni", "exclude_namespaces": ["shop"]}]}"#,
            "Pod/cart is left alone: ",
        ),
    ] {
        let (code, output) = render_with_plugin_conf(conf);
        assert_eq!(code, 0, "{conf}: {output}");
        assert!(output.contains(expected), "{conf}: {output}");
    }
}

#[test]
fn a_file_that_is_no_configuration_of_the_plugin_is_refused() {
    for (conf, why) in [
        ("", "EOF"),
        ("[]", "no entry of type gybe-cni"),
        (r#"{"type": "bridge"}"#, "no entry of type gybe-cni"),
        (r#"{"plugins": [{"type": "bridge"}]}"#, "no entry of type gybe-cni"),
        (r#"{"gates": "wide"}"#, "gates"),
    ] {
        let (code, output) = render_with_plugin_conf(conf);
        assert_eq!(code, 2, "{conf}: {output}");
        assert!(
            output.starts_with("gybe: cannot use the plugin's configuration ") && output.contains(why),
            "{output}"
        );
    }
}
