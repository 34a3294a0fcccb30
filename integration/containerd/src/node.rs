//! One machine of a cluster as far as pods are concerned: a stage, a containerd on it, its plugins
//! and the kubelet's connection; not the pods.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::agent::{Keeping, Place};
use crate::image::Image;
use crate::stage::starting;
use crate::{Agent, Call, Chain, Containerd, Cri, Generation, Stage, Trouble, calls, config, pause_image};

/// The programs of this crate, which only its tests know by path.
#[derive(Debug, Clone, Copy)]
pub struct Programs<'p> {
    /// `gybe-stage`
    pub stage: &'p Path,
    /// The plugins under test, by file name.
    pub plugins: &'p [&'p Path],
}

/// A node that can run sandboxes.
#[derive(Debug)]
pub struct Node {
    /// The kubelet's connection.
    pub cri: Cri,
    containerd: Containerd,
    generation: Generation,
    log: PathBuf,
    /// The agent's lines stand beside containerd's.
    log_of_agent: PathBuf,
    stage: Stage,
}

impl Node {
    /// Starts one whose network is `chain`; what containerd logs is in `log` afterwards.
    pub fn start(
        programs: Programs<'_>,
        generation: Generation,
        chain: &Chain,
        log: PathBuf,
    ) -> Result<Node, Trouble> {
        let log_of_agent = log.with_extension("agent.log");
        for old in [&log, &log_of_agent] {
            let _ = fs::remove_file(old);
        }
        let stage = Stage::open(programs.stage)?;
        furnish(&stage, generation, programs.plugins)?;
        configure(&stage, chain)?;
        let containerd = Containerd::start(&stage, generation, &log)?;
        import(&stage, generation, pause_image::archive().map_err(Trouble::file("the pause image"))?)?;
        let cri = connect(&stage)?;
        cri.wait_for_image(config::PAUSE_IMAGE)?;
        Ok(Node { cri, containerd, generation, log, log_of_agent, stage })
    }

    /// Its namespaces.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Brings one more image, so that containers can be made of it.
    pub fn import(&self, image: &Image<'_>) -> Result<(), Trouble> {
        let archive = image.archive().map_err(Trouble::file(image.name))?;
        import(&self.stage, self.generation, archive)?;
        self.cri.wait_for_image(image.name)
    }

    /// Starts a node agent that knows the pods whose manifests are published; it serves.
    pub fn start_agent(&self, program: &Path) -> Result<Agent, Trouble> {
        Agent::telling(&self.place(), program)
    }

    /// Starts one that also keeps Gybe in the chain, with the programs of this image (a directory
    /// inside the stage); what it has done by now nobody knows.
    pub fn begin_keeping(&self, image: &Path) -> Result<Agent, Trouble> {
        Agent::keeping(&self.place(), image)
    }

    /// The same, told and started otherwise.
    pub fn begin_keeping_as(&self, how: &Keeping<'_>) -> Result<Agent, Trouble> {
        Agent::keeping_as(&self.place(), how)
    }

    fn place(&self) -> Place<'_> {
        Place { stage: &self.stage, log: &self.log_of_agent }
    }

    /// What containerd has logged so far.
    pub fn containerds_log(&self) -> Result<String, Trouble> {
        fs::read_to_string(&self.log).map_err(Trouble::file(&self.log))
    }

    /// Makes a reference plugin begin its work a second late, as on a node that has too much to do.
    pub fn slow_down(&self, plugin: &str) -> Result<(), Trouble> {
        let link = self.stage.path(config::BIN_DIR).join(plugin);
        let real = fs::read_link(&link).map_err(Trouble::file(&link))?;
        let script = format!("#!/bin/sh\nsleep 1\nexec {}\n", real.display());
        let written = fs::remove_file(&link).and_then(|()| fs::write(&link, script));
        let written = written.and_then(|()| fs::set_permissions(&link, Permissions::from_mode(0o755)));
        written.map_err(Trouble::file(link))
    }

    /// What its agents have said so far.
    pub fn agents_log(&self) -> Result<String, Trouble> {
        fs::read_to_string(&self.log_of_agent).map_err(Trouble::file(&self.log_of_agent))
    }

    /// Its containerd.
    pub fn containerd(&self) -> &Containerd {
        &self.containerd
    }

    /// One more connection, for calls that another thread makes.
    pub fn connect(&self) -> Result<Cri, Trouble> {
        connect(&self.stage)
    }

    /// Every call of the recorder so far.
    pub fn calls(&self) -> Result<Vec<Call>, Trouble> {
        Call::all_in(&self.stage.path(calls::DIRECTORY))
    }

    /// Kills containerd without warning. Pods and plugins under way live on.
    pub fn lose_containerd(self) -> Result<LostNode, Trouble> {
        self.containerd.kill()?;
        Ok(LostNode { generation: self.generation, log: self.log, stage: self.stage })
    }
}

/// A node whose containerd was killed.
#[derive(Debug)]
pub struct LostNode {
    generation: Generation,
    log: PathBuf,
    stage: Stage,
}

impl LostNode {
    /// Its namespaces.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Starts containerd again, with all it had written down.
    pub fn recover(self) -> Result<Node, Trouble> {
        let containerd = Containerd::start(&self.stage, self.generation, &self.log)?;
        Ok(Node {
            cri: connect(&self.stage)?,
            containerd,
            generation: self.generation,
            log_of_agent: self.log.with_extension("agent.log"),
            log: self.log,
            stage: self.stage,
        })
    }
}

fn connect(stage: &Stage) -> Result<Cri, Trouble> {
    let cri = Cri::connect(&stage.path(config::SOCKET), stage.cgroup())?;
    cri.wait_until_serving()?;
    Ok(cri)
}

/// The plugins lie where they were built or installed; the directory only names them.
fn furnish(stage: &Stage, generation: Generation, more: &[&Path]) -> Result<(), Trouble> {
    let reference = generation.reference_plugins()?;
    let mut found = Vec::new();
    for entry in fs::read_dir(&reference).map_err(Trouble::file(&reference))? {
        found.push(entry.map_err(Trouble::file(&reference))?.path());
    }
    let directory = stage.path(config::BIN_DIR);
    for plugin in found.iter().map(PathBuf::as_path).chain(more.iter().copied()) {
        let link = directory.join(plugin.file_name().unwrap_or_default());
        symlink(plugin, &link).map_err(Trouble::file(link))?;
    }
    Ok(())
}

/// The primary's file.
pub const CONFLIST: &str = "10-gybe-test.conflist";

fn configure(stage: &Stage, chain: &Chain) -> Result<(), Trouble> {
    let path = stage.path(config::CONF_DIR).join(CONFLIST);
    fs::write(&path, chain.written(0)).map_err(Trouble::file(path))
}

/// `ctr` imports into the namespace the CRI service looks in.
fn import(stage: &Stage, generation: Generation, image: impl AsRef<[u8]>) -> Result<(), Trouble> {
    let archive = "/run/gybe/image.tar";
    let outside = stage.path(archive);
    fs::write(&outside, image).map_err(Trouble::file(outside))?;
    let programs = generation.programs()?;
    let program = programs.join("ctr");
    let mut command = stage.command(&programs, &program);
    command.args(["--address", config::SOCKET, "--namespace", "k8s.io"]);
    command.args(["images", "import", archive]);
    let output = command.output().map_err(starting(&program))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Trouble::Ended { program, said: String::from_utf8_lossy(&output.stderr).into_owned() })
}
