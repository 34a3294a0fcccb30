//! A reboot of a node, as its pods and Gybe experience it. The control plane, which shares the first node's namespaces,
//! and the DNS server and the network of each node go on: in a cluster they are another machine's.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gybe_integration::failure::Failure;

use super::ClusterNode;
use crate::credentials::DIRECTORY;

/// The programs that a reboot of the node does not kill.
const CONTROL_PLANE: [&str; 5] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "coredns"];
/// How long the kernel may take to end all other processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_millis(50);
/// Where the mounts are that the node would not have after a boot.
const MOUNTS: [&str; 3] = ["/run/", "/var/lib/kubelet/", "/var/run/"];
/// Paths in `/run` that a real node does not have: the overlays of `/etc` and `/opt`, and this cluster's directory.
const OVERLAYS: &str = "/run/overlay";
const OWN: &str = "/run/gybe";

impl ClusterNode {
    /// Kills all processes of the node but the control plane's, wipes `/run` and the node's network, and starts
    /// containerd and the kubelet again. `kept`: the absolute paths below `/run/gybe` that are not deleted.
    pub(crate) fn reboot(&mut self, kept: &BTreeSet<String>) -> Result<(), Failure> {
        self.kill_processes()?;
        self.unmount()?;
        self.wipe(kept)?;
        // Pods' links are gone with their namespaces.
        self.host().run(Path::new("sh"), &["-c", "nft flush ruleset && ip link delete cni0"])?;
        self.runtime.start_containerd_again()?;
        self.start_kubelet()
    }

    /// Kills all processes but those of the control plane and process 1, until there are no others.
    fn kill_processes(&self) -> Result<(), Failure> {
        let deadline = Instant::now() + KILL_TIMEOUT;
        loop {
            let others = self.other_processes()?;
            if others.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Failure::new(format!(
                    "processes {others:?} still run {KILL_TIMEOUT:?} after SIGKILL; look at /proc/ID/stack"
                )));
            }
            let arguments = ["-KILL"].into_iter().chain(others.iter().map(String::as_str));
            // Some may have ended meanwhile.
            let _ = self.host().run(Path::new("kill"), &arguments.collect::<Vec<_>>());
            sleep(INTERVAL);
        }
    }

    /// The ids in the node's PID namespace.
    fn other_processes(&self) -> Result<Vec<String>, Failure> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.host().path("/proc"))? {
            let entry = entry?;
            let id = entry.file_name().to_string_lossy().into_owned();
            // A kernel thread, or a process that has ended, has no program.
            let Ok(program) = fs::read_link(entry.path().join("exe")) else { continue };
            let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if id != "1" && id.parse::<u32>().is_ok() && !CONTROL_PLANE.contains(&name.as_str()) {
                found.push(id);
            }
        }
        Ok(found)
    }

    fn unmount(&self) -> Result<(), Failure> {
        // One may end with another that contained it.
        for target in self.mounts()? {
            let _ = self.host().run(Path::new("umount"), &["--lazy", &target]);
        }
        match self.mounts()?.as_slice() {
            [] => Ok(()),
            left => Err(Failure::new(format!(
                "cannot unmount {left:?}; look for processes that use them with fuser(1)"
            ))),
        }
    }

    /// The mount points that the node would not have after a boot, the newest first.
    fn mounts(&self) -> Result<Vec<String>, Failure> {
        let mounts = fs::read_to_string(self.host().path("/proc/1/mounts"))?;
        // Those before the node's own /run are the machine's, and hidden.
        let targets = mounts.lines().rev().filter_map(|line| line.split(' ').nth(1));
        let targets = targets.take_while(|target| *target != "/run");
        let is_gone = |target: &&str| {
            MOUNTS.iter().any(|below| target.starts_with(below)) && !target.starts_with(DIRECTORY)
        };
        Ok(targets.filter(is_gone).map(str::to_owned).collect())
    }

    fn wipe(&self, kept: &BTreeSet<String>) -> Result<(), Failure> {
        let host = self.host();
        for directory in ["/run", OWN] {
            for entry in fs::read_dir(host.path(directory))? {
                let entry = entry?;
                let path = Path::new(directory).join(entry.file_name());
                let name = path.to_string_lossy().into_owned();
                if [OVERLAYS, OWN].contains(&name.as_str()) || kept.contains(&name) {
                    continue;
                }
                if entry.file_type()?.is_dir() {
                    fs::remove_dir_all(entry.path())?;
                } else {
                    fs::remove_file(entry.path())?;
                }
            }
        }
        Ok(())
    }
}
