//! `gybe` in a network namespace: apply, verify, inspect and remove agree with each other, and render with nft(8).

use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::programs::{Run, ours, path_of_ours, run};
use gybe_integration::vectors;
use gybe_netfilter::compile::compile;
use serde_json::Value;

const POLICY: &str = r#"{"enable_ipv6": true, "outbound_ports_exclude": [22, "8000-8100"]}"#;

struct Pod(Namespace);

impl Pod {
    fn new() -> Self {
        Self(Namespace::new().unwrap())
    }

    /// `apply` without a backend would use the machine's own probe findings; `probe` tests that with findings of
    /// its own.
    fn gybe(&self, words: &str, stdin: &str) -> Run {
        let netns = self.0.path().to_string_lossy().into_owned();
        let by_nft = words.starts_with("apply") && !words.contains("--backend");
        let backend: &[&str] = if by_nft { &["--backend", "nft"] } else { &[] };
        let words: Vec<&str> =
            words.split(' ').chain(["--netns", &netns]).chain(backend.iter().copied()).collect();
        let run = ours("gybe", &words, stdin).unwrap();
        // No process lives in this namespace, so nothing shows the cgroups of a pod.
        let err = run.err.lines().filter(|line| !line.starts_with("note: eBPF programs "));
        Run { err: err.map(|line| format!("{line}\n")).collect(), ..run }
    }

    fn json(&self, words: &str, stdin: &str) -> Value {
        let run = self.gybe(&format!("{words} --json"), stdin);
        serde_json::from_str(&run.out).unwrap_or_else(|e| panic!("{words}: {e}: {run:?}"))
    }

    fn succeed(&self, words: &str, stdin: &str) -> String {
        let run = self.gybe(words, stdin);
        assert_eq!((run.code, run.err.as_str()), (Some(0), ""), "{words}");
        run.out
    }

    fn by_hand(&self, program: &str, words: &str) -> Run {
        let words: Vec<&str> = words.split(' ').collect();
        let run = self.0.run(|| run(program, &words, "")).unwrap().unwrap();
        assert_eq!(run.code, Some(0), "{program} {words:?}: {}", run.err);
        run
    }
}

fn rule_ids(inspected: &Value) -> Vec<String> {
    let chains = inspected["chains"].as_array().unwrap();
    let rules = chains.iter().flat_map(|chain| chain["rules"].as_array().unwrap());
    let mut ids: Vec<String> = rules.map(|rule| rule["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

#[test]
fn applied_rules_are_verified_inspected_and_removed() {
    let pod = Pod::new();
    assert!(pod.succeed("inspect", "").starts_with("no rules of Gybe in "));
    pod.succeed("apply --policy -", POLICY);
    assert!(pod.succeed("verify --policy -", POLICY).starts_with("exactly as "));
    pod.succeed("apply --policy -", POLICY);
    assert_eq!(pod.json("verify --policy -", POLICY)["holds"], true);

    let file = gybe_installer::pod::policy_file::PolicyFile::parse(POLICY).unwrap();
    let rules = compile(&file.policy(&[]).unwrap());
    let mut expected: Vec<String> = rules.rules().map(|(_, rule)| rule.id.0.to_owned()).collect();
    expected.sort();
    let inspected = pod.json("inspect", "");
    assert_eq!(rule_ids(&inspected), expected);
    assert_eq!(inspected["backend"], "nft");
    assert!(!inspected["sets"].as_array().unwrap().is_empty(), "{inspected}");

    pod.succeed("remove", "");
    pod.succeed("remove", "");
    assert!(pod.succeed("inspect", "").starts_with("no rules of Gybe in "));
    assert_eq!(pod.by_hand("nft", "list ruleset").out, "");
    assert!(!pod.by_hand("ip", "-6 addr show dev lo").out.contains("::6/128"));
}

#[test]
fn verify_names_missing_rules_and_those_of_another_policy() {
    let pod = Pod::new();
    let empty = pod.gybe("verify --policy -", POLICY);
    assert_eq!(empty.code, Some(1));
    assert_eq!(empty.out, "NOT REDIRECTED: no Gybe rules in this namespace\n");
    assert_eq!(pod.json("verify --policy -", POLICY)["verdict"], "not-redirected");

    pod.succeed("apply --policy -", POLICY);
    pod.by_hand("nft", "flush chain inet gybe nat-prerouting");
    let differs = pod.gybe("verify --policy -", POLICY);
    assert_eq!((differs.code, differs.err.as_str()), (Some(1), ""));
    assert!(
        differs.out.contains("\"inbound-to-proxy\"") && differs.out.contains("is missing"),
        "{}",
        differs.out
    );
    let as_json = pod.json("verify --policy -", POLICY);
    assert_eq!(as_json["holds"], false);
    assert_eq!(as_json["differences"].as_array().unwrap().len() + 1, differs.out.lines().count());

    pod.succeed("apply --policy -", POLICY);
    assert_eq!(pod.gybe("verify --policy -", r#"{"enable_ipv6": true, "proxy_port": 16001}"#).code, Some(1));
    assert_eq!(pod.gybe("verify --policy -", POLICY).code, Some(0));
    pod.by_hand("ip", "-6 addr del ::6/128 dev lo");
    let routes = pod.gybe("verify --policy -", POLICY);
    assert_eq!((routes.code, routes.out.lines().count()), (Some(1), 2), "{}", routes.out);
}

#[test]
fn counters_are_printed_and_do_not_count_as_a_difference() {
    let pod = Pod::new();
    pod.succeed("apply --policy -", r#"{"enable_ipv6": false}"#);
    // The connection is refused, because no process listens on the proxy's port, but a rule counts it.
    let refused = pod.0.run(|| std::net::TcpStream::connect("127.0.0.2:80").map(drop)).unwrap();
    assert!(refused.is_err());
    let inspected = pod.json("inspect", "");
    let counted = inspected["chains"].as_array().unwrap().iter().any(|chain| {
        chain["rules"].as_array().unwrap().iter().any(|rule| rule["packets"].as_u64() > Some(0))
    });
    assert!(counted, "{inspected}");
    assert!(pod.succeed("inspect", "").contains("packets 1 bytes 60"));
    pod.succeed("verify --policy -", r#"{"enable_ipv6": false}"#);
}

#[test]
fn for_a_pod_that_is_left_alone_nothing_is_written_and_rules_are_a_difference() {
    let pod = Pod::new();
    pod.by_hand("ip", "addr add 10.9.9.9/32 dev lo");
    let unmeshed = "{kind: Pod, metadata: {name: a}, spec: {containers: [{name: app}]}}";
    let applied = pod.gybe("apply --pod -", unmeshed);
    assert_eq!(applied.code, Some(0));
    assert!(applied.out.starts_with("Pod/a is left alone: "), "{}", applied.out);
    assert!(applied.err.starts_with("hint: Pod/a is not injected: "), "{}", applied.err);
    assert_eq!(pod.by_hand("nft", "list ruleset").out, "");
    assert_eq!(pod.gybe("verify --pod -", unmeshed).code, Some(0));
    pod.succeed("apply --policy -", POLICY);
    let differs = pod.gybe("verify --pod -", unmeshed);
    assert_eq!(differs.code, Some(1));
    assert!(differs.err.starts_with("note: Pod/a is left alone: "), "{}", differs.err);
}

#[test]
fn the_namespaces_addresses_decide_about_families() {
    let pod = Pod::new();
    for command in ["apply", "verify"] {
        let nowhere = pod.gybe(&format!("{command} --policy -"), "{}");
        assert_eq!(nowhere.code, Some(2));
        assert!(nowhere.err.contains("has no address but loopback"), "{}", nowhere.err);
    }
    pod.by_hand("ip", "addr add 10.9.9.9/32 dev lo");
    pod.succeed("apply --policy -", r#"{"enable_ipv6": true}"#);
    pod.succeed("apply --policy -", "{}");
    pod.succeed("verify --policy -", r#"{"enable_ipv6": false}"#);
    pod.succeed("apply --policy -", r#"{"dual_stack": true}"#);
    pod.succeed("verify --policy -", r#"{"enable_ipv6": false}"#);
    pod.by_hand("ip", "addr add fd00::9/128 dev lo nodad");
    let both = pod.gybe("apply --policy -", "{}");
    assert_eq!(both.err, "note: the namespace has an IPv6 address, and its IPv6 is left alone\n");
    pod.succeed("verify --policy -", r#"{"enable_ipv6": false}"#);
    pod.succeed("apply --policy -", r#"{"dual_stack": true}"#);
    pod.succeed("verify --policy -", r#"{"enable_ipv6": true}"#);
    pod.succeed("apply --policy -", r#"{"enable_ipv6": false}"#);
    assert_eq!(
        pod.gybe("trace --policy - out tcp [fd00::9]:80", "{}").err,
        "note: IPv6 is left alone here\n"
    );
    pod.succeed("trace --policy - out tcp [fd00::9]:80", r#"{"dual_stack": true}"#);
    let traced = pod.json("trace --policy - out tcp 10.9.9.9:80 --uid 1337", "{}");
    assert_eq!(traced["packet"]["interface"], "lo");
    assert_eq!(traced["port"], 15006);
}

#[test]
fn every_configured_backend_applies_verifies_and_removes() {
    for (word, name) in [
        ("nft", "nft"),
        ("iptables-nft", "iptables-nft"),
        ("iptables-legacy", "iptables-legacy"),
        ("legacy", "iptables-legacy"),
    ] {
        let pod = Pod::new();
        let applied = pod.json(&format!("apply --policy - --backend {word}"), POLICY);
        assert_eq!(applied["backend"], name, "{word}");
        pod.succeed(&format!("verify --policy - --backend {word}"), POLICY);
        let other = pod.gybe(&format!("verify --policy - --backend {word}"), r#"{"enable_ipv6": false}"#);
        assert_eq!(other.code, Some(1), "{word}");
        assert!(!pod.succeed(&format!("inspect --backend {word}"), "").starts_with("no rules"), "{word}");
        pod.succeed(&format!("remove --backend {word}"), "");
        assert!(
            pod.succeed(&format!("inspect --backend {word}"), "").starts_with("no rules of Gybe"),
            "{word}"
        );
    }
}

#[test]
fn a_path_that_is_no_network_namespace_is_named() {
    for path in ["/nonexistent", "/etc/passwd", "/proc/self/ns/mnt", "/dev/null", "/"] {
        for words in ["inspect", "remove", "apply --policy -", "verify --policy -"] {
            let words: Vec<&str> = words.split(' ').chain(["--netns", path]).collect();
            let run = ours("gybe", &words, "{}").unwrap();
            assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{words:?}");
            assert!(
                run.err.starts_with("gybe: cannot use the network namespace: ") && run.err.contains(path),
                "{}",
                run.err
            );
        }
    }
}

/// A pod that sees its node's processes. The node is a namespace of this test, so a command that is not refused
/// changes no real node: process 1 runs in it, and `gybe` runs in another namespace.
#[test]
fn the_nodes_namespace_is_refused_from_a_pod_that_sees_its_processes() {
    let node = Pod::new();
    let gybe = path_of_ours("gybe").unwrap();
    for words in ["remove", "apply --policy -", "inspect"] {
        let script = format!("unshare --net {} {words} --netns /proc/1/ns/net; exit $?", gybe.display());
        let words = ["--pid", "--fork", "--mount-proc", "--mount", "sh", "-c", &script];
        let run = node.0.run(|| run("unshare", &words, POLICY)).unwrap().unwrap();
        if script.contains("inspect") {
            assert_eq!(run.code, Some(0), "inspect only reads: {run:?}");
        } else {
            assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{run:?}");
            assert!(run.err.starts_with("gybe: /proc/1/ns/net is the network namespace of process 1"));
        }
        assert_eq!(node.by_hand("nft", "list ruleset").out, "");
    }
}

fn render_or_apply(arguments: &[&str], policy: &str) -> String {
    let run = ours("gybe", arguments, policy).unwrap();
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""), "gybe {arguments:?} with {policy}");
    run.out
}

fn nft(namespace: &Namespace, arguments: &[&str], script: &str) -> Run {
    namespace.run(|| run("nft", arguments, script)).unwrap().unwrap()
}

fn table(namespace: &Namespace) -> String {
    let listed = nft(namespace, &["list", "table", "inet", "gybe"], "");
    assert_eq!((listed.code, listed.err.as_str()), (Some(0), ""));
    listed.out
}

#[test]
fn nft_accepts_every_script_and_lists_the_rules_that_apply_writes() {
    for (name, policy) in vectors::policy_files().unwrap() {
        let script = render_or_apply(&["render", "--backend", "nft", "--policy", "-"], &policy);
        let (by_nft, by_gybe) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        for arguments in [["-c", "-f", "-"].as_slice(), &["-f", "-"], &["-c", "-f", "-"]] {
            let loaded = nft(&by_nft, arguments, &script);
            assert_eq!(
                (loaded.code, loaded.err.as_str()),
                (Some(0), ""),
                "{name}: nft {arguments:?}\n{script}"
            );
        }
        let path = by_gybe.path();
        render_or_apply(
            &["apply", "--backend", "nft", "--policy", "-", "--netns", &path.to_string_lossy()],
            &policy,
        );
        let (by_nft, by_gybe) = (table(&by_nft), table(&by_gybe));
        let lines = by_nft.lines().zip(by_gybe.lines()).enumerate();
        let differ: Vec<_> = lines.filter(|(_, (left, right))| left != right).take(5).collect();
        assert_eq!(differ, [], "{name}: first lines that differ (by nft, by gybe)");
        assert_eq!(by_nft.lines().count(), by_gybe.lines().count(), "{name}");
    }
}

#[test]
fn loading_the_script_twice_changes_nothing() {
    let namespace = Namespace::new().unwrap();
    let load = |script: &str| assert_eq!(nft(&namespace, &["-f", "-"], script).code, Some(0));
    let other =
        render_or_apply(&["render", "--policy", "-"], r#"{"redirect_dns": true, "capture_all_dns": true}"#);
    let script = render_or_apply(&["render", "--policy", "-"], "{}");
    load(&script);
    let once = table(&namespace);
    load(&other);
    assert_ne!(table(&namespace), once);
    load(&script);
    assert_eq!(table(&namespace), once);
}

#[test]
fn nft_accepts_the_comment_about_a_pod_that_is_left_alone() {
    let namespace = Namespace::new().unwrap();
    let pod = "{kind: Pod, spec: {containers: [{name: app}]}}";
    let script = ours("gybe", &["render", "--pod", "-"], pod).unwrap().out;
    assert!(script.starts_with("# "), "{script}");
    assert_eq!(nft(&namespace, &["-c", "-f", "-"], &script).code, Some(0));
}
