//! The agent on the node: its processes, its socket and its files.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use gybe_integration::failure::Failure;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::api::{PATIENCE, wait_until};
use crate::cluster::Cluster;

/// The agent's facts socket on the node.
const SOCKET: &str = "/run/gybe/facts.sock";
/// The directories in which only the agent that leads writes.
const DIRECTORIES: [&str; 2] = ["/etc/cni/net.d", "/opt/cni/bin"];
/// The time between two looks for a process or a socket.
const INTERVAL: Duration = Duration::from_millis(5);

/// Returns the ids of the agents' processes in the node's PID namespace.
pub(crate) fn processes(cluster: &Cluster) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    for entry in fs::read_dir(cluster.node.host().path("/proc"))? {
        let entry = entry?;
        // A process may end meanwhile.
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if arguments.starts_with(b"/opt/gybe/bin/gybe\0node") {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(found)
}

/// Kills all agents with SIGKILL, and returns how many there were.
pub(crate) fn kill(cluster: &Cluster) -> Result<usize, Failure> {
    let agents = processes(cluster)?;
    for process in &agents {
        // It may have ended meanwhile.
        let _ = cluster.run("kill", &["-KILL", process]);
    }
    Ok(agents.len())
}

/// Kills the agents, and returns how long no agent accepted connections on its facts socket.
pub(crate) fn kill_and_wait(cluster: &Cluster) -> Result<Duration, Failure> {
    let path = cluster.node.host().path(SOCKET);
    let start = Instant::now();
    kill(cluster)?;
    // The kernel closes the socket when it has ended the process.
    let mut was_refused = false;
    while start.elapsed() < PATIENCE {
        match (UnixStream::connect(&path), was_refused) {
            (Err(_), false) => was_refused = true,
            (Ok(_), true) => return Ok(start.elapsed()),
            (Err(_), true) | (Ok(_), false) => {}
        }
        sleep(INTERVAL);
    }
    Err(Failure::new(format!("not within {PATIENCE:?}: the facts socket of a killed agent is served again")))
}

/// Waits until the node has an agent in a container of its own that was not restarted before.
pub(crate) fn replace(cluster: &Cluster) -> Result<(), Failure> {
    cluster.run("kubectl", &["-n", "gybe-system", "rollout", "restart", "daemonset", "gybe-node"])?;
    crate::release::roll_out(cluster)?;
    wait_until("a single agent", || Ok(processes(cluster)?.len() == 1))
}

/// The changes in the directories that an agent writes.
pub(crate) struct Writes {
    is_over: Arc<AtomicBool>,
    watcher: JoinHandle<Result<Vec<(Instant, String)>, Failure>>,
}

impl Writes {
    pub(crate) fn watch(cluster: &Cluster) -> Result<Writes, Failure> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let changes = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE;
        for directory in DIRECTORIES {
            inotify.add_watch(&cluster.node.host().path(directory), changes)?;
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_over);
        let watcher = thread::spawn(move || {
            let mut written = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                for event in inotify.read_events().unwrap_or_default() {
                    let name = event.name.unwrap_or_default().to_string_lossy().into_owned();
                    written.push((Instant::now(), name));
                }
                sleep(INTERVAL);
            }
            Ok(written)
        });
        Ok(Writes { is_over, watcher })
    }

    /// Returns the times and the names of the changed files.
    pub(crate) fn finish(self) -> Result<Vec<(Instant, String)>, Failure> {
        self.is_over.store(true, Ordering::Relaxed);
        self.watcher.join().map_err(|_| Failure::new("the thread of inotify panicked"))?
    }
}

/// Reports whether Gybe's programs and its entry are on the node: the names of what is there.
pub(crate) fn installed(cluster: &Cluster) -> Result<Vec<String>, Failure> {
    let host = cluster.node.host();
    let mut found = Vec::new();
    for entry in fs::read_dir(host.path("/etc/cni/net.d"))? {
        let entry = entry?;
        if fs::read_to_string(entry.path()).is_ok_and(|text| text.contains("gybe-cni")) {
            found.push(Path::new("/etc/cni/net.d").join(entry.file_name()).display().to_string());
        }
    }
    for entry in fs::read_dir(host.path("/opt/cni/bin"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.contains("gybe") {
            found.push(format!("/opt/cni/bin/{name}"));
        }
    }
    Ok(found)
}
