//! A node of the cluster: containerd, a kubelet, and what else runs there.

use std::fs;
use std::path::{Path, PathBuf};

use gybe_containerd_tests::containerd::SOCKET;
use gybe_containerd_tests::{
    Conflist, Generation, HarnessError, HostProcess, Node, Programs, SimulatedHost, Suspended,
};
use gybe_integration::failure::Failure;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::components::{self, KERNEL_SETTINGS};
use crate::credentials;
use crate::network::{NodeNumber, Switch};

/// What the kubelet logs when it has started.
const KUBELET_STARTED: &str = "Started kubelet";

/// What all nodes of a cluster have in common.
#[derive(Clone)]
pub(super) struct NodeParts {
    /// The directory of Kubernetes' programs.
    pub(super) programs: PathBuf,
    pub(super) logs: PathBuf,
    pub(super) host_init: PathBuf,
    pub(super) generation: Generation,
    /// containerd's runc; without it, the machine's.
    pub(super) runc: Option<PathBuf>,
}

/// A node. It ends when it is dropped or the process ends.
pub(crate) struct ClusterNode {
    pub(crate) number: NodeNumber,
    pub(crate) runtime: Node,
    /// The primary plugin's.
    pub(crate) conflist: Conflist,
    programs: PathBuf,
    logs: PathBuf,
    kubelet: Option<HostProcess>,
    // Kept for its lifetime: the programs end with the node.
    components: Vec<HostProcess>,
}

impl ClusterNode {
    /// Starts a node with containerd, connected to the other nodes, without a kubelet.
    pub(super) fn start(
        parts: &NodeParts,
        number: NodeNumber,
        switch: &Switch,
    ) -> Result<ClusterNode, Failure> {
        let logs = parts.logs.join(number.to_string());
        fs::create_dir_all(&logs)?;
        let programs = Programs { host_init: &parts.host_init, plugins: &[], runc: parts.runc.as_deref() };
        let conflist = Conflist::reference_plugins(parts.generation).routed(&number.pods());
        let runtime = Node::start(programs, parts.generation, &conflist, logs.join("containerd.log"))?;
        switch.connect(number, runtime.host())?;
        let programs = parts.programs.clone();
        Ok(ClusterNode { number, runtime, conflist, programs, logs, kubelet: None, components: Vec::new() })
    }

    pub(crate) fn host(&self) -> &SimulatedHost {
        self.runtime.host()
    }

    /// Prepares the node for a kubelet and starts that. `taint`: with which the node registers.
    pub(super) fn register(&mut self, taint: Option<&str>) -> Result<(), Failure> {
        self.prepare_kubelet(taint)?;
        self.start_kubelet()
    }

    /// Ends the kubelet, and starts it with these settings in place of the usual ones. Pods go on.
    pub(crate) fn restart_kubelet_with(&mut self, settings: &Value) -> Result<(), Failure> {
        if let Some(kubelet) = self.kubelet.take() {
            kubelet.stop(Signal::SIGTERM)?;
        }
        self.configure_kubelet(None, settings)?;
        self.start_kubelet()
    }

    /// Starts the kubelet, also again after its end.
    pub(super) fn start_kubelet(&mut self) -> Result<(), Failure> {
        self.kubelet =
            Some(self.start_program("kubelet", components::kubelet(self.number), KUBELET_STARTED)?);
        Ok(())
    }

    /// Starts a program and returns when a line of its log contains `ready`.
    pub(crate) fn start_program(
        &self,
        name: &str,
        arguments: Vec<String>,
        ready: &'static str,
    ) -> Result<HostProcess, HarnessError> {
        let mut command = self.host().command(&self.programs, self.programs.join(name));
        command.args(arguments);
        HostProcess::start_and_wait(command, ready, &self.logs.join(format!("{name}.log")))
    }

    /// Starts a program that runs as long as the node, and returns at once. Its standard output and error are its log.
    pub(crate) fn start_component(&mut self, name: &str, arguments: &[String]) -> Result<(), Failure> {
        let mut command = self.host().command(&self.programs, "sh");
        command.args(["-c", "exec \"$@\" >&2", "sh"]).arg(self.programs.join(name)).args(arguments);
        let log = self.logs.join(format!("{name}.log"));
        self.components.push(HostProcess::start(command, "\n", &log)?);
        Ok(())
    }

    /// Stops the kubelet and containerd until the returned values are dropped. Pods go on running.
    pub(crate) fn hang(&self) -> Result<Vec<Suspended<'_>>, Failure> {
        let mut hung = vec![self.runtime.containerd().suspend()?];
        hung.extend(self.kubelet.as_ref().map(HostProcess::suspend).transpose()?);
        Ok(hung)
    }

    fn configure_kubelet(&self, taint: Option<&str>, settings: &Value) -> Result<(), Failure> {
        let mut configuration = components::kubelet_configuration(&self.host().cgroup(), SOCKET, taint);
        if let (Some(usual), Some(settings)) = (configuration.as_object_mut(), settings.as_object()) {
            usual.extend(settings.clone());
        }
        Ok(fs::write(self.host().path(credentials::file("kubelet.json")), configuration.to_string())?)
    }

    /// Writes the kubelet's configuration, makes its cgroup in each hierarchy, and hides the machine's kernel settings.
    fn prepare_kubelet(&self, taint: Option<&str>) -> Result<(), Failure> {
        self.configure_kubelet(taint, &Value::Null)?;
        let host = self.host();
        let hierarchies = Path::new("/sys/fs/cgroup");
        if hierarchies.join("cgroup.controllers").exists() {
            fs::create_dir_all(hierarchies.join(host.cgroup().trim_start_matches('/')))?;
        } else {
            for hierarchy in fs::read_dir(hierarchies)? {
                let hierarchy = hierarchy?;
                if hierarchy.file_type()?.is_dir() {
                    fs::create_dir_all(hierarchy.path().join(host.cgroup().trim_start_matches('/')))?;
                }
            }
        }
        for (setting, value) in KERNEL_SETTINGS {
            let file = credentials::file(&setting.replace('/', "."));
            fs::write(host.path(&file), format!("{value}\n"))?;
            host.run(Path::new("mount"), &["--bind", &file, &format!("/proc/sys/{setting}")])?;
        }
        // In a user namespace the kernel mounts proc only if a proc mount without covered files is visible
        // (`mount_too_revealing`, fs/namespace.c, v6.18). The bind mounts above cover files of /proc.
        let proc = credentials::file("proc");
        fs::create_dir_all(host.path(&proc))?;
        host.run(Path::new("mount"), &["-t", "proc", "proc", &proc])?;
        Ok(())
    }
}
