//! A node in ambient mode with Gybe or with istio-cni: the agent and the plugin of one of them, an API server, and the
//! stand-in for ztunnel. All of it has the mounts and the network namespace of the test, and the node's rules are in
//! another namespace.

use crate::arguments::istio;
use crate::cluster::Cluster;
use crate::node::Pod;
use gybe_api_server::Verb;
use gybe_integration::namespace::{in_new_namespace, sh, with_own_mounts};
use gybe_integration::plugin_call::PluginCall;
use gybe_integration::programs::{Run, path_of_ours, run};
use gybe_integration::ztunnel::{Fault, Mesh, Ztunnel};
use gybe_test_support::{Agent, PATIENCE, wait_for_at_most, wait_until};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// The label by which the default selectors decide.
pub(crate) const MODE: &str = "istio.io/dataplane-mode";

/// The selectors of istio-cni's chart.
const SELECTORS: &str = "
- podSelector: { matchLabels: { istio.io/dataplane-mode: ambient } }
- podSelector: { matchExpressions: [{ key: istio.io/dataplane-mode, operator: NotIn, values: [none] }] }
  namespaceSelector: { matchLabels: { istio.io/dataplane-mode: ambient } }";

/// Starts istio-cni's agent with the root of a container: that of the machine, with the node's root ($1) at /host.
const CONTAINER: &str = r#"mount -t tmpfs root /mnt; cd /mnt
for entry in /*; do
    case $entry in /host | /mnt | /opt | /run) continue ;; esac
    if [ -L "$entry" ]; then cp -P "$entry" .; elif [ -d "$entry" ]; then
        mkdir ".$entry"; mount --rbind "$entry" ".$entry"
    fi
done
account=run/secrets/kubernetes.io/serviceaccount
mkdir -p host opt/cni/bin $account
mount --rbind "$1" host; mount --bind "$1/account" $account; cp "${2%/*}/istio-cni" opt/cni/bin/
exec chroot . "$2" --log_target stderr --log_as_json"#;

/// Whose plugin and agent a node has, and what writes the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Gybe,
    IstioNft,
    IstioIptables,
}

pub(crate) const SIDES: [Side; 3] = [Side::Gybe, Side::IstioNft, Side::IstioIptables];

impl Side {
    fn plugin(self) -> &'static str {
        if self == Self::Gybe { "gybe-cni" } else { "istio-cni" }
    }
}

pub(crate) struct Node {
    pub(crate) side: Side,
    // Dropped before the directories in which they write.
    pub(crate) ztunnel: Ztunnel,
    /// Gybe's agent and its container `repair`, or istio-cni's agent.
    agents: Vec<Agent>,
    pub(crate) cluster: Cluster,
}

/// Runs `work` with mounts and a network namespace of its own.
pub(crate) fn alone<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    with_own_mounts(|| in_new_namespace(work))
}

impl Node {
    /// Starts a node with the namespaces `shop`, which is ambient, and `plain`. Both agents know the variables.
    pub(crate) fn start(side: Side, variables: &[(&'static str, String)]) -> Self {
        let mut cluster = Cluster::new(&format!("side-{side:?}"));
        for verb in [Verb::Get, Verb::List, Verb::Watch] {
            cluster.server.permit(verb, "namespaces");
        }
        let root = cluster.node.root.path().display().to_string();
        sh(&format!("mkdir /run/netns; mount --bind {root}/run/netns /run/netns"));
        cluster.environment = vec![
            ("AMBIENT_ENABLED", "true".to_owned()),
            ("ZTUNNEL_UDS_ADDRESS", format!("{root}/ztunnel/ztunnel.sock")),
        ];
        cluster.environment.extend_from_slice(variables);
        cluster.set(&[("repair", "repair"), ("backend", "nft"), ("exclude_namespaces", "kube-system")]);
        for (name, labels) in [("shop", json!({ MODE: "ambient" })), ("plain", json!({}))] {
            let metadata = json!({ "name": name, "labels": labels });
            cluster.server.put(json!({ "kind": "Namespace", "metadata": metadata })).unwrap();
        }
        let socket = cluster.node.root.create_dir("ztunnel").join("ztunnel.sock");
        let ztunnel = Ztunnel::start(&socket, Fault::default(), Mesh::default()).unwrap();
        let mut node = Self { side, ztunnel, agents: Vec::new(), cluster };
        node.start_agents();
        node
    }

    pub(crate) fn start_agents(&mut self) {
        self.agents = match self.side {
            Side::Gybe => vec![self.cluster.start_agent(), self.cluster.start_repair()],
            Side::IstioNft | Side::IstioIptables => vec![self.start_istio()],
        };
        let entry = wait_for_at_most(PATIENCE, || self.entry());
        assert!(entry.is_some(), "{:#?}", self.agent().log());
        wait_until("ztunnel is ready", || self.ztunnel.observed().is_ready);
    }

    pub(crate) fn kill_agents(&mut self) {
        self.agents.clear();
    }

    #[allow(clippy::disallowed_methods, reason = "it runs in the background of the test")]
    fn start_istio(&self) -> Agent {
        let root = &self.cluster.node.root;
        // By its name, arguments and user istio-cni finds the kubelet.
        for (file, content) in [
            ("comm", "kubelet\n"),
            ("cmdline", "/usr/bin/kubelet\0"),
            ("status", "Name:\tkubelet\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n"),
        ] {
            root.write(format!("proc/1/{file}"), content);
        }
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"]);
        command.args(["sh", "-ec", CONTAINER, "sh"]).arg(root.path()).arg(istio("install-cni").unwrap());
        let server = self.cluster.server.address();
        let native = (self.side == Side::IstioNft).to_string();
        command.env_clear().envs([
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            ("KUBERNETES_SERVICE_HOST", &server.ip().to_string()),
            ("KUBERNETES_SERVICE_PORT", &server.port().to_string()),
            ("NODE_NAME", "node-1"),
            ("POD_NAMESPACE", "istio-system"),
            // As the chart, where the agent has a network namespace of its own.
            ("ALLOW_SWITCH_TO_HOST_NS", "true"),
            ("AMBIENT_ENABLEMENT_SELECTOR", SELECTORS),
            ("AMBIENT_DNS_CAPTURE", "true"),
            ("AMBIENT_IPV6", "true"),
            ("AMBIENT_RECONCILE_POD_RULES_ON_STARTUP", "true"),
            ("EXCLUDE_NAMESPACES", "kube-system"),
            ("REPAIR_ENABLED", "false"),
            ("NATIVE_NFTABLES", &native),
        ]);
        command.env("CNI_AGENT_RUN_DIR", root.join("run/istio-cni"));
        command.envs(self.cluster.environment.iter().cloned());
        Agent::start(command)
    }

    pub(crate) fn agent(&self) -> &Agent {
        &self.agents[0]
    }

    /// The entry that the agent has written.
    fn entry(&self) -> Option<Value> {
        let path = self.cluster.node.root.join("etc/cni/net.d/10-pods.conflist");
        let list: Value = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
        let entry = list["plugins"].as_array()?.iter().find(|it| it["type"] == self.side.plugin())?;
        (self.side != Side::Gybe || entry["ambient"].is_object()).then(|| entry.clone())
    }

    /// Puts the pod into the API with these labels.
    pub(crate) fn label(&self, namespace: &str, pod: &Pod, labels: &Value) {
        let objects = self.cluster.server.objects("Pod");
        let stored = objects.iter().find(|object| object["metadata"]["uid"] == pod.uid());
        let annotations = stored.map(|object| object["metadata"]["annotations"].clone());
        self.put(namespace, pod, labels, &annotations.unwrap_or_else(|| json!({})));
    }

    /// The same with these annotations.
    pub(crate) fn put(&self, namespace: &str, pod: &Pod, labels: &Value, annotations: &Value) {
        self.cluster.put(namespace, pod, |manifest| {
            manifest["metadata"]["labels"] = labels.clone();
            manifest["metadata"]["annotations"] = annotations.clone();
            manifest["spec"] = json!({
                "nodeName": "node-1", "serviceAccountName": "default", "containers": [{ "name": "app" }],
            });
            manifest["status"] = json!({ "phase": "Running", "podIPs": [{ "ip": pod.address() }] });
        });
    }

    /// A pod of this namespace that runs, and that no plugin has seen.
    pub(crate) fn run(&self, namespace: &str, pod: &Pod) {
        self.put(namespace, pod, &json!({}), &json!({}));
        self.cluster.cached(namespace, pod, &pod.name(), |pod| {
            pod["metadata"]["annotations"] = json!({ "example.org/note": "none" });
        });
        self.cluster.node.start(pod);
        // istio-cni takes the oldest process of a pod.
        let stat = format!("{0} (app) S {1}", 1000 + pod.number, "1 ".repeat(40));
        self.cluster.node.root.write(format!("proc/{}/stat", 1000 + pod.number), stat);
    }

    /// The call of the plugin for an ADD: arguments of env(1), and stdin.
    pub(crate) fn call(&self, pod: &Pod, annotations: &Value) -> (Vec<String>, String) {
        let mut call: PluginCall = serde_json::from_str(include_str!("../../../examples/add.json")).unwrap();
        let (name, uid) = (pod.name(), pod.uid());
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};K8S_POD_UID={uid}");
        call.env.insert("CNI_ARGS".to_owned(), args);
        call.env.insert("CNI_NETNS".to_owned(), format!("/run/netns/{name}"));
        call.env.insert("PATH".to_owned(), "/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
        let mut stdin = self.entry().unwrap();
        for key in ["cniVersion", "prevResult"] {
            stdin[key] = call.stdin[key].clone();
        }
        stdin["prevResult"]["ips"] = json!([{ "address": format!("{}/16", pod.address()) }]);
        stdin["name"] = json!("pods");
        stdin["runtimeConfig"] = json!({ "io.kubernetes.cri.pod-annotations": annotations });
        let program: PathBuf = match self.side {
            Side::Gybe => path_of_ours("gybe-cni").unwrap(),
            Side::IstioNft | Side::IstioIptables => self.cluster.node.root.join("opt/cni/bin/istio-cni"),
        };
        let variables = call.env.iter().map(|(name, value)| format!("{name}={value}"));
        let program = program.display().to_string();
        (["-i".to_owned()].into_iter().chain(variables).chain([program]).collect(), stdin.to_string())
    }

    /// Puts a pod into the API, and makes its ADD.
    pub(crate) fn add(&self, pod: &Pod, annotations: &Value) -> Run {
        self.put("shop", pod, &json!({}), annotations);
        self.name(pod);
        make(&self.call(pod, annotations))
    }

    /// Binds the namespace's name, as a runtime does before an ADD.
    pub(crate) fn name(&self, pod: &Pod) {
        std::os::unix::fs::symlink(pod.netns.path(), self.cluster.node.netns_name(pod)).unwrap();
    }

    /// Whether the pod has the annotation of a pod that is in the mesh.
    pub(crate) fn is_annotated(&self, pod: &Pod) -> bool {
        let objects = self.cluster.server.objects("Pod");
        let found = objects.iter().find(|object| object["metadata"]["uid"] == pod.uid());
        found.is_some_and(|pod| pod["metadata"]["annotations"]["ambient.istio.io/redirection"] == "enabled")
    }

    /// The number of connections that ztunnel has forwarded.
    pub(crate) fn forwarded(&self) -> usize {
        self.ztunnel.observed().forwarded.len()
    }
}

/// Makes a call of a plugin.
pub(crate) fn make((words, stdin): &(Vec<String>, String)) -> Run {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    run("env", &words, stdin).unwrap()
}
