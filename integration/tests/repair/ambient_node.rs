//! A node with ambient mode: its agent, its container `repair`, and any ztunnel.

use crate::cluster::Cluster;
use crate::node::Pod;
use gybe_api_server::Verb;
use gybe_installer::sandboxes::probe_exemption::ExemptedPods;
use gybe_integration::programs::ours;
use gybe_test_support::{Agent, TestDir, wait_until};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The label by which the default selectors decide.
pub(crate) const MODE: &str = "istio.io/dataplane-mode";

/// The annotation by which istiod learns that a pod takes HBONE.
pub(crate) const REDIRECTION: &str = "ambient.istio.io/redirection";

/// A part of the ids of the rules that lead to ztunnel.
pub(crate) const CAPTURES: &str = "bound-to-ztunnel";

pub(crate) struct AmbientNode<Z> {
    // Dropped before the directories in which they write.
    pub(crate) ztunnel: Option<Z>,
    pub(crate) agent: Option<Agent>,
    pub(crate) repair: Agent,
    pub(crate) cluster: Cluster,
}

impl<Z> AmbientNode<Z> {
    /// Starts a node with the namespaces `shop`, which is ambient, and `plain`.
    pub(crate) fn with_ztunnel(
        test: &str,
        repair: &str,
        backend: &str,
        start: impl FnOnce(&TestDir) -> Z,
    ) -> Self {
        let mut cluster = Cluster::new(&format!("ambient-{test}"));
        cluster.server.permit(Verb::Watch, "namespaces");
        let socket = socket(&cluster.node.root).display().to_string();
        cluster.environment = vec![("AMBIENT_ENABLED", "true".to_owned()), ("ZTUNNEL_UDS_ADDRESS", socket)];
        cluster.set(&[("repair", repair), ("backend", backend), ("exclude_namespaces", "kube-system")]);
        put_namespace(&cluster, "plain", &json!({}));
        put_namespace(&cluster, "shop", &json!({ MODE: "ambient" }));
        let ztunnel = Some(start(&cluster.node.root));
        // Not ready as an unprivileged user with an iptables backend: a sidecar's rules match owners, which is refused there.
        let (agent, repair) = (cluster.start_agent(), cluster.start_repair());
        Self { ztunnel, agent: Some(agent), repair, cluster }
    }

    pub(crate) fn ztunnel(&self) -> &Z {
        self.ztunnel.as_ref().unwrap()
    }

    pub(crate) fn restart_agent(&mut self) {
        drop(self.agent.take());
        self.agent = Some(self.cluster.start_agent());
    }

    /// Puts the pod into the API with these labels; it keeps the annotation that the agent has written.
    pub(crate) fn label(&self, namespace: &str, pod: &Pod, labels: &Value) {
        let annotation = self.annotation(pod);
        self.cluster.put(namespace, pod, |manifest| {
            make_plain(manifest, labels);
            if let Some(value) = annotation {
                manifest["metadata"]["annotations"][REDIRECTION] = value;
            }
        });
    }

    /// The annotation that the pod has in the API.
    pub(crate) fn annotation(&self, pod: &Pod) -> Option<Value> {
        let pods = self.cluster.server.objects("Pod");
        let found = pods.iter().find(|it| it["metadata"]["uid"] == pod.uid())?;
        found["metadata"]["annotations"].get(REDIRECTION).cloned()
    }

    /// A pod without a sidecar that runs, and that no plugin of Gybe has seen.
    pub(crate) fn run(&self, namespace: &str, pod: &Pod) {
        self.label(namespace, pod, &json!({}));
        self.cluster.cached(namespace, pod, &pod.name(), |manifest| make_plain(manifest, &json!({})));
        self.cluster.node.start(pod);
    }

    /// The uids whose probes are exempt.
    pub(crate) fn exempted(&self) -> Vec<String> {
        self.kept_pods().pods.into_keys().collect()
    }

    /// The uids of the pods that are due.
    pub(crate) fn due(&self) -> Vec<String> {
        self.kept_pods().due.into_iter().collect()
    }

    fn kept_pods(&self) -> ExemptedPods {
        ExemptedPods::kept_in(&self.cluster.node.root.join("run/gybe")).unwrap().unwrap()
    }
}

/// The socket at which ztunnel connects, on the node with this root directory.
pub(crate) fn socket(root: &Path) -> PathBuf {
    root.join("ztunnel/ztunnel.sock")
}

pub(crate) fn inspect(pod: &Pod) -> String {
    let path = pod.netns.path().display().to_string();
    ours("gybe", &["inspect", "--netns", &path], "").unwrap().out
}

pub(crate) fn wait_for_rules(pod: &Pod) {
    wait_until("the pod's rules", || inspect(pod).contains(CAPTURES));
}

pub(crate) fn has_no_rules(pod: &Pod) -> bool {
    inspect(pod).starts_with("no rules of Gybe")
}

pub(crate) fn put_namespace(cluster: &Cluster, name: &str, labels: &Value) {
    let metadata = json!({ "name": name, "labels": labels });
    cluster.server.put(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata })).unwrap();
}

pub(crate) fn make_plain(manifest: &mut Value, labels: &Value) {
    manifest["metadata"]["labels"] = labels.clone();
    manifest["metadata"]["annotations"] = json!({ "example.org/note": "none" });
    manifest["spec"] = json!({
        "nodeName": "node-1", "serviceAccountName": "default", "containers": [{ "name": "app" }],
    });
}
