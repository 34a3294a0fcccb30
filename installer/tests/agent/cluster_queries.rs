//! An API server behind the facts socket of the built `gybe node`, and behind `gybe pod-facts`: one query line in, one
//! response line out, and no credential in any output.

use crate::{NODE, TestCluster, injected_pod};
use gybe_api_server::{Fault, FaultKind, Network, Validity, Verb};
use gybe_plugin::facts::wire::{self, FactsResponse};
use gybe_test_support::{assert_takes_less_than, facts, wait_until};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// A running agent; dropping it kills the agent.
pub(crate) struct ClusterAgent {
    socket: PathBuf,
    process: gybe_test_support::Agent,
}

/// Returns the program to run; `GYBE_PROGRAM` names another build of it.
#[expect(clippy::disallowed_methods, reason = "the program under test is a program")]
fn gybe_node(cluster: &TestCluster) -> Command {
    let program = std::env::var_os("GYBE_PROGRAM").unwrap_or_else(|| env!("CARGO_BIN_EXE_gybe").into());
    let mut command = Command::new(program);
    command
        .env_clear()
        .args(["node", "--install=false"])
        .arg("--socket")
        .arg(cluster.directory.join("run/facts.sock"));
    command
}

impl ClusterAgent {
    /// Starts one with a kubeconfig, and waits until it serves.
    pub(crate) fn start(cluster: &TestCluster) -> Self {
        let kubeconfig = cluster.server.kubeconfig(&cluster.directory).unwrap();
        let mut command = gybe_node(cluster);
        command.arg("--kubeconfig").arg(kubeconfig).env("KUBERNETES_NODE_NAME", NODE);
        let process = gybe_test_support::Agent::start_serving(command);
        Self { socket: cluster.directory.join("run/facts.sock"), process }
    }

    /// Queries a pod, with more time than an answer takes on a busy machine.
    pub(crate) fn query(&self, name: &str, uid: &str) -> Value {
        let mut question = facts::request("shop", name, uid);
        question["deadline_ms"] = 5000.into();
        facts::query(&self.socket, &question)
    }

    fn query_before(&self, name: &str, deadline_ms: &Value) -> Value {
        let question = json!({ "version": 1, "namespace": "shop", "name": name, "deadline_ms": deadline_ms });
        facts::query(&self.socket, &question)
    }

    /// The process's anonymous memory, in KiB.
    pub(crate) fn anonymous_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }
}

#[test]
fn the_agent_answers_from_its_cluster_logs_its_problems_and_ends_cleanly() {
    let cluster = TestCluster::new("agent");
    cluster.put("cart-0", "u0");
    let mut agent = ClusterAgent::start(&cluster);
    assert_eq!(agent.process.next_message("gybe node: pods are known")["pods"], 1);
    assert_eq!(agent.query("cart-0", "u0")["pod"]["metadata"]["uid"], "u0");
    assert_eq!(agent.query("cart-1", "u1"), json!({ "version": 1 }));
    cluster.server.tokens().revoke_all();
    cluster.server.cut_watches();
    let line =
        agent.process.next_message("gybe node: pods are not watched; queries about cached pods are served");
    assert!(line["cause"].as_str().unwrap().contains("401") && line["pods"] == 1, "{line}");
    assert_eq!(agent.query("cart-0", "u0")["pod"]["metadata"]["uid"], "u0");
    let fault = agent.query("cart-1", "u1")["fault"].to_string();
    assert!(fault.contains("401"), "{fault}");
    cluster.server.tokens().restore_all();
    agent.process.next_message("gybe node: pods are watched again");
    assert!(agent.process.terminate().success());
    agent.process.next_message("gybe node: stopped");
    assert_eq!(fs::read_dir(cluster.directory.join("run")).unwrap().count(), 0);
}

#[test]
fn f01_a_query_waits_until_its_own_deadline_within_bounds() {
    let cluster = TestCluster::new("agent-deadline");
    let agent = ClusterAgent::start(&cluster);
    agent.process.next_message("gybe node: pods are known");
    cluster.server.add_fault(Fault::always(FaultKind::Silent).at(Verb::Get));
    // The last tenth is the response's.
    for (deadline, least, most) in [
        (json!(400), 300, 900),
        (Value::Null, 850, 1900),
        (json!(2000), 1750, 4000),
        (json!(3_600_000), 4400, 8000),
    ] {
        let name = format!("cart-{deadline}");
        assert_takes_less_than(Duration::from_millis(most), || {
            let before = Instant::now();
            let answer = agent.query_before(&name, &deadline);
            let fault = answer["fault"].as_str().unwrap();
            assert!(fault.contains("did not answer in time"), "{deadline}: {answer}");
            assert!(before.elapsed() >= Duration::from_millis(least), "{deadline}: {:?}", before.elapsed());
        });
    }
}

/// The agent answers queries about cached pods while queries about others wait; the number of waiting ones is bounded.
#[test]
fn f01_many_queries_for_unknown_pods_delay_no_query_for_a_known_pod() {
    let cluster = TestCluster::new("agent-crowd");
    cluster.put("cart-0", "u0");
    let agent = ClusterAgent::start(&cluster);
    agent.process.next_message("gybe node: pods are known");
    cluster.server.add_fault(Fault::always(FaultKind::Silent).at(Verb::Get));
    let agent = &agent;
    let query_unknown_pod = &|i: usize| {
        let name = format!("new-{i}");
        agent.query_before(&name, &json!(5000))
    };
    let answers: Vec<Value> = thread::scope(|scope| {
        let waiting: Vec<_> = (0..400).map(|i| scope.spawn(move || query_unknown_pod(i))).collect();
        cluster.wait_for_requests(|requests| {
            requests.iter().filter(|request| request.path.contains("/new-")).count() >= 8
        });
        assert_takes_less_than(Duration::from_secs(1), || {
            assert_eq!(agent.query("cart-0", "u0")["pod"]["metadata"]["uid"], "u0");
        });
        waiting.into_iter().map(|answer| answer.join().unwrap()).collect()
    });
    let count = |words| answers.iter().filter(|answer| answer.to_string().contains(words)).count();
    let (late, too_many) = (count("did not answer in time"), count("too many requests wait"));
    assert!(late + too_many == 400 && too_many > 0, "{late} {too_many}");
    assert!(agent.anonymous_memory() <= 12 << 10, "{} KiB", agent.anonymous_memory());
}

#[test]
fn an_unreadable_kubeconfig_is_reported() {
    let cluster = TestCluster::new("agent-kubeconfig");
    let output = gybe_node(&cluster).args(["--kubeconfig", "/nonexistent/kubeconfig"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("/nonexistent/kubeconfig cannot be read"), "{error}");
}

/// Returns an injected pod of the usual size, about 15 KiB, of which the agent needs little.
fn large_pod(i: usize, life: usize) -> Value {
    let mut pod = injected_pod(&format!("cart-{i}"), &format!("u{i}-{life}"));
    let filler = |n: usize| json!({ "manager": "kubelet", "fieldsV1": { "f:status": "x".repeat(n) } });
    pod["metadata"]["managedFields"] = json!([filler(2000), filler(2000), filler(4000)]);
    pod["metadata"]["annotations"]["sidecar.istio.io/status"] = json!("y".repeat(500)).to_string().into();
    let variable = |n: usize| json!({ "name": format!("VARIABLE_{n}"), "value": "z".repeat(60) });
    pod["spec"]["containers"][0]["env"] = (0..30).map(variable).collect();
    pod["spec"]["containers"][1]["env"] = (0..25).map(variable).collect();
    pod["status"]["containerStatuses"] = json!("s".repeat(2000));
    pod
}

#[test]
fn f38_with_250_pods_in_a_cluster_of_100_000_the_agent_has_at_most_12_mib() {
    let cluster = TestCluster::new("agent-memory");
    cluster.server.set_generated_pods(100_000);
    let fill = |life| (0..250).map(|i| cluster.server.put_pod(large_pod(i, life))).max();
    fill(0);
    let agent = ClusterAgent::start(&cluster);
    assert_eq!(agent.process.next_message("gybe node: pods are known")["pods"], 250);
    let (agent, mut memory) = (&agent, Vec::new());
    for life in 0..4 {
        thread::scope(|scope| {
            for i in 0..110 {
                scope.spawn(move || {
                    let uid = format!("u{i}-{life}");
                    assert_eq!(agent.query(&format!("cart-{i}"), &uid)["pod"]["metadata"]["uid"], *uid);
                });
            }
        });
        memory.push(agent.anonymous_memory());
        fill(life + 1);
        cluster.server.compact();
        cluster.server.expire_watches();
        cluster.wait_for_requests(|requests| {
            requests.iter().filter(|request| request.is_list_of_pods()).count() > life + 1
        });
        // Waits until the last pod is answered from the cache: events arrive in order, and a list replaces the previous
        // one as a whole.
        let last = format!("u249-{}", life + 1);
        wait_until("the last pod in the cache", || {
            let gets = cluster.get_count("cart-249");
            let is_known = agent.query("cart-249", &last)["pod"]["metadata"]["uid"] == *last;
            is_known && gets == cluster.get_count("cart-249")
        });
    }
    println!("KiB of anonymous memory: {memory:?}");
    assert!(memory.iter().all(|kib| *kib <= 12 << 10), "{memory:?}");
}

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
    // As in client-go, the file's token is used, not the kubeconfig's own.
    config["users"][0]["user"] = json!({ "token": "expired", "tokenFile": "serviceaccount/token" });
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
