//! The agents on the nodes: their processes, their sockets and, on the first node, their files.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use gybe_containerd_tests::SimulatedHost;
use gybe_containerd_tests::containerd::conf_files;
use gybe_integration::failure::Failure;
use nix::errno::Errno;
use nix::fcntl::AT_FDCWD;
use nix::sys::fanotify::{EventFFlags, Fanotify, FanotifyEvent, InitFlags, MarkFlags, MaskFlags};
use nix::sys::signal::Signal;
use serde::Deserialize;
use serde_json::Value;

use crate::api::{Api, PATIENCE, wait_until};
use crate::cluster::{Cluster, ClusterNode};
use crate::network::NODE;
use crate::storm::name_of;

/// Gybe's program in the node's directory of plugins.
pub(crate) const GYBE: &str = "/opt/cni/bin/gybe";
/// The agent's facts socket on the node.
const SOCKET: &str = "/run/gybe/facts.sock";
/// The directories in which only the agent and the probe that lead write: conf files, programs, and findings of the
/// probe beside sockets.
const DIRECTORIES: [&str; 3] = ["/etc/cni/net.d", "/opt/cni/bin", "/run/gybe"];
/// The time between two looks for a process or a socket.
const INTERVAL: Duration = Duration::from_millis(5);

/// The path of the list of the DaemonSet's pods.
pub(crate) const PODS: &str =
    "/api/v1/namespaces/gybe-system/pods?labelSelector=app.kubernetes.io%2Fname%3Dgybe-node";

/// Returns the pods of the DaemonSet.
pub(crate) fn pods(cluster: &Cluster) -> Result<Vec<Value>, Failure> {
    cluster.api.list(PODS)
}

/// Returns the name of the agent's pod on the first node, one that is not being deleted.
pub(crate) fn first_pod(cluster: &Cluster) -> Result<String, Failure> {
    let is_first = |pod: &&Value| {
        pod.pointer("/spec/nodeName").is_some_and(|node| node == NODE)
            && pod.pointer("/metadata/deletionTimestamp").is_none()
    };
    let found = pods(cluster)?.iter().find(is_first).map(name_of);
    found.ok_or_else(|| Failure::new(format!("{NODE} has no pod of an agent")))
}

/// Returns the agents' events about a pod with this reason.
pub(crate) fn events(cluster: &Cluster, pod: &Value, reason: &str) -> Result<Vec<Value>, Failure> {
    let namespace = pod.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or_default();
    let mut events = cluster.api.list(&format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"))?;
    events.retain(|event| {
        event.pointer("/regarding/uid") == pod.pointer("/metadata/uid")
            && event.get("reason").and_then(Value::as_str) == Some(reason)
    });
    Ok(events)
}

/// A node, as `gybe status` describes it.
#[derive(Debug, Deserialize)]
pub(crate) struct NodeStatus {
    pub(crate) node: String,
    pub(crate) state: String,
    /// Nothing when the agent did not answer.
    pub(crate) version: Option<String>,
    pub(crate) backend: Option<String>,
    pub(crate) problems: Vec<String>,
}

impl NodeStatus {
    /// Parses what `gybe status --json` has printed.
    pub(crate) fn list(printed: &str) -> Result<Vec<NodeStatus>, Failure> {
        #[derive(Deserialize)]
        struct Status {
            nodes: Vec<NodeStatus>,
        }
        Ok(serde_json::from_str::<Status>(printed)?.nodes)
    }
}

/// Connections as the agent's service account.
pub(crate) struct AgentApi {
    /// With a token as the kubelet requests it for the pod of the first node's agent: it names the node.
    pub(crate) bound: Api,
    /// With the token of no pod.
    pub(crate) unbound: Api,
}

impl AgentApi {
    pub(crate) fn connect(cluster: &Cluster) -> Result<AgentApi, Failure> {
        let agent = first_pod(cluster)?;
        let account = ["-n", "gybe-system", "create", "token", "gybe-node"];
        let pod = ["--bound-object-kind=Pod", &format!("--bound-object-name={agent}")];
        let connect = |arguments: &[&str]| cluster.api.with_token(cluster.run("kubectl", arguments)?.trim());
        Ok(AgentApi { bound: connect(&[account.as_slice(), &pod].concat())?, unbound: connect(&account)? })
    }
}

/// Returns the ids of the agents' processes in a node's PID namespace.
fn processes(node: &ClusterNode) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    for entry in fs::read_dir(node.host().path("/proc"))? {
        let entry = entry?;
        // A process may end meanwhile.
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if arguments.starts_with(b"/opt/gybe/bin/gybe\0node") {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(found)
}

/// Returns how many agents run on the nodes.
pub(crate) fn count(cluster: &Cluster) -> Result<usize, Failure> {
    cluster.nodes().iter().map(|node| Ok(processes(node)?.len())).sum()
}

/// Kills all agents with SIGKILL, and returns how many there were.
pub(crate) fn kill(cluster: &Cluster) -> Result<usize, Failure> {
    signal(cluster, Signal::SIGKILL)
}

/// Sends a signal to all agents, and returns how many there were.
pub(crate) fn signal(cluster: &Cluster, signal: Signal) -> Result<usize, Failure> {
    let mut count = 0;
    for node in cluster.nodes() {
        let agents = processes(node)?;
        for process in &agents {
            let arguments = ["-s", signal.as_str().trim_start_matches("SIG"), process];
            // It may have ended meanwhile.
            let _ = node.host().run(Path::new("kill"), &arguments);
        }
        count += agents.len();
    }
    Ok(count)
}

/// Kills the agents, and returns how long a node had no agent that accepts connections on its facts socket.
pub(crate) fn kill_and_wait(cluster: &Cluster) -> Result<Duration, Failure> {
    let mut waiting: Vec<_> = cluster.nodes().iter().map(|node| (node.host().path(SOCKET), false)).collect();
    let start = Instant::now();
    kill(cluster)?;
    while start.elapsed() < PATIENCE {
        // The kernel closes the socket when it has ended the process.
        waiting.retain_mut(|(path, was_refused)| {
            let is_refused = UnixStream::connect(path).is_err();
            *was_refused |= is_refused;
            is_refused || !*was_refused
        });
        if waiting.is_empty() {
            return Ok(start.elapsed());
        }
        sleep(INTERVAL);
    }
    Err(Failure::new(format!("not within {PATIENCE:?}: the facts socket of a killed agent is served again")))
}

/// Waits until each node has an agent in a container of its own that was not restarted before.
pub(crate) fn replace(cluster: &Cluster) -> Result<(), Failure> {
    cluster.run("kubectl", &["-n", "gybe-system", "rollout", "restart", "daemonset", "gybe-node"])?;
    crate::release::roll_out(cluster)?;
    wait_until("a single agent on each node", || Ok(count(cluster)? == cluster.nodes().len()))
}

/// A change of a file in one of [`DIRECTORIES`].
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) at: Instant,
    pub(crate) directory: &'static str,
    /// The cgroups of the process, as the kernel lists them; empty when it had ended.
    cgroups: String,
}

impl Write {
    /// Reports whether a container of this pod wrote.
    pub(crate) fn is_by(&self, pod_uid: &str) -> bool {
        // The kubelet's name of the pod's cgroup (`GetPodCgroupNameSuffix`, pkg/kubelet/cm, v1.36).
        self.cgroups.contains(&format!("/pod{pod_uid}/"))
    }
}

/// The changes in the directories that an agent writes, on the first node.
pub(crate) struct Writes {
    is_over: Arc<AtomicBool>,
    watcher: JoinHandle<Result<Vec<Write>, Failure>>,
}

impl Writes {
    pub(crate) fn watch(cluster: &Cluster) -> Result<Writes, Failure> {
        let groups = DIRECTORIES
            .map(|directory| watched(&cluster.host().path(directory)).map(|group| (directory, group)));
        let groups = groups.into_iter().collect::<Result<Vec<_>, _>>()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_over);
        let watcher = thread::spawn(move || {
            let mut written = Vec::new();
            loop {
                let is_last = stop.load(Ordering::Relaxed);
                for (directory, group) in &groups {
                    written.extend(changes(group)?.into_iter().map(|event| Write {
                        at: Instant::now(),
                        directory,
                        cgroups:
                            fs::read_to_string(format!("/proc/{}/cgroup", event.pid())).unwrap_or_default(),
                    }));
                }
                if is_last {
                    return Ok(written);
                }
                sleep(INTERVAL);
            }
        });
        Ok(Writes { is_over, watcher })
    }

    /// Returns the changes so far.
    pub(crate) fn finish(self) -> Result<Vec<Write>, Failure> {
        self.is_over.store(true, Ordering::Relaxed);
        self.watcher.join().map_err(|_| Failure::new("the thread of fanotify panicked"))?
    }
}

/// Watches the files in a directory. inotify does not report which process changed them.
fn watched(directory: &Path) -> Result<Fanotify, Failure> {
    // FAN_REPORT_DIR_FID (fanotify_init(2)), without which the kernel reports no names that appear or disappear.
    let reports_directories = InitFlags::from_bits_retain(0x400);
    let flags = InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK | reports_directories;
    let group = Fanotify::init(flags, EventFFlags::empty())?;
    let changes = MaskFlags::FAN_CREATE
        | MaskFlags::FAN_MODIFY
        | MaskFlags::FAN_ATTRIB
        | MaskFlags::FAN_MOVED_TO
        | MaskFlags::FAN_DELETE
        | MaskFlags::FAN_EVENT_ON_CHILD;
    group.mark(MarkFlags::FAN_MARK_ADD, changes, AT_FDCWD, Some(directory))?;
    Ok(group)
}

/// Returns the changes that have not been read yet.
fn changes(group: &Fanotify) -> Result<Vec<FanotifyEvent>, Failure> {
    match group.read_events() {
        Err(Errno::EAGAIN) => Ok(Vec::new()),
        result => Ok(result?),
    }
}

/// Returns the conf files with Gybe's entry that a runtime reads: no temporary ones.
pub(crate) fn entries(host: &SimulatedHost) -> Result<Vec<String>, Failure> {
    let mut files = conf_files(host)?;
    let is_read = |path: &str| matches!(path.rsplit_once('.'), Some((_, "conf" | "conflist")));
    files.retain(|path, text| is_read(path) && text.contains("gybe-cni"));
    Ok(files.into_keys().collect())
}

/// Returns the names of Gybe's programs, and of the conf files with its entry, on the first node.
pub(crate) fn installed(cluster: &Cluster) -> Result<Vec<String>, Failure> {
    let host = cluster.host();
    let mut found = entries(host)?;
    for entry in fs::read_dir(host.path("/opt/cni/bin"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.contains("gybe") {
            found.push(format!("/opt/cni/bin/{name}"));
        }
    }
    Ok(found)
}
