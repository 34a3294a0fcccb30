//! The built `gybe pod-facts`: one query line in, one response line out, and no credential in any output.

use crate::cluster::TestCluster;
use gybe_api_server::{Network, Validity, Verb};
use gybe_plugin::facts::wire::{self, FactsResponse};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const QUERY: &str = "{\"version\": 1, \"namespace\": \"shop\", \"name\": \"cart-0\", \"uid\": \"u0\"}\n";

#[expect(clippy::disallowed_methods, reason = "the program under test is a program")]
fn run(kubeconfig: &Path, deadline: u32, query: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gybe"));
    command.env_clear().current_dir("/").arg("pod-facts").arg("--kubeconfig").arg(kubeconfig);
    command.args(["--deadline-ms", &deadline.to_string()]);
    let before = Instant::now();
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(query.as_bytes());
    let output = child.wait_with_output().unwrap();
    assert!(before.elapsed() < Duration::from_millis(deadline.into()) + Duration::from_secs(5));
    output
}

fn answer(kubeconfig: &Path) -> FactsResponse {
    let output = run(kubeconfig, 2000, QUERY);
    let everything = [output.stdout.as_slice(), &output.stderr].concat();
    assert!(!String::from_utf8_lossy(&everything).contains("eyJ"), "{output:?}");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    wire::decode_response(&output.stdout).unwrap()
}

fn fault(kubeconfig: &Path) -> String {
    match answer(kubeconfig) {
        FactsResponse::Error(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pod_is_returned_and_a_missing_one_is_unknown() {
    let cluster = TestCluster::new("facts");
    let kubeconfig = cluster.server.kubeconfig(&cluster.directory).unwrap();
    assert_eq!(answer(&kubeconfig), FactsResponse::Unknown);
    cluster.put("cart-0", "u0");
    let FactsResponse::Pod(facts) = answer(&kubeconfig) else { panic!("the pod is missing") };
    assert_eq!((facts.uid.as_str(), facts.containers.len()), ("u0", 2));
    let requests = cluster.server.requests();
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|request| request.path == "/api/v1/namespaces/shop/pods/cart-0"));
}

#[test]
fn the_servers_error_is_reported() {
    let cluster = TestCluster::new("facts-error");
    let late = cluster.server.tokens().issue(Validity::Expired);
    let kubeconfig = cluster.server.kubeconfig_with(&cluster.directory, &late).unwrap();
    assert!(fault(&kubeconfig).contains("responded 401"));
    let kubeconfig = cluster.server.kubeconfig(&cluster.directory).unwrap();
    cluster.server.forbid(Verb::Get, "pods");
    assert!(fault(&kubeconfig).contains("responded 403"));
    cluster.server.set_network(Network::Refusing).unwrap();
    assert!(fault(&kubeconfig).contains("Connection refused"));
    for network in [Network::Unreachable, Network::Silent] {
        cluster.server.set_network(network).unwrap();
        assert!(fault(&kubeconfig).contains("did not answer within"), "{network:?}");
    }
}

#[test]
fn an_invalid_kubeconfig_is_named_and_not_quoted() {
    let cluster = TestCluster::new("facts-none");
    let path = cluster.directory.join("kubeconfig");
    assert!(fault(&path).contains("kubeconfig cannot be read: No such file"));
    let good = cluster.server.kubeconfig(&cluster.directory).unwrap();
    let good: Value = serde_json::from_slice(&fs::read(good).unwrap()).unwrap();
    let with = |pointer: &str, value: Value| {
        let mut config = good.clone();
        *config.pointer_mut(pointer).unwrap() = value;
        config.to_string()
    };
    for (text, reason) in [
        ("{ eyJ: [ eyJ".to_owned(), "is not a kubeconfig in YAML"),
        ("[]".to_owned(), "is not a kubeconfig in YAML"),
        ("kind: Config".to_owned(), "has no current-context"),
        (with("/current-context", "other".into()), "has no context \"other\""),
        (with("/contexts/0/context/cluster", "other".into()), "has no cluster \"other\""),
        (with("/clusters/0/cluster/server", Value::Null), "has no server"),
        (
            with("/clusters/0/cluster/certificate-authority-data", "%".into()),
            "has no usable certificate-authority",
        ),
        (
            with("/clusters/0/cluster", json!({ "server": "https://x", "proxy-url": "http://y" })),
            "names a proxy",
        ),
    ] {
        fs::write(&path, &text).unwrap();
        let why = fault(&path);
        assert!(why.contains(reason), "{reason}: {why}");
    }
}

#[test]
fn a_token_file_next_to_the_kubeconfig_is_found() {
    let cluster = TestCluster::new("facts-file");
    cluster.put("cart-0", "u0");
    let path = cluster.server.kubeconfig(&cluster.directory).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["users"][0]["user"] = json!({ "tokenFile": "serviceaccount/token" });
    fs::write(&path, config.to_string()).unwrap();
    assert!(matches!(answer(&path), FactsResponse::Pod(_)));
    fs::remove_file(cluster.account.path().join("token")).unwrap();
    assert!(fault(&path).contains("serviceaccount/token cannot be used"));
}

#[test]
fn a10_an_invalid_query_is_refused() {
    let cluster = TestCluster::new("facts-query");
    let kubeconfig = cluster.server.kubeconfig(&cluster.directory).unwrap();
    for (query, reason) in [
        ("", "incomplete"),
        ("{\"version\": 2}", "version 2"),
        ("{\"version\": 1, \"namespace\": \"..\", \"name\": \"x\"}", "that is invalid in Kubernetes"),
        (&"x".repeat(5000), "it is longer than allowed"),
    ] {
        let output = run(&kubeconfig, 2000, query);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{error}");
        assert!(error.contains(reason), "{error}");
    }
    assert!(cluster.server.requests().is_empty());
}
