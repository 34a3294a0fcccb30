//! Invalid input is refused with its name and cause before anything is changed, and DEL accepts it; standard
//! streams of a call that are full, broken, closed, or never closed.

use crate::{
    Outcome, Pods, exit_with_stderr, exit_with_stdout, meshed, run, run_with_closed, run_with_open_stdin,
    run_with_own_run_directory, run_with_stdin,
};
use serde_json::{Value, json};
use std::fs;
use std::io::{self, Write};
use std::sync::mpsc;
use std::time::Duration;

const PORTS: &str = "traffic.sidecar.istio.io/excludeInboundPorts";

/// Calls the plugin for the pod shop/cart-0 in the namespace at `netns`.
fn call(verb: &str, netns: &str, entry: &Value) -> Outcome {
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0";
    let env = [
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", netns),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
        ("CNI_ARGS", args),
    ];
    run(env, &entry.to_string())
}

fn entry(pods: &Pods) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "net", "type": "gybe-cni", "facts": pods.facts(),
        "prevResult": { "cniVersion": "1.0.0", "ips": [{ "address": "10.0.0.5/24" }] },
    })
}

/// Asserts a refusal: exit status 1, one JSON document, this code and id, and each of these words.
fn assert_refused(outcome: &Outcome, code: u64, id: &str, words: &[&str]) {
    assert_eq!((outcome.exit, outcome.code()), (Some(1), Some(code)), "{outcome:?}");
    let message = outcome.message();
    let begin = format!("gybe-cni cmdAdd {id}: ");
    assert!(message.starts_with(&begin) && message.chars().count() <= 302, "{message}");
    assert!(words.iter().all(|word| message.contains(word)), "{words:?} in {message}");
    let line = outcome.stderr.lines().last().unwrap_or_default();
    let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {outcome:?}"));
    assert_eq!((line["level"].as_str(), line["id"].as_str()), (Some("error"), Some(id)), "{line}");
}

#[test]
fn an_invalid_annotation_is_refused_with_the_invalid_item() {
    let pods = Pods::new("annotation");
    for (annotation, value, words) in [
        (PORTS, "70000", ["excludeInboundPorts", "\"70000\""]),
        (PORTS, "80\n,81", ["excludeInboundPorts", r#""80\n""#]),
        (PORTS, "*", ["excludeInboundPorts", "not allowed"]),
        (
            "traffic.sidecar.istio.io/excludeInterfaces",
            "eth0 -j ACCEPT",
            ["excludeInterfaces", "\"eth0 -j ACCEPT\""],
        ),
        (
            "traffic.sidecar.istio.io/includeOutboundIPRanges",
            "10.0.0.0",
            ["includeOutboundIPRanges", "prefix length"],
        ),
        ("sidecar.istio.io/interceptionMode", "SIDEWAYS", ["interceptionMode", "TPROXY"]),
    ] {
        pods.add("shop", "cart-0", &meshed(&[(annotation, value)]));
        assert_refused(&call("ADD", "/nonexistent", &entry(&pods)), 999, "GYBE-ADD-011", &words);
    }
}

#[test]
fn a03_f34_an_annotation_of_a_quarter_megabyte_is_refused_in_a_short_message() {
    let pods = Pods::new("huge");
    let scattered: Vec<_> = (0..32768).map(|i| (i * 2).to_string()).collect();
    for value in [scattered.join(","), ",".repeat(262_144), "\u{1b}".repeat(60_000)] {
        pods.add("shop", "cart-0", &meshed(&[(PORTS, &value)]));
        let outcome = call("ADD", "/nonexistent", &entry(&pods));
        assert_refused(&outcome, 999, "GYBE-ADD-011", &["excludeInboundPorts"]);
        assert!(outcome.stderr.len() < 2000, "{}", outcome.stderr.len());
    }
}

#[test]
fn f17_a_path_that_is_not_a_network_namespace_is_refused() {
    let pods = Pods::new("netns");
    pods.add("shop", "cart-0", &meshed(&[]));
    let fifo = pods.0.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let dangling = pods.0.join("dangling");
    std::os::unix::fs::symlink("/nonexistent", &dangling).unwrap();
    for path in [
        "/nonexistent",
        "/etc/passwd",
        "/etc",
        "/",
        "/dev/null",
        "/dev/zero",
        "/proc/self/ns/mnt",
        "/proc/self/ns/user",
        "/proc/self/ns",
        "relative",
        "/etc/passwd/net",
        fifo.to_str().unwrap(),
        dangling.to_str().unwrap(),
    ] {
        assert_refused(&call("ADD", path, &entry(&pods)), 8, "GYBE-ADD-020", &[path]);
        assert_eq!(call("DEL", path, &entry(&pods)).exit, Some(0), "DEL {path}");
    }
}

#[test]
fn f17_the_hosts_own_namespace_is_refused_for_every_pod_whatever_its_path() {
    // If the check failed, root would write into the namespace of this thread, and not into the machine's.
    if let Ok(netns) = gybe_netfilter::kernel::netns::Netns::create() {
        netns.enter().unwrap();
    }
    let pods = Pods::new("own");
    let link = pods.0.join("link");
    std::os::unix::fs::symlink("/proc/self/ns/net", &link).unwrap();
    for manifest in [meshed(&[]), json!({ "spec": { "containers": [] } })] {
        pods.add("shop", "cart-0", &manifest);
        for path in ["/proc/self/ns/net", "/proc/thread-self/ns/net", link.to_str().unwrap()] {
            assert_refused(&call("ADD", path, &entry(&pods)), 8, "GYBE-ADD-021", &["own namespace"]);
            assert_eq!(call("DEL", path, &entry(&pods)).exit, Some(0), "DEL {path}");
        }
    }
}

#[test]
fn an_unknown_pod_is_refused_with_code_11() {
    let pods = Pods::new("unknown");
    assert_refused(&call("ADD", "/nonexistent", &entry(&pods)), 11, "GYBE-ADD-017", &["shop/cart-0.json"]);
    let mut no_source = entry(&pods);
    no_source["facts"] = json!({ "socket": "" });
    assert_refused(&call("ADD", "/nonexistent", &no_source), 7, "GYBE-ADD-016", &["facts.directory"]);
}

#[test]
fn a10_a_fifo_in_place_of_a_manifest_is_an_error_without_waiting() {
    let pods = Pods::new("fifo");
    fs::create_dir_all(pods.0.join("shop")).unwrap();
    nix::unistd::mkfifo(&pods.0.join("shop/cart-0.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_refused(&call("ADD", "/nonexistent", &entry(&pods)), 11, "GYBE-ADD-019", &["not a regular file"]);
}

#[test]
fn a_wrong_value_in_the_configuration_is_refused_with_key_and_value() {
    let pods = Pods::new("conf");
    pods.add("shop", "cart-0", &meshed(&[]));
    for (key, value) in
        [("backend", json!("nftt")), ("ipv6", json!(6)), ("exclude_namespaces", json!("shop"))]
    {
        let mut entry = entry(&pods);
        entry[key] = value.clone();
        assert_refused(&call("ADD", "/nonexistent", &entry), 7, "GYBE-ADD-009", &[key, &value.to_string()]);
        assert_eq!(call("DEL", "/nonexistent", &entry).exit, Some(0), "DEL {key}");
    }
}

#[test]
fn pods_outside_the_mesh_pass_with_their_result_unchanged() {
    let pods = Pods::new("pass");
    for (change, reason) in [
        (json!({ "exclude_namespaces": ["shop"], "facts": { "socket": "" } }), "its namespace is excluded"),
        (json!({ "whatever": 1 }), "no container istio-proxy"),
        (json!({ "backend": "iptables" }), "no container istio-proxy"),
    ] {
        pods.add("shop", "cart-0", &json!({ "spec": { "containers": [{ "name": "app" }] } }));
        let mut entry = entry(&pods);
        entry.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        entry["prevResult"]["io.example/unknown"] = json!({ "kept": [1, null] });
        let outcome = call("ADD", "/nonexistent", &entry);
        assert_eq!(
            (outcome.exit, outcome.json().as_ref()),
            (Some(0), Some(&entry["prevResult"])),
            "{change}"
        );
        let line: Value = serde_json::from_str(outcome.stderr.lines().last().unwrap()).unwrap();
        assert_eq!(
            (line["pod"].as_str(), line["msg"].as_str()),
            (Some("shop/cart-0"), Some("gybe-cni cmdAdd"))
        );
        assert!(line["reason"].as_str().unwrap().contains(reason), "{line}");
        assert_eq!(call("CHECK", "/nonexistent", &entry).exit, Some(0), "CHECK {change}");
    }
}

#[test]
fn f20_f31_del_succeeds_with_missing_or_wrong_keys_and_arguments() {
    for entry in [
        json!({ "name": "net" }),
        json!({ "cniVersion": "1.0.0", "name": "net", "backend": 5, "facts": "x", "log_level": [] }),
        json!({ "cniVersion": "1.0.0", "name": "net", "prevResult": "x" }),
        json!({ "cniVersion": "1.0.0", "name": "net", "prevResult": { "cniVersion": "0.2.0" } }),
    ] {
        for (netns, args) in [("", ""), ("/nonexistent", "garbage"), ("/etc", "K8S_POD_NAME=../..")] {
            let env = [
                ("CNI_COMMAND", "DEL"),
                ("CNI_CONTAINERID", "c1"),
                ("CNI_NETNS", netns),
                ("CNI_IFNAME", "eth0"),
                ("CNI_PATH", "/opt/cni/bin"),
                ("CNI_ARGS", args),
            ];
            let outcome = run(env, &entry.to_string());
            assert_eq!(
                (outcome.exit, outcome.stdout.as_str()),
                (Some(0), ""),
                "{entry} {netns} {args}: {outcome:?}"
            );
        }
    }
}

#[test]
fn f28_status_judges_the_node_and_never_the_agent() {
    let status = |change: Value| {
        let mut entry = json!({ "cniVersion": "1.1.0", "name": "net", "type": "gybe-cni", "backend": "nft" });
        entry.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        run_with_own_run_directory(
            [("CNI_COMMAND", "STATUS"), ("CNI_PATH", "/opt/cni/bin")],
            &entry.to_string(),
        )
    };
    for away in [
        json!({}),
        json!({ "facts": { "socket": "/nonexistent/facts.sock", "directory": "/nonexistent" } }),
        json!({ "kubernetes": { "kubeconfig": "/nonexistent" } }),
    ] {
        let outcome = status(away.clone());
        assert_eq!((outcome.exit, outcome.stdout.as_str()), (Some(0), ""), "{away}: {outcome:?}");
    }
    for wrong in [json!({ "backend": "nftt" }), json!({ "facts": { "kubeconfig": "__X__" } })] {
        let outcome = status(wrong.clone());
        assert_eq!((outcome.exit, outcome.code()), (Some(1), Some(50)), "{wrong}: {outcome:?}");
        assert!(outcome.message().starts_with("gybe-cni cmdStatus GYBE-STATUS-009: "), "{outcome:?}");
    }
}

#[test]
fn f35_a_full_pipe_on_stderr_does_not_block_a_call() {
    let (_reader, mut writer) = io::pipe().unwrap();
    // A pipe holds 64 KiB (pipe(7)), so it is full now.
    writer.write_all(&[b'x'; 65536]).unwrap();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(exit_with_stderr(writer, [("CNI_COMMAND", "FOO")])));
    assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(Some(1)));
}

#[test]
fn f35_a_broken_pipe_on_stderr_does_not_change_the_exit_status() {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    assert_eq!(exit_with_stderr(writer, [("CNI_COMMAND", "FOO")]), Some(1));
}

#[test]
fn a10_stdin_that_never_ends_is_an_error_in_time() {
    let env = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/nonexistent"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
    ];
    let before = std::time::Instant::now();
    let outcome = run_with_open_stdin(env, r#"{"cniVersion": "1.0.0", "name": "net""#);
    assert!(before.elapsed() < Duration::from_secs(20), "{:?}", before.elapsed());
    assert_eq!((outcome.exit, outcome.code()), (Some(1), Some(5)), "{outcome:?}");
    assert!(outcome.message().contains("GYBE-ADD-003: stdin did not end within"), "{outcome:?}");
    let endless = fs::File::open("/dev/zero").unwrap();
    let outcome = run_with_stdin(env, endless);
    assert!(outcome.message().contains("GYBE-ADD-003: stdin holds more than"), "{outcome:?}");
}

#[test]
fn f34_a_result_that_goes_to_a_broken_pipe_is_a_failure() {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let closed = fs::File::from(std::os::fd::OwnedFd::from(writer));
    assert_eq!(exit_with_stdout(closed, [("CNI_COMMAND", "VERSION")]), Some(1));
}

#[test]
fn f34_a_result_that_cannot_be_written_is_a_failure() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    assert_eq!(exit_with_stdout(full, [("CNI_COMMAND", "VERSION")]), Some(1));
}

/// If a standard descriptor is closed, the next file that the plugin opens would get its number.
#[test]
fn f34_a_closed_standard_descriptor_is_not_reused_for_another_file() {
    let status = [("CNI_COMMAND", "STATUS"), ("CNI_PATH", "/opt/cni/bin")];
    let outcome = run_with_closed("<&-", status);
    assert_eq!((outcome.exit, outcome.code()), (Some(1), Some(6)), "empty stdin: {outcome:?}");
    for closing in [">&-", "2>&-", "<&- >&- 2>&-"] {
        assert_eq!(run_with_closed(closing, [("CNI_COMMAND", "VERSION")]).exit, Some(0), "{closing}");
    }
}
