//! The cluster: nodes with containerd and a kubelet, and the control plane in the namespaces of the first.

mod node;
mod reboot;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use gybe_containerd_tests::{Generation, HostProcess, Image, SimulatedHost, WORKLOAD, program_under_test};
use gybe_integration::failure::Failure;
use nix::sched::{CloneFlags, setns};
use serde_json::Value;

use crate::api::{Api, wait_until};
use crate::components;
use crate::credentials::{self, DIRECTORY, kubeconfig};
use crate::network::{NodeNumber, Switch};

use node::NodeParts;

pub(crate) use node::ClusterNode;

/// The home directory of programs that run on the node: kubectl and helm keep caches there.
pub(crate) const HOME: &str = "/run/gybe/home";

/// The directory of the archives of images, beside the logs.
const IMAGES: &str = "images";

/// A running cluster. It ends when it is dropped or the process ends.
pub(crate) struct Cluster {
    pub(crate) api: Api,
    /// The first one has the control plane.
    nodes: Vec<ClusterNode>,
    parts: NodeParts,
    switch: Switch,
    /// The names of the imported images, and their archives; none in a cluster of one node.
    images: Mutex<Vec<(String, PathBuf)>>,
    apiserver: HostProcess,
    // Kept for its lifetime: the programs end with the node.
    _control_plane: Vec<HostProcess>,
}

impl Cluster {
    /// Starts a cluster of so many nodes and returns when they are ready. This process joins the first node's network
    /// namespace.
    ///
    /// `programs` has Kubernetes' programs and etcd; the logs of all programs are written to `logs`. containerd is of
    /// this generation and runs `runc`; without it, the machine's runc.
    pub(crate) fn start(
        programs: PathBuf,
        logs: PathBuf,
        generation: Generation,
        runc: Option<PathBuf>,
        nodes: u8,
    ) -> Result<Cluster, Failure> {
        if logs.exists() {
            fs::remove_dir_all(&logs)?;
        }
        fs::create_dir_all(logs.join(IMAGES))?;
        let host_init = program_under_test("gybe-host-init")?;
        let switch = Switch::start(&host_init)?;
        let parts = NodeParts { programs, logs, host_init, generation, runc };
        let mut first = ClusterNode::start(&parts, NodeNumber::FIRST, &switch)?;
        setns(File::open(first.host().netns())?, CloneFlags::CLONE_NEWNET)?;
        credentials::write(&first.host().path(DIRECTORY))?;
        components::write_audit_policy(first.host())?;

        let mut control_plane =
            vec![first.start_program("etcd", components::etcd(), "ready to serve client requests")?];
        let apiserver = first.start_program("kube-apiserver", components::apiserver(), "Serving securely")?;
        let api = Api::connect(&first.host().path(kubeconfig("admin")))?;
        wait_until("the API server is ready", || api.is_ready())?;
        for (name, arguments) in [
            ("kube-controller-manager", components::controller_manager()),
            ("kube-scheduler", components::scheduler()),
        ] {
            control_plane.push(first.start_program(name, arguments, "Serving securely")?);
        }
        first.register(None)?;
        let mut cluster = Cluster {
            api,
            nodes: vec![first],
            parts,
            switch,
            images: Mutex::default(),
            apiserver,
            _control_plane: control_plane,
        };
        for number in NodeNumber::up_to(nodes).skip(1) {
            cluster.add_node(number, None)?;
        }
        cluster.import(&WORKLOAD)?;
        cluster.nodes.iter().try_for_each(|node| cluster.wait_for_node(node.number))?;
        Ok(cluster)
    }

    /// The nodes that run. The first one has the control plane.
    pub(crate) fn nodes(&self) -> &[ClusterNode] {
        &self.nodes
    }

    /// The first node's host.
    pub(crate) fn host(&self) -> &SimulatedHost {
        self.first().host()
    }

    #[expect(clippy::indexing_slicing, reason = "a cluster has a first node as long as it runs")]
    pub(crate) fn first(&self) -> &ClusterNode {
        &self.nodes[0]
    }

    /// Returns a node that runs.
    pub(crate) fn node(&self, number: NodeNumber) -> Result<&ClusterNode, Failure> {
        let node = self.nodes.iter().find(|node| node.number == number);
        node.ok_or_else(|| Failure::new(format!("node {number} does not run")))
    }

    /// Returns the node on which a pod runs.
    pub(crate) fn node_of(&self, pod: &Value) -> Result<&ClusterNode, Failure> {
        let name = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
        let node = self.nodes.iter().find(|node| node.number.to_string() == name);
        node.ok_or_else(|| Failure::new(format!("a pod runs on node {name:?}, which does not run")))
    }

    /// As [`Cluster::node`], to change it.
    pub(crate) fn node_mut(&mut self, number: NodeNumber) -> Result<&mut ClusterNode, Failure> {
        let node = self.nodes.iter_mut().find(|node| node.number == number);
        node.ok_or_else(|| Failure::new(format!("node {number} does not run")))
    }

    /// Starts a node with the images of the others, and returns when its kubelet has started.
    pub(crate) fn add_node(&mut self, number: NodeNumber, taint: Option<&str>) -> Result<(), Failure> {
        self.add_node_of(number, taint, self.parts.generation)
    }

    /// As [`Cluster::add_node`], with containerd of this generation.
    pub(crate) fn add_node_of(
        &mut self,
        number: NodeNumber,
        taint: Option<&str>,
        generation: Generation,
    ) -> Result<(), Failure> {
        let parts = NodeParts { generation, ..self.parts.clone() };
        let mut node = ClusterNode::start(&parts, number, &self.switch)?;
        credentials::copy(&self.host().path(DIRECTORY), &node.host().path(DIRECTORY))?;
        for (name, archive) in self.images.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            node.runtime.import_archive(name, &fs::read(archive)?)?;
        }
        node.register(taint)?;
        self.nodes.push(node);
        Ok(())
    }

    /// Kills all processes of a node, and ends its network, as when its machine loses power.
    pub(crate) fn kill_node(&mut self, number: NodeNumber) {
        self.nodes.retain(|node| node.number != number);
    }

    /// Imports an image on each node.
    pub(crate) fn import(&self, image: &Image<'_>) -> Result<(), Failure> {
        self.import_archive(image.name, &image.archive()?)
    }

    /// Imports an OCI archive of the image with this name on each node, and keeps it for a node that replaces another.
    pub(crate) fn import_archive(&self, name: &str, archive: &[u8]) -> Result<(), Failure> {
        for node in &self.nodes {
            node.runtime.import_archive(name, archive)?;
        }
        if self.nodes.len() == 1 {
            return Ok(());
        }
        let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.parts.logs.join(IMAGES).join(format!("{}.tar", images.len()));
        fs::write(&path, archive)?;
        images.push((name.to_owned(), path));
        Ok(())
    }

    /// Stops the API server for some time: connections to it are accepted by the kernel, and not answered.
    pub(crate) fn stop_apiserver_for(&self, time: Duration) -> Result<(), Failure> {
        let _stopped = self.apiserver.suspend()?;
        sleep(time);
        Ok(())
    }

    /// Waits until the API server has a ready node of this number.
    pub(crate) fn wait_for_node(&self, number: NodeNumber) -> Result<(), Failure> {
        wait_until(&format!("node {number} is ready"), || {
            let node = self.api.get(&format!("/api/v1/nodes/{number}"))?;
            Ok(node.is_some_and(|node| has_condition(&node, "Ready")))
        })
    }

    /// Runs a program of the machine or of Kubernetes on the first node and returns its standard output.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Result<String, Failure> {
        self.spawn(program, arguments)?.output()
    }

    /// Runs such a program and returns its exit code and its standard output.
    pub(crate) fn run_to_code(
        &self,
        program: &str,
        arguments: &[&str],
    ) -> Result<(Option<i32>, String), Failure> {
        let output = self.spawn(program, arguments)?.process.wait_with_output()?;
        Ok((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    /// Starts a program of the machine or of Kubernetes on the first node.
    pub(crate) fn spawn(&self, program: &str, arguments: &[&str]) -> Result<NodeProcess, Failure> {
        let mut command = self.host().command(&self.parts.programs, program);
        command.args(arguments).env("KUBECONFIG", kubeconfig("admin")).env("HOME", HOME);
        let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        Ok(NodeProcess { command: format!("{program} {}", arguments.join(" ")), process })
    }

    /// Returns the error with the description of these pods and the end of their logs.
    pub(crate) fn with_pods(&self, error: &Failure, namespace: &str, selection: &[&str]) -> Failure {
        describe_pods(error, namespace, selection, |arguments| {
            self.run("timeout", &[&["20", "kubectl"], arguments].concat())
        })
    }

    /// Runs a shell on the first node, for a developer.
    pub(crate) fn shell(&self, directory: &Path) -> Result<(), Failure> {
        let shell = std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".into());
        let mut command = self.host().command(&self.parts.programs, shell);
        command.env("KUBECONFIG", kubeconfig("admin")).env("LOGS", &self.parts.logs).current_dir(directory);
        for variable in ["HOME", "TERM"] {
            command.envs(std::env::var(variable).map(|value| (variable, value)));
        }
        command.stdin(Stdio::inherit()).status()?;
        Ok(())
    }
}

/// A program that runs on the node. It ends with the node at the latest.
#[derive(Debug)]
pub(crate) struct NodeProcess {
    command: String,
    process: Child,
}

impl NodeProcess {
    /// Waits until the program has ended, and returns its standard output.
    pub(crate) fn output(self) -> Result<String, Failure> {
        let NodeProcess { command, process } = self;
        let output = process.wait_with_output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        Err(Failure::new(format!("{command}: {}: {stdout}{stderr}", output.status)))
    }
}

/// Returns the error with the description of these pods and the end of their logs, by kubectl.
pub(crate) fn describe_pods(
    error: &Failure,
    namespace: &str,
    selection: &[&str],
    kubectl: impl Fn(&[&str]) -> Result<String, Failure>,
) -> Failure {
    let run = |command: &[&str]| {
        let output = kubectl(&[&["-n", namespace], command, selection].concat());
        output.unwrap_or_else(|error| format!("{error:?}"))
    };
    let description = run(&["describe", "pods"]);
    let logs = run(&["logs", "--all-containers", "--prefix", "--tail=30"]);
    Failure::new(format!("{error:?}\n{description}\n{logs}"))
}

/// Reports whether a condition of an object's status is `True`.
pub(crate) fn has_condition(object: &Value, condition: &str) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|it| {
        it.get("type").and_then(Value::as_str) == Some(condition)
            && it.get("status").and_then(Value::as_str) == Some("True")
    })
}
