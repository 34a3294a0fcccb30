//! The cluster: a node with containerd and a kubelet, and the control plane, in the node's namespaces.

mod reboot;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use gybe_containerd_tests::containerd::SOCKET;
use gybe_containerd_tests::{
    Conflist, Generation, HarnessError, HostProcess, Node, Programs, WORKLOAD, program_under_test,
};
use gybe_integration::failure::Failure;
use nix::sched::{CloneFlags, setns};
use serde_json::Value;

use crate::api::{Api, wait_until};
use crate::components::{self, KERNEL_SETTINGS};
use crate::credentials::{self, DIRECTORY, kubeconfig};
use crate::network::{self, NODE};

/// The home directory of programs that run on the node: kubectl and helm keep caches there.
pub(crate) const HOME: &str = "/run/gybe/home";

/// What the kubelet logs when it has started.
const KUBELET_STARTED: &str = "Started kubelet";

/// A running cluster. It ends when it is dropped or the process ends.
pub(crate) struct Cluster {
    pub(crate) api: Api,
    pub(crate) node: Node,
    programs: PathBuf,
    logs: PathBuf,
    apiserver: HostProcess,
    // Kept for its lifetime: the programs end with the node.
    components: Vec<HostProcess>,
}

impl Cluster {
    /// Starts the cluster and returns when its node is ready. This process joins the node's network namespace.
    ///
    /// `programs` has Kubernetes' programs and etcd; the logs of all programs are written to `logs`. containerd is of
    /// this generation and runs `runc`; without it, the machine's runc.
    pub(crate) fn start(
        programs: PathBuf,
        logs: PathBuf,
        generation: Generation,
        runc: Option<&Path>,
    ) -> Result<Cluster, Failure> {
        if logs.exists() {
            fs::remove_dir_all(&logs)?;
        }
        fs::create_dir_all(&logs)?;
        let host_init = program_under_test("gybe-host-init")?;
        let parts = Programs { host_init: &host_init, plugins: &[], runc };
        let conflist = Conflist::reference_plugins(generation);
        let node = Node::start(parts, generation, &conflist, logs.join("containerd.log"))?;
        node.import(&WORKLOAD)?;
        network::set_up(node.host())?;
        setns(File::open(node.host().netns())?, CloneFlags::CLONE_NEWNET)?;
        credentials::write(&node.host().path(DIRECTORY))?;
        components::write_audit_policy(node.host())?;

        let start =
            |name: &str, arguments, ready| start_program((&node, &programs, &logs), name, arguments, ready);
        let mut running = vec![start("etcd", components::etcd(), "ready to serve client requests")?];
        let apiserver = start("kube-apiserver", components::apiserver(), "Serving securely")?;
        let api = Api::connect(&node.host().path(kubeconfig("admin")))?;
        wait_until("the API server is ready", || api.is_ready())?;
        running.push(start("kube-controller-manager", components::controller_manager(), "Serving securely")?);
        running.push(start("kube-scheduler", components::scheduler(), "Serving securely")?);
        prepare_kubelet(&node)?;
        running.push(start("kubelet", components::kubelet(), KUBELET_STARTED)?);
        let cluster = Cluster { api, node, programs, logs, apiserver, components: running };
        wait_until("the node is ready", || cluster.is_node_ready())?;
        Ok(cluster)
    }

    /// Starts a program of the cluster and returns when a line of its log contains `ready`.
    fn start_program(
        &self,
        name: &str,
        arguments: Vec<String>,
        ready: &'static str,
    ) -> Result<HostProcess, HarnessError> {
        start_program((&self.node, &self.programs, &self.logs), name, arguments, ready)
    }

    /// Starts another program of the cluster, which runs as long as the cluster, and returns at once. Its standard
    /// output and error are its log.
    pub(crate) fn start_component(&mut self, name: &str, arguments: &[String]) -> Result<(), Failure> {
        let mut command = self.node.host().command(&self.programs, "sh");
        command.args(["-c", "exec \"$@\" >&2", "sh"]).arg(self.programs.join(name)).args(arguments);
        let log = self.logs.join(format!("{name}.log"));
        self.components.push(HostProcess::start(command, "\n", &log)?);
        Ok(())
    }

    /// Stops the API server for some time: connections to it are accepted by the kernel, and not answered.
    pub(crate) fn stop_apiserver_for(&self, time: Duration) -> Result<(), Failure> {
        Ok(self.apiserver.pause(time)?)
    }

    fn is_node_ready(&self) -> Result<bool, Failure> {
        let node = self.api.get(&format!("/api/v1/nodes/{NODE}"))?;
        Ok(node.is_some_and(|node| has_condition(&node, "Ready")))
    }

    /// Runs a program of the machine or of Kubernetes on the node and returns its standard output.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Result<String, Failure> {
        self.spawn(program, arguments)?.output()
    }

    /// Starts a program of the machine or of Kubernetes on the node.
    pub(crate) fn spawn(&self, program: &str, arguments: &[&str]) -> Result<NodeProcess, Failure> {
        let mut command = self.node.host().command(&self.programs, program);
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

    /// Runs a shell on the node, for a developer.
    pub(crate) fn shell(&self, directory: &Path) -> Result<(), Failure> {
        let shell = std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".into());
        let mut command = self.node.host().command(&self.programs, shell);
        command.env("KUBECONFIG", kubeconfig("admin")).env("LOGS", &self.logs).current_dir(directory);
        for variable in ["HOME", "TERM"] {
            command.envs(std::env::var(variable).map(|value| (variable, value)));
        }
        command.stdin(Stdio::inherit()).status()?;
        Ok(())
    }
}

fn start_program(
    (node, programs, logs): (&Node, &Path, &Path),
    name: &str,
    arguments: Vec<String>,
    ready: &'static str,
) -> Result<HostProcess, HarnessError> {
    let mut command = node.host().command(programs, programs.join(name));
    command.args(arguments);
    HostProcess::start_and_wait(command, ready, &logs.join(format!("{name}.log")))
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

/// Writes the kubelet's configuration, makes its cgroup in each hierarchy, and hides the machine's kernel settings.
fn prepare_kubelet(node: &Node) -> Result<(), Failure> {
    let host = node.host();
    let configuration = components::kubelet_configuration(&host.cgroup(), SOCKET);
    fs::write(host.path(credentials::file("kubelet.json")), configuration.to_string())?;
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
