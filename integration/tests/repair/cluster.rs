//! A node with an agent, the process that repairs pods, and an API server: real processes, sockets and namespaces, with
//! the node's files in a directory.

use crate::node::{Node, Pod, WITHOUT_GYBE};
use gybe_api_server::{ApiServer, ServiceAccount, Verb};
use gybe_integration::programs::{ours, path_of_ours};
use gybe_test_support::{Agent, Layout, agent_environment, cluster_environment, wait_until, write_volume};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

const CONF: &str = "etc/cni/net.d";
const FILLER: &str = "filler";

/// Everything but the two processes of Gybe. Its mounts are those of the calling thread: see
/// `gybe_integration::namespace::with_own_mounts`.
pub(crate) struct Cluster {
    pub(crate) node: Node,
    pub(crate) server: ApiServer,
    /// Of the agent's processes.
    pub(crate) environment: Vec<(&'static str, String)>,
    _account: ServiceAccount,
}

impl Cluster {
    /// A node whose conf directory is a small disk, in a cluster that grants the rights of `repair-delete` and
    /// `repair-label`.
    pub(crate) fn new(test: &str) -> Self {
        let node = Node::new(&format!("cluster-{test}"), "nft");
        let conf = node.root.join(CONF);
        let _ = fs::remove_dir_all(&conf);
        fs::create_dir_all(&conf).unwrap();
        gybe_integration::namespace::sh(&format!(
            "mount -t tmpfs -o size=64k small {}; mount -t tmpfs run /run; mkdir /run/gybe",
            conf.display()
        ));
        for directory in ["run/gybe", "config", "image"] {
            node.root.create_dir(directory);
        }
        gybe_integration::namespace::sh(&format!("mount --bind {}/run/gybe /run/gybe", node.root.display()));
        let primary = json!({ "type": "bridge", "bridge": "cni0" });
        let chain = json!({ "cniVersion": "1.0.0", "name": "pods", "plugins": [primary] });
        node.root.write(format!("{CONF}/10-pods.conflist"), chain.to_string());
        for program in ["opt/cni/bin/bridge", "opt/cni/bin/loopback", "image/gybe", "image/gybe-cni"] {
            let answer = r#"{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}"#;
            let path = node.root.write(program, format!("#!/bin/sh\necho '{answer}'\n"));
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::copy(path_of_ours("gybe-cni").unwrap(), node.root.join("image/gybe-cni")).unwrap();
        let server = ApiServer::start().unwrap();
        server.permit(Verb::Delete, "pods");
        server.permit(Verb::Patch, "pods/status");
        server.put(json!({ "kind": "Node", "metadata": { "name": "node-1" } })).unwrap();
        let account = server.service_account(&node.root.join("account")).unwrap();
        Self { node, server, environment: Vec::new(), _account: account }
    }

    /// Replaces the mounted ConfigMap.
    pub(crate) fn set(&self, settings: &[(&str, &str)]) {
        write_volume(&self.node.root.join("config"), settings.iter().copied()).unwrap();
    }

    /// Fills the disk of the conf directory.
    pub(crate) fn fill_disk(&self) {
        let mut file = File::create(self.node.root.join(CONF).join(FILLER)).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    }

    pub(crate) fn free_disk(&self) {
        let _ = fs::remove_file(self.node.root.join(CONF).join(FILLER));
    }

    #[allow(clippy::disallowed_methods, reason = "they run in the background of the test")]
    fn command(&self) -> Command {
        // They end with the thread that started them, also if the test is killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(path_of_ours("gybe").unwrap());
        command
    }

    /// Starts an agent.
    pub(crate) fn start_agent(&self) -> Agent {
        let mut command = self.command();
        command.arg("node").env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.envs(agent_environment(&self.node.root, Layout::Node));
        command.envs(cluster_environment(self.server.address()));
        command.envs(self.environment.iter().cloned());
        Agent::start(command)
    }

    /// Starts both processes, and waits until the agent is ready: the other one probes the backends for it.
    pub(crate) fn start(&self) -> (Agent, Agent) {
        let (agent, repair) = (self.start_agent(), self.start_repair());
        wait_until("readiness", || agent.is_ready());
        (agent, repair)
    }

    /// Starts the process of the container `repair`.
    pub(crate) fn start_repair(&self) -> Agent {
        let mut command = self.command();
        command.args(["probe", "--watch", "--keep", "--repair", "--root"]).arg(self.node.root.path());
        // An unprivileged user may not open the default lock of the legacy programs.
        command.env("XTABLES_LOCKFILE", "/proc/self/ns/net");
        Agent::start(command)
    }

    /// The example's pod on this node, changed by `change`, in the API.
    pub(crate) fn put(&self, namespace: &str, pod: &Pod, change: impl FnOnce(&mut Value)) {
        self.server.put_pod(manifest(namespace, pod, change));
    }

    /// A pod of the mesh whose namespace has no rules, with the cached result of an ended ADD and a process.
    pub(crate) fn broken(&self, namespace: &str, number: u32) -> Pod {
        let pod = Pod::new(number);
        self.put(namespace, &pod, |_| ());
        self.cached(namespace, &pod, &pod.name(), |_| ());
        self.node.start(&pod);
        pod
    }

    /// The cached result of the ADD of a sandbox with the annotations of the example's pod, changed by `change`.
    pub(crate) fn cached(&self, namespace: &str, pod: &Pod, id: &str, change: impl FnOnce(&mut Value)) {
        let mut made = manifest(namespace, pod, |_| ());
        change(&mut made);
        let arguments =
            [["K8S_POD_NAMESPACE", namespace], ["K8S_POD_NAME", &pod.name()], ["K8S_POD_UID", &pod.uid()]];
        let annotations = &made["metadata"]["annotations"];
        // An older runtime passes none.
        let passed = if annotations.is_null() {
            json!({})
        } else {
            json!({ "io.kubernetes.cri.pod-annotations": annotations })
        };
        let info = json!({
            "kind": "cniCacheV1", "containerId": format!("container-{id}"), "ifName": "eth0",
            "netns": format!("/var/run/netns/{id}"), "cniArgs": arguments,
            "capabilityArgs": passed,
            "result": { "ips": [{ "address": format!("{}/24", pod.address()) }] },
            "config": WITHOUT_GYBE,
        });
        let directory = self.node.root.join("var/lib/cni/results");
        fs::write(directory.join(format!(".{id}")), info.to_string()).unwrap();
        fs::rename(directory.join(format!(".{id}")), directory.join(format!("pods-{id}-eth0"))).unwrap();
    }

    /// The names of the pods in the API.
    pub(crate) fn names(&self) -> Vec<String> {
        let pods = self.server.objects("Pod");
        pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    pub(crate) fn has(&self, pod: &Pod) -> bool {
        self.names().contains(&pod.name())
    }

    /// The number of deletions that the API server has received.
    pub(crate) fn deletions(&self) -> usize {
        self.server.requests().iter().filter(|request| request.method == "DELETE").count()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // In the order of their mounting, last first.
        let conf = self.node.root.join(CONF);
        for path in [PathBuf::from("/run/gybe"), PathBuf::from("/run"), conf] {
            let _ = nix::mount::umount2(&path, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

fn manifest(namespace: &str, pod: &Pod, change: impl FnOnce(&mut Value)) -> Value {
    let mut manifest: Value = serde_json::from_str(include_str!("../../../examples/pod.json")).unwrap();
    manifest["metadata"]["namespace"] = json!(namespace);
    manifest["metadata"]["name"] = json!(pod.name());
    manifest["metadata"]["uid"] = json!(pod.uid());
    manifest["metadata"]["creationTimestamp"] = json!("2026-01-02T03:04:05Z");
    manifest["spec"]["nodeName"] = json!("node-1");
    change(&mut manifest);
    manifest
}

/// Writes the rules of the default policy into the pod's namespace, as an ADD or an operator does.
pub(crate) fn redirect(pod: &Pod) {
    let path = pod.netns.path().display().to_string();
    let policy = r#"{"inbound_ports_exclude":[15020,15021,15090],"outbound_ports_exclude":[3306]}"#;
    let ran = ours("gybe", &["apply", "--netns", &path, "--policy", "-"], policy).unwrap();
    assert_eq!(ran.code, Some(0), "{ran:?}");
}
