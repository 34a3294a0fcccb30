//! A node without Gybe, its cluster, and the manifests that install Gybe.

use std::fs;
use std::path::Path;
use std::thread;

use gybe_api_server::{ApiServer, Validity};
use gybe_containerd_tests::{Conflist, Generation, Node, Programs, Sandbox, manifest};
use gybe_demo::testnet::namespace::Namespace;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use crate::pod::{APPLICATION, Destination, OUTSIDE, OutsideClient, RunningPod};

const HOST_INIT: &str = env!("CARGO_BIN_EXE_gybe-host-init");
/// The workspace's root, relative to this package's directory.
const TOP: &str = "../..";

/// An API server and a node of its cluster.
pub(crate) struct Cluster {
    pub(crate) api: ApiServer,
    pub(crate) node: Node,
    /// The node's network namespace, in which the agent and the API server run.
    pub(crate) network: Namespace,
}

impl Cluster {
    pub(crate) fn new(generation: Generation) -> Self {
        let name = thread::current().name().unwrap_or("unnamed").replace("::", ".");
        let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.log"));
        let programs = Programs { host_init: Path::new(HOST_INIT), plugins: &[], runc: None };
        let node = Node::start(programs, generation, &Conflist::reference_plugins(generation), log).unwrap();
        let network = Namespace::open(&node.host().netns()).unwrap();
        let api = network.run(ApiServer::start).unwrap().unwrap();
        let node_object = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } });
        api.put(node_object).unwrap();
        node.import_archive(&image(), &archive()).unwrap();
        Self { api, node, network }
    }

    /// Creates a meshed pod that is scheduled to the node.
    pub(crate) fn schedule(&self, sandbox: &Sandbox) {
        let mut pod = manifest::injected(sandbox);
        pod["spec"]["nodeName"] = NODE.into();
        self.api.put_pod(pod);
    }

    /// Asserts that new connections into and out of each pod end at its proxy.
    pub(crate) fn assert_redirected(&self, pods: &[RunningPod]) {
        let outside = OutsideClient::new(&self.node);
        for pod in pods {
            let address = pod.addresses[0];
            assert_eq!(outside.connect(address, 8080), Destination::proxy(15006, address, 8080));
            assert_eq!(pod.connect(APPLICATION, OUTSIDE[0], 80), Destination::proxy(15001, OUTSIDE[0], 80));
        }
    }

    /// Writes a service account's files as the kubelet does.
    pub(crate) fn write_token(&self, directory: &Path) {
        let account = self.api.service_account(directory).unwrap();
        account.write(&self.api.tokens().issue(Validity::Valid)).unwrap();
    }
}

pub(crate) const NODE: &str = "worker-1";

/// Reads the single object of a file in `manifests`.
fn object(file: &str) -> Value {
    let path = Path::new(TOP).join("manifests").join(file);
    serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

pub(crate) fn daemon_set() -> DaemonSet {
    serde_json::from_value(object("base/daemonset.yaml")).unwrap()
}

/// The component's patch of the DaemonSet.
pub(crate) fn probe_once() -> DaemonSet {
    serde_json::from_value(object("components/probe-once/daemonset.yaml")).unwrap()
}

pub(crate) fn config_map() -> ConfigMap {
    serde_json::from_value(object("base/configmap.yaml")).unwrap()
}

fn image() -> String {
    let pod = daemon_set().spec.template.spec.unwrap();
    // containerd completes a name without a registry with `docker.io/library`.
    format!("docker.io/library/{}", pod.containers[0].image.clone().unwrap())
}

/// Reads the archive that `make image` writes.
fn archive() -> Vec<u8> {
    let path = Path::new(TOP).join(concat!("dist/gybe-", env!("CARGO_PKG_VERSION"), ".oci.tar"));
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; run: make image", path.display()))
}
