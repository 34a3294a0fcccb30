//! A test node: a simulated host with containerd, CNI plugins and the kubelet's connection.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::containerd::{BIN_DIR, CONF_DIR, SOCKET};
use crate::image::{Image, PAUSE};
use crate::{
    Agent, AgentOptions, Conflist, Containerd, Cri, Generation, HarnessError, RecordedCall, SimulatedHost,
    recorder,
};

/// The primary plugin's conflist.
pub const CONFLIST: &str = "10-gybe-test.conflist";

/// Paths of the programs that a node needs. Cargo defines `CARGO_BIN_EXE_…` only for tests, so tests pass them.
#[derive(Debug, Clone, Copy)]
pub struct Programs<'p> {
    /// `gybe-host-init`
    pub host_init: &'p Path,
    /// The plugins under test.
    pub plugins: &'p [&'p Path],
    /// The runc of containerd; without it, the machine's.
    pub runc: Option<&'p Path>,
}

/// A node that can run sandboxes.
#[derive(Debug)]
pub struct Node {
    /// The kubelet's connection.
    pub cri: Cri,
    containerd: Containerd,
    generation: Generation,
    runc: Option<PathBuf>,
    log: PathBuf,
    host: SimulatedHost,
}

impl Node {
    /// Starts a node with this conflist. containerd's log is written to `log`, the agents' to `*.agent.log`.
    pub fn start(
        programs: Programs<'_>,
        generation: Generation,
        conflist: &Conflist,
        log: PathBuf,
    ) -> Result<Node, HarnessError> {
        remove_logs(&log);
        let host = SimulatedHost::start(programs.host_init)?;
        link_plugins(&host, generation, programs.plugins)?;
        let path = host.path(CONF_DIR).join(CONFLIST);
        fs::write(&path, conflist.text(0)).map_err(HarnessError::file(path))?;
        let runc = programs.runc.map(Path::to_path_buf);
        let containerd = Containerd::start(&host, generation, runc.as_deref(), &log)?;
        let cri = connect(&host)?;
        let node = Node { cri, containerd, generation, runc, log, host };
        node.import(&PAUSE)?;
        Ok(node)
    }

    pub fn host(&self) -> &SimulatedHost {
        &self.host
    }

    /// Imports an image into the namespace of the CRI service.
    pub fn import(&self, image: &Image<'_>) -> Result<(), HarnessError> {
        let archive = image.archive().map_err(HarnessError::file(image.name))?;
        self.import_archive(image.name, &archive)
    }

    /// Imports an OCI archive of the image with this name into the namespace of the CRI service.
    pub fn import_archive(&self, name: &str, archive: &[u8]) -> Result<(), HarnessError> {
        let on_node = "/run/gybe/image.tar";
        let path = self.host.path(on_node);
        fs::write(&path, archive).map_err(HarnessError::file(path))?;
        let programs = self.generation.programs()?;
        let program = programs.join("ctr");
        let mut command = self.host.command(&programs, &program);
        command.args(["--address", SOCKET, "--namespace", "k8s.io"]);
        command.args(["images", "import", on_node]);
        let output = command.output().map_err(HarnessError::start(&program))?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(HarnessError::Ended { program, message });
        }
        self.cri.wait_for_image(name)
    }

    /// Starts an agent that answers queries about the published pods and installs nothing. Returns when it serves.
    pub fn start_agent(&self, program: &Path) -> Result<Agent, HarnessError> {
        Agent::start_serving(&self.host, program, &agent_log(&self.log))
    }

    /// Starts an agent that also installs Gybe and keeps it in the conflist. Returns at once.
    pub fn start_installing_agent(&self, options: &AgentOptions<'_>) -> Result<Agent, HarnessError> {
        Agent::start_installing(&self.host, options, &agent_log(&self.log))
    }

    /// Returns containerd's log.
    pub fn containerd_log(&self) -> Result<String, HarnessError> {
        fs::read_to_string(&self.log).map_err(HarnessError::file(&self.log))
    }

    /// Returns the log of all agents of this node.
    pub fn agent_log(&self) -> Result<String, HarnessError> {
        let path = agent_log(&self.log);
        fs::read_to_string(&path).map_err(HarnessError::file(path))
    }

    /// Delays a reference plugin by one second, as on an overloaded node.
    pub fn delay_plugin(&self, plugin: &str) -> Result<(), HarnessError> {
        let link = self.host.path(BIN_DIR).join(plugin);
        let target = fs::read_link(&link).map_err(HarnessError::file(&link))?;
        let script = format!("#!/bin/sh\nsleep 1\nexec {}\n", target.display());
        let written = fs::remove_file(&link).and_then(|()| fs::write(&link, script));
        let written = written.and_then(|()| fs::set_permissions(&link, Permissions::from_mode(0o755)));
        written.map_err(HarnessError::file(link))
    }

    pub fn containerd(&self) -> &Containerd {
        &self.containerd
    }

    /// Opens another connection to the CRI service, for calls of another thread.
    pub fn connect(&self) -> Result<Cri, HarnessError> {
        connect(&self.host)
    }

    /// Returns the recorder's calls so far.
    pub fn recorded_calls(&self) -> Result<Vec<RecordedCall>, HarnessError> {
        RecordedCall::read_all(&self.host.path(recorder::DIRECTORY))
    }

    /// Starts containerd again, whose process has ended, with its persistent state.
    pub fn start_containerd_again(&mut self) -> Result<(), HarnessError> {
        self.containerd = Containerd::start(&self.host, self.generation, self.runc.as_deref(), &self.log)?;
        self.cri = connect(&self.host)?;
        Ok(())
    }

    /// Ends containerd, and starts one of this generation with its persistent state, as a package's upgrade does. Pods go
    /// on.
    pub fn upgrade_containerd(&mut self, generation: Generation) -> Result<(), HarnessError> {
        self.containerd.end()?;
        self.generation = generation;
        self.start_containerd_again()
    }

    /// Kills containerd with SIGKILL. Pods and running plugins go on.
    pub fn kill_containerd(self) -> Result<NodeWithoutContainerd, HarnessError> {
        let Node { containerd, generation, runc, log, host, .. } = self;
        containerd.kill()?;
        Ok(NodeWithoutContainerd { generation, runc, log, host })
    }
}

/// A node whose containerd was killed.
#[derive(Debug)]
pub struct NodeWithoutContainerd {
    generation: Generation,
    runc: Option<PathBuf>,
    log: PathBuf,
    host: SimulatedHost,
}

impl NodeWithoutContainerd {
    pub fn host(&self) -> &SimulatedHost {
        &self.host
    }

    /// Starts containerd again with its persistent state.
    pub fn restart_containerd(self) -> Result<Node, HarnessError> {
        let NodeWithoutContainerd { generation, runc, log, host } = self;
        let containerd = Containerd::start(&host, generation, runc.as_deref(), &log)?;
        let cri = connect(&host)?;
        Ok(Node { cri, containerd, generation, runc, log, host })
    }
}

/// Returns the path of the agents' log beside the runtime's.
#[must_use]
pub fn agent_log(log: &Path) -> PathBuf {
    log.with_extension("agent.log")
}

/// Removes the logs of an earlier run.
pub fn remove_logs(log: &Path) {
    for old in [log, &agent_log(log)] {
        // There is none before the first run.
        let _ = fs::remove_file(old);
    }
}

fn connect(host: &SimulatedHost) -> Result<Cri, HarnessError> {
    let cri = Cri::connect(&host.path(SOCKET), host.cgroup())?;
    cri.wait_until_serving()?;
    Ok(cri)
}

/// Links these plugins and the reference plugins of this generation, from where they are built or installed, into
/// the node's CNI program directory.
pub fn link_plugins(
    host: &SimulatedHost,
    generation: Generation,
    plugins: &[&Path],
) -> Result<(), HarnessError> {
    let reference = generation.reference_plugins()?;
    let mut found = Vec::new();
    for entry in fs::read_dir(&reference).map_err(HarnessError::file(&reference))? {
        found.push(entry.map_err(HarnessError::file(&reference))?.path());
    }
    let directory = host.path(BIN_DIR);
    for plugin in found.iter().map(PathBuf::as_path).chain(plugins.iter().copied()) {
        let link = directory.join(plugin.file_name().unwrap_or_default());
        symlink(plugin, &link).map_err(HarnessError::file(link))?;
    }
    Ok(())
}
