//! A node: its agent, its API server, its entry, and the pods that are added to it.

use gybe_api_server::{ApiServer, Verb};
use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::plugin_call::{PluginCall, PluginDir};
use gybe_integration::programs::{Run, ours, path_of_ours};
use gybe_integration::ztunnel::{Fault, Mesh, Observed, Ztunnel};
use gybe_plugin::facts::ambient::{AmbientPod, HandOverBy, LeaveStep, PodUid};
use gybe_plugin::facts::{self, AgentFault};
use gybe_test_support::{
    Agent, Layout, PATIENCE, agent_environment, cluster_environment, wait_for, wait_until,
};
use serde_json::{Map, Value, json};
use std::fs;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

/// The label by which the default selectors decide.
pub(crate) const MODE: &str = "istio.io/dataplane-mode";

/// How long an ADD of a test waits for the agent and for ztunnel, in milliseconds: longer than a hung ztunnel is
/// connected.
const DEADLINE: u64 = 8_000;

pub(crate) struct Node {
    // Dropped first: an agent that runs would write into a directory that is being removed.
    pub(crate) agent: Option<Agent>,
    pub(crate) server: ApiServer,
    pub(crate) directory: Arc<PluginDir>,
    /// The agent's soft and hard limits of open files; none for those of the test.
    files: Option<[u32; 2]>,
}

impl Node {
    /// A node with the namespaces `shop`, which is ambient, and `plain`, and a running agent.
    pub(crate) fn start(test: &str) -> Self {
        Self::with_settings(test, &[])
    }

    /// The same, with these keys in the ConfigMap.
    pub(crate) fn with_settings(test: &str, settings: &[(&str, &str)]) -> Self {
        Self::with_limits(test, settings, None)
    }

    /// The same, whose agent starts with these limits of open files.
    pub(crate) fn with_limits(test: &str, settings: &[(&str, &str)], files: Option<[u32; 2]>) -> Self {
        let directory = Arc::new(PluginDir::new(test));
        for name in ["net.d", "bin", "cache", "config", "probe", "istio"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let primary = json!({ "cniVersion": "1.0.0", "name": "pods", "plugins": [{ "type": "bridge" }] });
        fs::write(directory.path().join("net.d/10-pods.conflist"), primary.to_string()).unwrap();
        let default = [("plugin_dir", "confirmed"), ("backend", "nft")];
        for (key, value) in default.iter().chain(settings) {
            fs::write(directory.path().join("config").join(key), value).unwrap();
        }
        let server = ApiServer::start().unwrap();
        server.permit(Verb::Watch, "namespaces");
        server.permit(Verb::Patch, "pods/status");
        let mut node = Self { agent: None, server, directory, files };
        node.put_namespace("shop", &json!({ MODE: "ambient" }));
        node.put_namespace("plain", &json!({}));
        node.start_agent();
        node
    }

    pub(crate) fn start_agent(&mut self) {
        let gybe = path_of_ours("gybe").unwrap();
        let kubeconfig = self.server.kubeconfig(self.directory.path()).unwrap();
        #[expect(clippy::disallowed_methods, reason = "the agent runs in the background of the test")]
        let mut command = match self.files {
            None => Command::new(&gybe),
            Some([soft, hard]) => {
                let mut shell = Command::new("/bin/sh");
                shell
                    .arg("-c")
                    .arg(format!("ulimit -S -n {soft} && ulimit -H -n {hard} && exec \"$0\" \"$@\""));
                shell.arg(&gybe);
                shell
            }
        };
        command.env_clear().envs(agent_environment(self.directory.path(), Layout::Short));
        command.envs(cluster_environment(self.server.address()));
        command.env("GYBE_PROGRAMS_DIR", gybe.parent().unwrap());
        command.env("AMBIENT_ENABLED", "true").env("ZTUNNEL_UDS_ADDRESS", self.socket());
        command.args(["node", "--install", "--node-name=node-1", "--kubeconfig"]).arg(kubeconfig);
        let agent = Agent::start_serving(command);
        wait_until("the entry has ambient mode", || self.entry().is_some_and(|it| it["ambient"].is_object()));
        self.agent = Some(agent);
    }

    pub(crate) fn agent(&self) -> &Agent {
        self.agent.as_ref().unwrap()
    }

    /// The agent's socket for the plugin and the container `repair`.
    pub(crate) fn facts_socket(&self) -> PathBuf {
        PathBuf::from(self.entry().unwrap()["facts"]["socket"].as_str().unwrap())
    }

    /// Hands a pod over to the agent, as the container `repair` does.
    pub(crate) fn hand_over(&self, pod: &Pod, netns: &Namespace, by: HandOverBy) -> Result<(), AgentFault> {
        let socket = self.facts_socket();
        let pod = AmbientPod::parse(&pod.uid, pod.namespace, &pod.name, "default").unwrap();
        facts::hand_over(&socket, &pod, netns.as_fd(), by, Instant::now() + PATIENCE)
    }

    /// Reports that a pod leaves, as the container `repair` does.
    pub(crate) fn leave(&self, pod: &Pod, step: LeaveStep) -> Result<(), AgentFault> {
        let uid = PodUid::parse(&pod.uid).unwrap();
        facts::leave(&self.facts_socket(), &uid, step, Instant::now() + PATIENCE)
    }

    /// Kills the agent with SIGKILL; its socket files stay.
    pub(crate) fn kill_agent(&mut self) {
        drop(self.agent.take());
    }

    /// The socket at which ztunnel connects.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("ztunnel/ztunnel.sock")
    }

    /// The directory that the agent shares with the container `repair`.
    pub(crate) fn shared_directory(&self) -> PathBuf {
        self.directory.path().join("probe")
    }

    /// The entry that the agent has written.
    fn entry(&self) -> Option<Value> {
        let text = fs::read_to_string(self.directory.path().join("net.d/10-pods.conflist")).ok()?;
        let list: Value = serde_json::from_str(&text).ok()?;
        list["plugins"].as_array()?.iter().find(|it| it["type"] == "gybe-cni").cloned()
    }

    pub(crate) fn put_namespace(&self, name: &str, labels: &Value) {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } });
        self.server.put(namespace).unwrap();
    }

    /// Writes the pod's manifest as a source of facts, which does not have the labels of namespaces; returns the directory.
    pub(crate) fn put_manifest(&self, pod: &Pod) -> PathBuf {
        let manifests = self.directory.path().join("manifests");
        let path = manifests.join(pod.reference()).with_extension("json");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, pod.object("Running").to_string()).unwrap();
        manifests
    }

    /// Starts the stand-in, and waits until it is ready.
    pub(crate) fn ztunnel(&self, addresses: &[IpAddr]) -> Ztunnel {
        let mesh = Mesh { addresses: addresses.iter().copied().collect(), ..Mesh::default() };
        let ztunnel = Ztunnel::start(&self.socket(), Fault::default(), mesh).unwrap();
        observe(&ztunnel, "ztunnel is ready", |observed| observed.is_ready);
        ztunnel
    }

    /// Makes the ADD of a pod with the node's entry.
    pub(crate) fn add(&self, pod: &Pod, netns: &Namespace) -> Run {
        self.call("ADD", pod, netns)
    }

    pub(crate) fn call(&self, verb: &str, pod: &Pod, netns: &Namespace) -> Run {
        self.prepared(verb, pod, netns).run(&self.directory, "").unwrap()
    }

    /// Returns a call with the node's entry.
    pub(crate) fn prepared(&self, verb: &str, pod: &Pod, netns: &Namespace) -> PluginCall {
        let mut call = PluginCall::add(netns, &self.directory).unwrap().with_verb(verb);
        let Pod { namespace, name, uid, .. } = pod;
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID=x;K8S_POD_UID={uid}"
        );
        call.env.insert("CNI_ARGS".into(), args);
        let mut stdin = self.entry().unwrap();
        for key in ["cniVersion", "prevResult"] {
            stdin[key] = call.stdin[key].clone();
        }
        stdin["name"] = json!("pods");
        stdin["facts"]["deadline_ms"] = json!(DEADLINE);
        stdin["runtimeConfig"] = json!({ "io.kubernetes.cri.pod-annotations": pod.annotations });
        PluginCall { stdin, ..call }
    }

    /// Makes an ADD that has to succeed.
    pub(crate) fn added(&self, pod: &Pod, netns: &Namespace) {
        let ran = self.add(pod, netns);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }

    /// Makes an ADD that has to be refused with this id and text; returns its output.
    pub(crate) fn refused(&self, pod: &Pod, netns: &Namespace, id: &str, text: &str) {
        let ran = self.add(pod, netns);
        assert!(ran.code == Some(1) && ran.out.contains(&format!("GYBE-ADD-{id}")), "{ran:?}");
        assert!(ran.out.contains(text) && ran.out.contains("\"code\":11"), "{ran:?}");
    }

    /// Waits until the agent has no more ambient pods than these, as its metrics count them.
    pub(crate) fn wait_for_pods(&self, pods: f64) {
        wait_until("the agent's ambient pods", || {
            (self.agent().metric("gybe_ambient_pods") - pods).abs() < f64::EPSILON
        });
    }

    /// Reports whether the agent has a descriptor of this network namespace.
    pub(crate) fn holds(&self, netns: &Namespace) -> bool {
        let wanted = fs::metadata(netns.path()).unwrap();
        let open = fs::read_dir(format!("/proc/{}/fd", self.agent().pid())).unwrap().flatten();
        open.filter_map(|fd| fs::metadata(fd.path()).ok())
            .any(|open| (open.dev(), open.ino()) == (wanted.dev(), wanted.ino()))
    }

    /// The lines of `/readyz`.
    pub(crate) fn readyz(&self) -> String {
        self.agent().get("/readyz").1
    }
}

/// A pod of the node.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    namespace: &'static str,
    name: String,
    pub(crate) uid: String,
    labels: Value,
    annotations: Map<String, Value>,
    containers: Value,
}

impl Pod {
    pub(crate) fn new(namespace: &'static str, name: &str) -> Self {
        let containers = json!([{ "name": "app" }]);
        let (labels, annotations) = (json!({}), Map::new());
        Self { namespace, name: name.to_owned(), uid: format!("uid-{name}"), labels, annotations, containers }
    }

    pub(crate) fn with_labels(self, labels: Value) -> Self {
        Self { labels, ..self }
    }

    pub(crate) fn with_annotation(mut self, name: &str, value: &str) -> Self {
        self.annotations.insert(name.to_owned(), value.into());
        self
    }

    /// As the injector writes it.
    pub(crate) fn with_sidecar(self) -> Self {
        let containers = json!([{ "name": "app" }, { "name": "istio-proxy" }]);
        Self { containers, ..self.with_annotation("sidecar.istio.io/status", "{}") }
    }

    /// Creates it in the API server.
    pub(crate) fn put(self, node: &Node) -> Self {
        node.server.put_pod(self.object("Running"));
        self
    }

    pub(crate) fn object(&self, phase: &str) -> Value {
        let Self { namespace, name, uid, labels, annotations, containers } = self;
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "namespace": namespace, "name": name, "uid": uid, "labels": labels,
                "annotations": annotations,
            },
            "spec": { "nodeName": "node-1", "serviceAccountName": "default", "containers": containers },
            "status": { "phase": phase },
        })
    }

    pub(crate) fn delete(&self, node: &Node) {
        assert!(node.server.delete_pod(self.namespace, &self.name));
    }

    pub(crate) fn names(&self) -> (&str, &str) {
        (self.namespace, &self.name)
    }

    /// `NAMESPACE/NAME`.
    pub(crate) fn reference(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Waits until the stand-in is in a state.
pub(crate) fn observe(ztunnel: &Ztunnel, what: &str, holds: impl Fn(&Observed) -> bool) -> Observed {
    wait_for(what, || Some(ztunnel.observed()).filter(|observed| holds(observed)))
}

/// What `gybe inspect` prints about a namespace.
pub(crate) fn inspect(netns: &Namespace) -> String {
    ours("gybe", &["inspect", "--netns", path(netns).as_ref()], "").unwrap().out
}

pub(crate) fn path(netns: &Namespace) -> String {
    let path: &Path = &netns.path();
    path.display().to_string()
}

pub(crate) fn is_ambient(netns: &Namespace) -> bool {
    let listed = inspect(netns);
    listed.contains(", ambient")
}
