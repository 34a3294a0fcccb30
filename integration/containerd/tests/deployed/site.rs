//! A node without Gybe, a cluster it belongs to, and the manifests that put Gybe on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use gybe_api_server::{ApiServer, Validity};
use gybe_containerd_tests::{Chain, Generation, Image, Node, Programs, Sandbox, manifest};
use gybe_installer::testnet::namespace::Namespace;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

const STAGE: &str = env!("CARGO_BIN_EXE_gybe-stage");
/// From this package's directory.
const TOP: &str = "../..";

/// All of it, gone with the test.
pub(crate) struct Site {
    pub(crate) api: ApiServer,
    pub(crate) node: Node,
    /// The node's own network namespace, where the agent and the API server are.
    pub(crate) network: Namespace,
}

impl Site {
    pub(crate) fn new(generation: Generation) -> Self {
        let name = thread::current().name().unwrap_or("unnamed").replace("::", ".");
        let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.log"));
        let programs = Programs { stage: Path::new(STAGE), plugins: &[] };
        let node = Node::start(programs, generation, &Chain::of_reference_plugins(generation), log).unwrap();
        let network = Namespace::open(&node.stage().netns()).unwrap();
        let api = network.run(ApiServer::start).unwrap().unwrap();
        let of_the_cluster = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } });
        api.put(of_the_cluster).unwrap();
        let copied = instructions();
        let programs: Vec<_> = copied.iter().map(read).collect();
        let files: Vec<_> = programs.iter().map(|(inside, bytes)| (*inside, bytes.as_slice())).collect();
        node.import(&Image { name: &image(), files: &files, entrypoint: "/opt/gybe/bin/gybe" }).unwrap();
        Self { api, node, network }
    }

    /// The cluster has this pod, of the mesh, on this node.
    pub(crate) fn schedule(&self, sandbox: &Sandbox) {
        let mut pod = manifest::injected(sandbox);
        pod["spec"]["nodeName"] = NODE.into();
        self.api.put_pod(pod);
    }

    /// As the kubelet keeps a service account.
    pub(crate) fn write_token(&self, directory: &Path) {
        let account = self.api.service_account(directory).unwrap();
        account.write(&self.api.tokens().issue(Validity::Valid)).unwrap();
    }
}

/// This node's name.
pub(crate) const NODE: &str = "worker-1";

/// The objects of the base, one kind at a time: there is one of each that is asked for.
fn object(file: &str) -> Value {
    let path = Path::new(TOP).join("manifests/base").join(file);
    serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

pub(crate) fn daemon_set() -> DaemonSet {
    serde_json::from_value(object("daemonset.yaml")).unwrap()
}

pub(crate) fn config_map() -> ConfigMap {
    serde_json::from_value(object("configmap.yaml")).unwrap()
}

fn image() -> String {
    let pod = daemon_set().spec.template.spec.unwrap();
    // As the kubelet's image service resolves a name without a registry.
    format!("docker.io/library/{}", pod.containers[0].image.clone().unwrap())
}

/// What the Dockerfile copies, and where to.
fn instructions() -> Vec<(String, PathBuf)> {
    let text = fs::read_to_string(Path::new(TOP).join("manifests/Dockerfile")).unwrap();
    let copy = text.lines().find_map(|line| line.strip_prefix("COPY ")).unwrap();
    let words: Vec<&str> = copy.split(' ').collect();
    let (to, sources) = words.split_last().unwrap();
    let inside = |source: &Path| format!("{}{}", &to[1..], source.file_name().unwrap().to_str().unwrap());
    sources.iter().map(|source| (inside(Path::new(source)), Path::new(TOP).join(source))).collect()
}

fn read((inside, path): &(String, PathBuf)) -> (&str, Vec<u8>) {
    let bytes = fs::read(path).unwrap_or_else(|why| panic!("{}: {why}; run: make build", path.display()));
    (inside, bytes)
}
