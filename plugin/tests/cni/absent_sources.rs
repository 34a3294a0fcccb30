//! Sources of facts about a pod that do not answer: the agent's socket is away, with the wait for it and the calls
//! that do not wait; a kubeconfig, and the program `gybe` that queries the API server by it, missing, failing,
//! silent or endless, within the deadline.

use crate::{GYBE_CNI, Outcome, Pods, Running, STATUS, call, entry, environment, meshed, run_at};
use gybe_test_support::{install, wait_until};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// No test waits so long: an ADD that ends has been woken, or has not waited.
const NO_END: u64 = 60_000;

const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_UID=u1";

/// The configuration for a pod that the runtime's annotations show to be injected.
fn entry_with(pods: &Pods, socket: &Path, deadline_ms: u64) -> Value {
    let mut entry = entry(pods, Some(json!({ STATUS: "{}" })));
    entry["facts"] = json!({ "socket": socket, "deadline_ms": deadline_ms });
    entry
}

/// Starts the ADD of a meshed pod, and waits until it waits for the socket.
fn waiting_add(entry: &Value) -> Running {
    let add = Running::start(environment("ADD", ARGS), &entry.to_string());
    wait_until("the plugin watches a directory", || add.watches_a_directory());
    add
}

/// Asserts that the ADD got its facts. The next step fails: the namespace does not exist.
fn assert_got_facts(outcome: &Outcome) {
    assert!(outcome.message().contains("GYBE-ADD-020"), "{outcome:?}");
}

/// Puts a listening socket at the path by rename(2), as the agent does.
fn put(path: &Path) -> UnixListener {
    let temporary = path.with_extension("new");
    let listener = UnixListener::bind(&temporary).unwrap();
    fs::rename(temporary, path).unwrap();
    listener
}

fn request(connection: &UnixStream) {
    let mut line = String::new();
    BufReader::new(connection).read_line(&mut line).unwrap();
    assert!(line.contains("cart-0"), "{line}");
}

/// Answers this many requests with the facts of a meshed pod.
fn answer(listener: &UnixListener, requests: usize) {
    for _ in 0..requests {
        let (mut connection, _) = listener.accept().unwrap();
        request(&connection);
        writeln!(connection, "{}", json!({ "version": 1, "pod": meshed(&[]) })).unwrap();
    }
}

fn socket_of(pods: &Pods) -> PathBuf {
    pods.0.join("facts.sock")
}

#[test]
fn f14_an_add_waits_for_a_socket_that_appears_late() {
    let pods = Pods::new("absent-late");
    let add = waiting_add(&entry_with(&pods, &socket_of(&pods), NO_END));
    answer(&put(&socket_of(&pods)), 1);
    assert_got_facts(&add.end());
}

#[test]
fn f14_an_add_waits_until_a_dead_sockets_file_is_replaced() {
    let pods = Pods::new("absent-dead");
    drop(UnixListener::bind(socket_of(&pods)).unwrap());
    let add = waiting_add(&entry_with(&pods, &socket_of(&pods), NO_END));
    answer(&put(&socket_of(&pods)), 1);
    assert_got_facts(&add.end());
}

/// inotify reports no listen(2).
#[test]
fn f14_an_add_waits_until_a_sockets_file_is_served_again() {
    let pods = Pods::new("absent-served");
    let bound: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(bound.as_raw_fd(), &UnixAddr::new(&socket_of(&pods)).unwrap()).unwrap();
    let add = waiting_add(&entry_with(&pods, &socket_of(&pods), NO_END));
    listen(&bound, Backlog::new(8).unwrap()).unwrap();
    answer(&UnixListener::from(bound), 1);
    assert_got_facts(&add.end());
}

#[test]
fn f14_an_add_waits_for_the_directories_of_the_socket() {
    let pods = Pods::new("absent-directory");
    let socket = pods.0.join("run/gybe/facts.sock");
    let add = waiting_add(&entry_with(&pods, &socket, NO_END));
    fs::create_dir_all(socket.parent().unwrap()).unwrap();
    answer(&put(&socket), 1);
    assert_got_facts(&add.end());
}

#[test]
fn f14_an_add_waits_when_the_directory_is_replaced() {
    let pods = Pods::new("absent-replaced");
    let socket = pods.0.create_dir("run").join("facts.sock");
    let add = waiting_add(&entry_with(&pods, &socket, NO_END));
    fs::rename(pods.0.join("run"), pods.0.join("old")).unwrap();
    fs::create_dir(pods.0.join("run")).unwrap();
    answer(&put(&socket), 1);
    assert_got_facts(&add.end());
}

/// Killed before it answers, in the middle of its answer, or before it has read the request (a reset connection).
#[test]
fn f14_an_add_queries_the_next_agent_when_one_is_killed_during_the_exchange() {
    let half: &[u8] = br#"{"version": 1, "pod": {"metadata": {"uid": "u1""#;
    for (name, is_read, sent) in [("before", true, &b""[..]), ("half", true, half), ("unread", false, b"")] {
        let pods = Pods::new(&format!("absent-killed-{name}"));
        let first = put(&socket_of(&pods));
        let entry = entry_with(&pods, &socket_of(&pods), NO_END);
        let add = Running::start(environment("ADD", ARGS), &entry.to_string());
        let (mut connection, _) = first.accept().unwrap();
        if is_read {
            request(&connection);
        }
        connection.write_all(sent).unwrap();
        drop((connection, first));
        wait_until("the plugin watches the directory", || add.watches_a_directory());
        answer(&put(&socket_of(&pods)), 1);
        assert_got_facts(&add.end());
    }
}

#[test]
fn an_agent_that_closes_every_connection_is_queried_at_intervals_until_the_deadline() {
    let pods = Pods::new("absent-closes");
    let listener = put(&socket_of(&pods));
    let connections = Arc::new(AtomicUsize::new(0));
    thread::spawn({
        let connections = Arc::clone(&connections);
        move || {
            for connection in listener.incoming() {
                request(&connection.unwrap());
                connections.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let refused = || {
        connections.store(0, Ordering::Relaxed);
        let outcome = call("ADD", "shop/cart-0", &entry_with(&pods, &socket_of(&pods), 450));
        assert_eq!(outcome.code(), Some(11), "{outcome:?}");
        let message = outcome.message();
        assert!(message.contains("ADD-032"), "{message}");
        // The first one, one as the wait begins, and one for each 100 ms.
        let connections = connections.load(Ordering::Relaxed);
        assert!((3..=6).contains(&connections), "{connections}");
        message
    };
    // When the deadline passes during a query, the plugin reports that query.
    let messages = (0..10).map(|_| refused());
    let message = messages.into_iter().find(|message| !message.contains("did not answer in time"));
    assert!(message.as_ref().is_some_and(|it| it.contains("without a complete answer")), "{message:?}");
}

#[test]
fn f14_without_an_agent_an_add_is_refused_with_code_11_when_its_deadline_has_passed() {
    let pods = Pods::new("absent-never");
    let before = Instant::now();
    let outcome = call("ADD", "shop/cart-0", &entry_with(&pods, &socket_of(&pods), 300));
    let (took, message) = (before.elapsed(), outcome.message());
    assert!(took >= Duration::from_millis(300), "{took:?}");
    assert_eq!((outcome.exit, outcome.code()), (Some(1), Some(11)), "{outcome:?}");
    for words in [
        "GYBE-ADD-032: the node agent at",
        "No such file",
        "the plugin waited for it until facts.deadline_ms",
        "DaemonSet gybe-node",
    ] {
        assert!(message.contains(words), "{words}: {message}");
    }
}

/// A kubelet starts many pods at once, and all of them wait for one agent. The listener accepts no connection
/// before all have been woken.
#[test]
fn f14_fifty_adds_that_wait_are_woken_together_and_all_get_facts() {
    const ADDS: usize = 50;
    let pods = Pods::new("absent-many");
    let entry = entry_with(&pods, &socket_of(&pods), NO_END).to_string();
    let adds: Vec<_> = (0..ADDS).map(|_| Running::start(environment("ADD", ARGS), &entry)).collect();
    for add in &adds {
        wait_until("the plugin watches the directory", || add.watches_a_directory());
    }
    answer(&put(&socket_of(&pods)), ADDS);
    adds.into_iter().for_each(|add| assert_got_facts(&add.end()));
}

/// `call` fails the test when the plugin waits for long.
#[test]
fn calls_that_need_no_agent_and_a_check_do_not_wait_for_one() {
    let pods = Pods::new("absent-no-wait");
    let mut entry = entry_with(&pods, &socket_of(&pods), NO_END);
    let check = call("CHECK", "shop/cart-0", &entry);
    assert!(check.message().contains("GYBE-CHECK-032"), "{check:?}");
    for verb in ["DEL", "STATUS", "GC"] {
        let version = if verb == "DEL" { "1.0.0" } else { "1.1.0" };
        entry["cniVersion"] = version.into();
        let outcome = call(verb, "shop/cart-0", &entry);
        assert!(!outcome.message().contains("agent"), "{verb}: {outcome:?}");
    }
    entry["cniVersion"] = "1.0.0".into();
    for annotations in [json!({}), json!({ STATUS: "{}", "sidecar.istio.io/interceptionMode": "NONE" })] {
        entry["runtimeConfig"] = json!({ "io.kubernetes.cri.pod-annotations": annotations });
        assert_eq!(call("ADD", "shop/cart-0", &entry).exit, Some(0), "{annotations}");
    }
}

#[test]
fn an_add_does_not_wait_for_the_agent_when_another_source_knows_the_pod() {
    let pods = Pods::new("absent-other");
    let mut entry = entry_with(&pods, &socket_of(&pods), NO_END);
    entry["facts"]["directory"] = json!(pods.0.path());
    pods.add("shop", "cart-0", &meshed(&[]));
    assert_got_facts(&call("ADD", "shop/cart-0", &entry));
    fs::remove_file(pods.0.join("shop/cart-0.json")).unwrap();
    let add = waiting_add(&entry);
    answer(&put(&socket_of(&pods)), 1);
    assert_got_facts(&add.end());
}

/// A directory with the plugin and a kubeconfig, and with a script as `gybe`.
struct PluginDirectory(Pods);

impl PluginDirectory {
    fn new(test: &str) -> Self {
        let pods = Pods::new(&format!("kc-{test}"));
        install(GYBE_CNI.as_ref(), &pods.0.join("gybe-cni"));
        fs::write(pods.0.join("kubeconfig"), "kind: Config").unwrap();
        Self(pods)
    }

    fn kubeconfig(&self) -> PathBuf {
        self.0.0.join("kubeconfig")
    }

    /// Installs a shell script as `gybe`.
    fn gybe(self, script: &str) -> Self {
        let written = self.0.0.join("written");
        fs::write(&written, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&written, fs::Permissions::from_mode(0o755)).unwrap();
        install(&written, &self.0.0.join("gybe"));
        self
    }

    fn call(&self, verb: &str, namespace: &str, entry: &Value) -> Outcome {
        let args =
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME=cart-0;K8S_POD_UID=u1");
        let env = environment(verb, &args).into_iter().chain([("SECRET", "of the runtime")]);
        let before = Instant::now();
        let outcome = run_at(&self.0.0.join("gybe-cni"), env, &entry.to_string());
        assert!(before.elapsed() < Duration::from_secs(20), "{:?}: {outcome:?}", before.elapsed());
        outcome
    }

    fn entry(&self) -> Value {
        json!({
            "cniVersion": "1.0.0", "name": "net", "type": "gybe-cni", "pod_namespace": "gybe-system",
            "facts": { "socket": "", "deadline_ms": 1500 },
            "kubernetes": { "kubeconfig": self.kubeconfig(), "exclude_namespaces": ["bank"] },
            "runtimeConfig": { "io.kubernetes.cri.pod-annotations": { STATUS: "{}" } },
            "prevResult": { "cniVersion": "1.0.0" },
        })
    }

    /// Asserts that a meshed pod is refused with this code and these words, and that calls which need no facts
    /// succeed.
    fn assert_refused(&self, code: u64, words: &[&str]) {
        let outcome = self.call("ADD", "shop", &self.entry());
        let message = outcome.message();
        assert_eq!((outcome.exit, outcome.code()), (Some(1), Some(code)), "{outcome:?}");
        assert!(message.starts_with("gybe-cni cmdAdd GYBE-ADD-033: kubeconfig /"), "{message}");
        assert!(words.iter().all(|word| message.contains(word)), "{words:?} in {message}");
        assert_eq!(self.call("ADD", "bank", &self.entry()).exit, Some(0));
        assert_eq!(self.call("DEL", "shop", &self.entry()).exit, Some(0));
        let mut unmeshed = self.entry();
        unmeshed["runtimeConfig"]["io.kubernetes.cri.pod-annotations"] = json!({});
        assert_eq!(self.call("ADD", "shop", &unmeshed).exit, Some(0));
    }
}

#[test]
fn a_kubeconfig_that_cannot_be_read_is_named_in_the_error() {
    let directory = PluginDirectory::new("missing");
    fs::remove_file(directory.kubeconfig()).unwrap();
    directory.assert_refused(7, &["kubeconfig cannot be read: No such file"]);
    nix::unistd::mkfifo(&directory.kubeconfig(), nix::sys::stat::Mode::S_IRWXU).unwrap();
    directory.assert_refused(7, &["not a regular file"]);
    fs::remove_file(directory.kubeconfig()).unwrap();
    fs::create_dir(directory.kubeconfig()).unwrap();
    directory.assert_refused(7, &["not a regular file"]);
}

#[test]
fn the_errors_of_agent_and_kubeconfig_are_both_named() {
    let directory = PluginDirectory::new("behind");
    fs::remove_file(directory.kubeconfig()).unwrap();
    let mut entry = directory.entry();
    entry["facts"]["socket"] = json!(directory.0.0.join("facts.sock"));
    let message = directory.call("ADD", "shop", &entry).message();
    assert!(message.contains("ADD-032") && message.contains("kubeconfig cannot be read"), "{message}");
}

#[test]
fn a_missing_program_is_named_by_its_path() {
    let directory = PluginDirectory::new("alone");
    directory.assert_refused(7, &["/gybe,", "cannot be run: No such file"]);
}

#[test]
fn the_program_gets_the_request_and_no_variable_of_the_runtime() {
    let mut pod = meshed(&[]);
    pod["metadata"]["uid"] = "u1".into();
    let response = json!({ "version": 1, "pod": pod }).to_string();
    let directory = PluginDirectory::new("asked");
    let record = directory.0.0.join("record");
    let script =
        format!("exec 3>&1 >'{}'; echo \"$@\"; pwd; env; cat; echo '{response}' >&3", record.display());
    let directory = directory.gybe(&script);
    let outcome = directory.call("ADD", "shop", &directory.entry());
    // The next step fails: the namespace does not exist.
    assert!(outcome.message().contains("GYBE-ADD-020"), "{outcome:?}");
    let record = fs::read_to_string(record).unwrap();
    let lines: Vec<_> = record.lines().collect();
    let kubeconfig = directory.kubeconfig();
    let words = format!("pod-facts --kubeconfig {} --deadline-ms ", kubeconfig.display());
    let deadline: u64 = lines[0].strip_prefix(&words).unwrap().parse().unwrap();
    assert!((1..1500).contains(&deadline), "{deadline}");
    assert_eq!(lines[1], "/");
    assert!(!record.contains("SECRET") && !record.contains("CNI_"), "{record}");
    let request: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
    assert_eq!(
        request,
        json!({ "version": 1, "namespace": "shop", "name": "cart-0", "uid": "u1", "deadline_ms": null })
    );
}

#[test]
fn the_programs_errors_are_passed_on() {
    let gave_up =
        PluginDirectory::new("gave-up").gybe("echo 'gybe: kubeconfig has no current-context' >&2; exit 2");
    gave_up.assert_refused(11, &["gybe: kubeconfig has no current-context"]);
    let silent = PluginDirectory::new("silent-end").gybe("exit 2");
    silent.assert_refused(11, &["exit status: 2"]);
    let fault = PluginDirectory::new("fault")
        .gybe(r#"echo '{"version": 1, "fault": "the API server responded 403: no"}'"#);
    fault.assert_refused(11, &["the API server responded 403: no"]);
    let unknown = PluginDirectory::new("unknown").gybe(r#"echo '{"version": 1}'"#);
    let message = unknown.call("ADD", "shop", &unknown.entry()).message();
    assert!(message.contains("GYBE-ADD-017") && message.contains("has no shop/cart-0"), "{message}");
}

#[test]
fn a10_a_program_that_never_ends_or_writes_endlessly_is_an_error_within_the_deadline() {
    let silent = PluginDirectory::new("silent").gybe("exec sleep 60");
    silent.assert_refused(11, &["gave no answer within"]);
    let garbage = PluginDirectory::new("garbage").gybe("echo 'HTTP/1.1 200 OK'");
    garbage.assert_refused(11, &["gave an answer that is malformed"]);
    let endless = PluginDirectory::new("endless").gybe("exec cat /dev/zero");
    endless.assert_refused(11, &["gave "]);
    let verbose = PluginDirectory::new("verbose").gybe("cat /dev/zero >&2; exit 1");
    verbose.assert_refused(11, &["gave no answer"]);
}
