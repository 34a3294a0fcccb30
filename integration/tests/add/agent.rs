//! ADDs of pods that the node agent knows, while it serves, restarts, or serves as another user.

use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::plugin_call::{PluginCall, PluginDir};
use gybe_integration::programs::{Run, ours, path_of_ours, run};
use gybe_test_support::{Layout, TestDir, agent_environment, http, install, wait_until};
use nix::sys::signal::Signal;
use nix::sys::socket::{getsockopt, sockopt};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::{fs, thread};

/// A running agent whose cache has the example's pod. Dropping it ends the agent.
pub(crate) struct Agent {
    // Dropped first: an agent that runs would write into a directory that is being removed.
    process: gybe_test_support::Agent,
    pub(crate) directory: TestDir,
}

/// The uid of an unprivileged user.
pub(crate) const UNPRIVILEGED: u32 = 1000;

impl Agent {
    pub(crate) fn start(test: &str) -> Self {
        Self::start_as(0, test)
    }

    pub(crate) fn start_as(user: u32, test: &str) -> Self {
        let directory = TestDir::new(&format!("agent-{test}"));
        directory.write("shop/cart-0.json", include_str!("../../../examples/pod.json"));
        chown(directory.path(), Some(user), Some(user)).unwrap();
        let process = gybe_test_support::Agent::start_serving(gybe_node(&directory, user));
        Self { directory, process }
    }

    /// Ends the agent with this signal, and starts another one on the same socket path.
    pub(crate) fn restart(&mut self, signal: Signal) {
        self.stop(signal);
        self.process = gybe_test_support::Agent::start_serving(gybe_node(&self.directory, 0));
    }

    pub(crate) fn stop(&mut self, signal: Signal) {
        let _ = self.process.stop(signal);
    }

    /// Ends the agent with SIGTERM, as the kubelet does, and returns its log.
    pub(crate) fn terminate(&mut self) -> Vec<Value> {
        self.stop(Signal::SIGTERM);
        self.process.whole_log()
    }
}

/// Copies one of Gybe's programs to a directory in which other users can run it; the build directory may be closed to
/// them.
fn program(directory: &Path, name: &str) -> PathBuf {
    let copy = directory.join(name);
    if !copy.exists() {
        install(&path_of_ours(name).unwrap(), &copy);
    }
    copy
}

#[expect(clippy::disallowed_methods, reason = "the agent runs in the background of the test")]
fn gybe_node(directory: &Path, user: u32) -> Command {
    let socket = directory.join("run/facts.sock");
    let mut command = Command::new(program(directory, "gybe"));
    command.uid(user).gid(user);
    command.arg("node").arg("--pods-from").arg(directory).arg("--socket").arg(socket);
    command
}

/// Makes the example ADD for this namespace with this agent; `annotations` are those that the runtime passes.
pub(crate) fn add(agent: &Agent, pod: &Namespace, annotations: Option<Value>) -> Run {
    add_as(&["env", "-i"], &agent.directory, pod, annotations)
}

pub(crate) fn add_as(wrapper: &[&str], directory: &Path, pod: &Namespace, annotations: Option<Value>) -> Run {
    // As long as the plugin waits by default.
    add_within(60_000, wrapper, directory, pod, annotations)
}

fn add_within(
    deadline_ms: u64,
    wrapper: &[&str],
    directory: &Path,
    pod: &Namespace,
    annotations: Option<Value>,
) -> Run {
    let mut add: Value = serde_json::from_str(include_str!("../../../examples/add.json")).unwrap();
    add["env"]["CNI_NETNS"] = json!(pod.path());
    let entry = &mut add["stdin"];
    entry["facts"] = json!({ "socket": directory.join("run/facts.sock"), "deadline_ms": deadline_ms });
    if let Some(annotations) = annotations {
        entry["runtimeConfig"]["io.kubernetes.cri.pod-annotations"] = annotations;
    }
    let set = add["env"].as_object().unwrap().iter();
    let set: Vec<_> = set.map(|(name, value)| format!("{name}={}", value.as_str().unwrap())).collect();
    let plugin = program(directory, "gybe-cni");
    let wrapper = wrapper.iter().copied();
    let words: Vec<_> = wrapper.chain(set.iter().map(String::as_str)).chain(plugin.to_str()).collect();
    run(words[0], &words[1..], &add["stdin"].to_string()).unwrap()
}

pub(crate) fn pod() -> Namespace {
    let pod = Namespace::new().unwrap();
    pod.run(|| run("ip", &["address", "add", "10.244.0.10/32", "dev", "lo"], "")).unwrap().unwrap();
    pod
}

pub(crate) fn inspect(pod: &Namespace) -> String {
    ours("gybe", &["inspect", "--netns", &pod.path().to_string_lossy()], "").unwrap().out
}

#[test]
fn a_pod_only_the_agent_knows_is_redirected_and_its_line_reaches_the_agent() {
    let (mut agent, pod) = (Agent::start("redirect"), pod());
    let ran = add(&agent, &pod, None);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(inspect(&pod).contains("outbound-to-proxy"), "{}", inspect(&pod));
    let log = agent.terminate();
    let line = log.iter().find(|line| line["msg"] == "gybe-cni cmdAdd").unwrap_or_else(|| panic!("{log:#?}"));
    assert_eq!((line["pod"].as_str(), line["decision"].as_str()), (Some("shop/cart-0"), Some("redirect")));
}

#[test]
fn a_manifest_that_the_agent_cannot_use_is_error_019_with_the_file_and_in_the_agents_log() {
    let (mut agent, pod) = (Agent::start("broken-manifest"), pod());
    for (file, text) in [
        ("shop/cart-0.json", "{"),
        ("shop/all.yaml", "kind: Pod\nmetadata: 5"),
        ("shop/cart-0.yaml", "kind: Pod\nmetadata: { name: cart-0 }\nspec: { containers: [] }"),
    ] {
        for former in ["shop/cart-0.json", "shop/all.yaml"] {
            fs::remove_file(agent.directory.join(former)).unwrap_or_default();
        }
        agent.directory.write(file, text);
        let refused = add(&agent, &pod, None);
        for part in ["\"code\":11", "GYBE-ADD-019", file, "correct that file"] {
            assert!(refused.code == Some(1) && refused.out.contains(part), "{part}: {refused:?}");
        }
    }
    let log = agent.terminate();
    let logged = log.iter().filter(|line| line["msg"] == "gybe node: a manifest cannot be used");
    assert_eq!(
        logged.filter(|line| line["cause"].as_str().unwrap().contains("shop/")).count(),
        3,
        "{log:#?}"
    );
}

#[test]
fn a08_an_agent_of_an_unprivileged_user_is_not_trusted() {
    let (agent, pod) = (Agent::start_as(UNPRIVILEGED, "unprivileged"), pod());
    let refused = add(&agent, &pod, None);
    assert!(refused.out.contains("GYBE-ADD-032") && refused.out.contains("runs as user 1000"), "{refused:?}");
    assert!(inspect(&pod).starts_with("no rules of Gybe"), "{}", inspect(&pod));
}

#[test]
fn another_users_connection_is_refused_with_any_mode_of_the_socket() {
    let (mut agent, pod) = (Agent::start("caller"), pod());
    let as_unprivileged = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "env", "-i"];
    let refused = add_within(4000, &as_unprivileged, &agent.directory, &pod, None);
    assert!(refused.out.contains("GYBE-ADD-032") && refused.out.contains("Permission denied"), "{refused:?}");
    let socket = agent.directory.join("run/facts.sock");
    fs::set_permissions(socket, fs::Permissions::from_mode(0o666)).unwrap();
    let refused = add_within(4000, &as_unprivileged, &agent.directory, &pod, None);
    assert!(refused.code == Some(1) && refused.out.contains("GYBE-ADD-032"), "{refused:?}");
    let log = agent.terminate();
    let is_refusal = |line: &Value| {
        line.to_string().contains("a connection was refused") && line.to_string().contains("1000")
    };
    assert!(log.iter().any(is_refusal), "{log:#?}");
}

/// Where an ADD waits while the sandbox ends, and the next sandbox gets its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    ForTheSocket,
    ForTheAnswer,
}

#[test]
fn only_the_namespace_that_the_path_named_before_a_wait_is_redirected() {
    for wait in [Wait::ForTheSocket, Wait::ForTheAnswer] {
        let (directory, meant, next) = (PluginDir::new("agent-namespaces"), pod(), pod());
        let (path, socket) = (directory.path().join("netns"), directory.run().join("facts.sock"));
        symlink(meant.path(), &path).unwrap();
        let mut add = PluginCall::add(&meant, &directory).unwrap().with_backend("nft");
        add.env.insert("CNI_NETNS".into(), path.display().to_string());
        add.stdin["facts"] = json!({ "socket": socket, "deadline_ms": 60_000 });
        let replacement = directory.path().join("netns.new");
        symlink(next.path(), &replacement).unwrap();
        let early = (wait == Wait::ForTheAnswer).then(|| UnixListener::bind(&socket).unwrap());
        let ran = thread::scope(|scope| {
            let adding = scope.spawn(|| add.run(&directory, "").unwrap());
            let listener = early.unwrap_or_else(|| {
                wait_until("the plugin waits for the socket", || any_process_watches(&directory.run()));
                fs::rename(&replacement, &path).unwrap();
                UnixListener::bind(&socket).unwrap()
            });
            let (mut plugin, _) = listener.accept().unwrap();
            BufReader::new(&plugin).read_line(&mut String::new()).unwrap();
            if wait == Wait::ForTheAnswer {
                let pid = getsockopt(&plugin, sockopt::PeerCredentials).unwrap().pid();
                wait_until("the plugin has opened the namespace", || has_open(pid, &meant.path()));
                fs::rename(&replacement, &path).unwrap();
            }
            let pod: Value = serde_json::from_str(include_str!("../../../examples/pod.json")).unwrap();
            plugin.write_all(format!("{}\n", json!({ "version": 1, "pod": pod })).as_bytes()).unwrap();
            adding.join().unwrap()
        });
        assert_eq!(ran.code, Some(0), "{wait:?}: {ran:?}");
        assert!(inspect(&meant).contains("outbound-to-proxy"), "{wait:?}: {}", inspect(&meant));
        assert!(inspect(&next).starts_with("no rules of Gybe"), "{wait:?}: {}", inspect(&next));
    }
}

/// Reports whether the process has this file open.
fn has_open(pid: i32, file: &Path) -> bool {
    let file = fs::metadata(file).unwrap();
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|fd| fs::metadata(fd.path()).ok())
        .any(|open| (open.dev(), open.ino()) == (file.dev(), file.ino()))
}

/// Reports whether a process has an inotify watch on the directory.
fn any_process_watches(directory: &Path) -> bool {
    let inode = format!(" ino:{:x} ", fs::metadata(directory).unwrap().ino());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let descriptors = processes.filter_map(|process| fs::read_dir(process.path().join("fdinfo")).ok());
    descriptors
        .flatten()
        .flatten()
        .filter_map(|descriptor| fs::read_to_string(descriptor.path()).ok())
        .any(|text| text.lines().any(|line| line.starts_with("inotify wd:") && line.contains(&inode)))
}

/// At the plugin's first stat the path does not exist; when the plugin opens it, it leads to the node's namespace, for
/// which the test uses one of its own.
#[test]
fn a_path_that_leads_to_the_plugins_own_namespace_only_when_it_is_opened_is_refused() {
    let (directory, node) = (PluginDir::new("agent-own-namespace"), pod());
    let path = node.path().display().to_string();
    let add = PluginCall::add(&node, &directory).unwrap().with_backend("nft");
    let record = directory.path().join("record");
    let strace = format!(
        "strace -qq -f -P {path} -e trace=stat,newfstatat,statx -e inject=stat,newfstatat,statx:error=ENOENT:when=1 -o {}",
        record.display()
    );
    let ran = node.run(|| add.run(&directory, &strace)).unwrap().unwrap();
    let record = fs::read_to_string(record).unwrap();
    assert!(record.contains("ENOENT (No such file or directory) (INJECTED)"), "{record}");
    assert!(ran.code == Some(1) && ran.out.contains("GYBE-ADD-021"), "{ran:?}");
    assert_eq!(node.run(|| run("nft", &["list", "ruleset"], "")).unwrap().unwrap().out, "");
}

const RESTARTS: usize = 100;

fn add_meshed(directory: &Path, pod: &Namespace) {
    let ran = add_as(&["env", "-i"], directory, pod, None);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(inspect(pod).contains("outbound-to-proxy"), "{}", inspect(pod));
}

fn add_unmeshed(directory: &Path, pod: &Namespace) {
    let ran = add_as(&["env", "-i"], directory, pod, Some(json!({ "example.com/x": "y" })));
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn f27_while_the_agent_restarts_in_a_loop_every_add_succeeds() {
    let (mut agent, stop) = (Agent::start("restarts"), AtomicBool::new(false));
    // Copies both programs, before the restarts begin, to where every user can run them.
    assert_eq!(add(&agent, &pod(), None).code, Some(0));
    let (directory, (sender, added)) = (agent.directory.path().to_owned(), mpsc::channel());
    let redirected = thread::scope(|scope| {
        let adding = scope.spawn(|| {
            let (mut redirected, sender) = (0, sender);
            while !stop.load(Ordering::Relaxed) {
                let pod = pod();
                add_unmeshed(&directory, &pod);
                add_meshed(&directory, &pod);
                redirected += 1;
                let _ = sender.send(());
            }
            redirected
        });
        for n in 0..RESTARTS {
            agent.restart(if n % 2 == 0 { Signal::SIGKILL } else { Signal::SIGTERM });
            // Every fifth agent lives for two ADDs. On an error the adding thread has ended; `join` shows its panic.
            if n % 5 == 0 && (added.recv().is_err() || added.recv().is_err()) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        adding.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    println!("{RESTARTS} restarts: {redirected} pods redirected");
    assert!(redirected >= RESTARTS / 5, "{redirected}");
    let left = fs::read_dir(directory.join("run")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut left: Vec<_> = left.map(|name| name.into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, ["facts.sock", "log.sock"], "no other file remains");
}

/// Starts an agent that installs into these directories, in the network namespace `node`.
fn installing_agent(directory: &TestDir, node: &Namespace) -> gybe_test_support::Agent {
    let gybe = path_of_ours("gybe").unwrap();
    #[expect(clippy::disallowed_methods, reason = "the agent runs in the background of the test")]
    let mut command = Command::new(&gybe);
    command.env_clear().envs(agent_environment(directory, Layout::Short));
    command.env("GYBE_PROGRAMS_DIR", gybe.parent().unwrap());
    // Its own addresses: the namespace has no other agent.
    command.env_remove("HEALTH_ADDRESS").env_remove("MONITORING_ADDRESS");
    command.args(["node", "--install", "--pods-from"]).arg(directory.join("pods"));
    node.run(|| gybe_test_support::Agent::start(command)).unwrap()
}

#[test]
fn with_bindv6only_the_health_port_accepts_ipv4_too() {
    let node = Namespace::new().unwrap();
    node.run(|| fs::write("/proc/sys/net/ipv6/bindv6only", "1")).unwrap().unwrap();
    let directory = TestDir::new("health-port").with_subdirectories(&["net.d", "bin", "pods", "image"]);
    let agent = installing_agent(&directory, &node);
    agent.address("health");
    for address in ["[::1]:8000", "127.0.0.1:8000"] {
        let (status, text) = node.run(|| http::get(address, "/healthz")).unwrap();
        assert_eq!(status, 200, "{address}: {text}");
    }
}
