//! The built `gybe pod-facts`: one query line in, one response line out, and no credential in any output.

use crate::ground::Ground;
use gybe_api_server::{Network, Validity, Verb};
use gybe_plugin::facts::wire::{self, FactsResponse};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const QUESTION: &str = "{\"version\": 1, \"namespace\": \"shop\", \"name\": \"cart-0\", \"uid\": \"u0\"}\n";

#[expect(clippy::disallowed_methods, reason = "the program under test is a program")]
fn run(kubeconfig: &Path, deadline: u32, question: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gybe"));
    command.env_clear().current_dir("/").arg("pod-facts").arg("--kubeconfig").arg(kubeconfig);
    command.args(["--deadline-ms", &deadline.to_string()]);
    let before = Instant::now();
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(question.as_bytes());
    let output = child.wait_with_output().unwrap();
    assert!(before.elapsed() < Duration::from_millis(deadline.into()) + Duration::from_secs(5));
    output
}

fn answer(kubeconfig: &Path) -> FactsResponse {
    let output = run(kubeconfig, 2000, QUESTION);
    let said = [output.stdout.as_slice(), &output.stderr].concat();
    assert!(!String::from_utf8_lossy(&said).contains("eyJ"), "{output:?}");
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
    let ground = Ground::new("facts");
    let kubeconfig = ground.server.kubeconfig(&ground.directory).unwrap();
    assert_eq!(answer(&kubeconfig), FactsResponse::Unknown);
    ground.put("cart-0", "u0");
    let FactsResponse::Pod(facts) = answer(&kubeconfig) else { panic!("it is there") };
    assert_eq!((facts.uid.as_str(), facts.containers.len()), ("u0", 2));
    let requests = ground.server.requests();
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|request| request.path == "/api/v1/namespaces/shop/pods/cart-0"));
}

#[test]
fn the_servers_error_is_reported() {
    let ground = Ground::new("facts-said");
    let late = ground.server.tokens().issue(Validity::Expired);
    let kubeconfig = ground.server.kubeconfig_with(&ground.directory, &late).unwrap();
    assert!(fault(&kubeconfig).contains("responded 401"));
    let kubeconfig = ground.server.kubeconfig(&ground.directory).unwrap();
    ground.server.forbid(Verb::Get, "pods");
    assert!(fault(&kubeconfig).contains("responded 403"));
    ground.server.set_network(Network::Refusing).unwrap();
    assert!(fault(&kubeconfig).contains("Connection refused"));
    for network in [Network::Unreachable, Network::Silent] {
        ground.server.set_network(network).unwrap();
        assert!(fault(&kubeconfig).contains("did not answer within"), "{network:?}");
    }
}

#[test]
fn an_invalid_kubeconfig_is_named_and_not_quoted() {
    let ground = Ground::new("facts-none");
    let path = ground.directory.join("kubeconfig");
    assert!(fault(&path).contains("kubeconfig cannot be read: No such file"));
    let good = ground.server.kubeconfig(&ground.directory).unwrap();
    let good: Value = serde_json::from_slice(&fs::read(good).unwrap()).unwrap();
    let with = |pointer: &str, value: Value| {
        let mut config = good.clone();
        *config.pointer_mut(pointer).unwrap() = value;
        config.to_string()
    };
    for (text, told) in [
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
        assert!(why.contains(told), "{told}: {why}");
    }
}

#[test]
fn a_token_file_next_to_the_kubeconfig_is_found() {
    let ground = Ground::new("facts-file");
    ground.put("cart-0", "u0");
    let path = ground.server.kubeconfig(&ground.directory).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["users"][0]["user"] = json!({ "tokenFile": "serviceaccount/token" });
    fs::write(&path, config.to_string()).unwrap();
    assert!(matches!(answer(&path), FactsResponse::Pod(_)));
    fs::remove_file(ground.account.path().join("token")).unwrap();
    assert!(fault(&path).contains("serviceaccount/token cannot be used"));
}

#[test]
fn a10_what_is_no_question_is_refused() {
    let ground = Ground::new("facts-question");
    let kubeconfig = ground.server.kubeconfig(&ground.directory).unwrap();
    for (question, told) in [
        ("", "malformed"),
        ("{\"version\": 2}", "version 2"),
        ("{\"version\": 1, \"namespace\": \"..\", \"name\": \"x\"}", "that is invalid in Kubernetes"),
        (&"x".repeat(5000), "it is longer than allowed"),
    ] {
        let output = run(&kubeconfig, 2000, question);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{said}");
        assert!(said.contains(told), "{said}");
    }
    assert!(ground.server.requests().is_empty());
}
