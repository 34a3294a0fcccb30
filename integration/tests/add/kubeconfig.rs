//! ADD without an agent: the plugin queries the API server by a kubeconfig, through `gybe pod-facts`.

use gybe_api_server::{ApiServer, Network, Verb};
use gybe_installer::testnet::namespace::Namespace;
use gybe_integration::plugin_call::PluginDir;
use gybe_integration::programs::{path_of_ours, run};
use gybe_netfilter::backend::Backend;
use gybe_netfilter::nft::Nft;
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// An API server with its kubeconfig, and a pod's network namespace.
struct TestCluster {
    server: ApiServer,
    kubeconfig: PathBuf,
    pod: Namespace,
    _place: PluginDir,
}

/// The outcome of an ADD.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Succeeded,
    Refused { code: u64, message: String },
}

impl TestCluster {
    fn new(test: &str) -> Self {
        let (server, directory) = (ApiServer::start().unwrap(), PluginDir::new(test));
        let kubeconfig = server.kubeconfig(&directory.run()).unwrap();
        let pod = Namespace::new().unwrap();
        pod.run(|| run("ip", &["address", "add", "10.244.0.10/32", "dev", "lo"], "")).unwrap().unwrap();
        Self { server, kubeconfig, pod, _place: directory }
    }

    /// Creates the example's pod under this name.
    fn create_pod(&self, name: &str) {
        let mut pod: Value = serde_json::from_str(include_str!("../../../examples/pod.json")).unwrap();
        pod["metadata"]["name"] = name.into();
        pod["metadata"]["uid"] = format!("uid-of-{name}").into();
        self.server.put_pod(pod);
    }

    /// Makes the example's ADD for the pod of this name.
    fn add(&self, name: &str) -> Outcome {
        let mut add: Value = serde_json::from_str(include_str!("../../../examples/add.json")).unwrap();
        add["env"]["CNI_NETNS"] = json!(self.pod.path());
        let args = format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};K8S_POD_UID=uid-of-{name}");
        add["env"]["CNI_ARGS"] = format!("IgnoreUnknown=1;{args}").into();
        add["stdin"]["backend"] = "nft".into();
        add["stdin"]["facts"] = json!({ "socket": "", "kubeconfig": self.kubeconfig, "deadline_ms": 2000 });
        let environment = add["env"].as_object().unwrap().iter();
        let mut command = Command::new(path_of_ours("gybe-cni").unwrap());
        command.env_clear().envs(environment.map(|(name, value)| (name, value.as_str().unwrap())));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(add["stdin"].to_string().as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        if output.status.success() {
            return Outcome::Succeeded;
        }
        let message = answer["msg"].as_str().unwrap().to_owned();
        Outcome::Refused { code: answer["code"].as_u64().unwrap(), message }
    }

    /// Asserts that ADD is refused with this code and these words, and writes nothing.
    fn assert_refused(&self, expected: u64, words: &str) {
        match self.add("cart-0") {
            Outcome::Refused { code, message } if code == expected && message.contains(words) => {}
            other => panic!("{expected} {words:?}: {other:?}"),
        }
        assert!(self.is_untouched());
    }

    fn is_untouched(&self) -> bool {
        self.pod.run(|| Nft.inspect()).unwrap().unwrap().is_empty()
    }
}

#[test]
fn a_pod_is_redirected_by_the_facts_of_gybe_pod_facts() {
    let cluster = TestCluster::new("kubeconfig");
    cluster.assert_refused(11, "GYBE-ADD-017");
    cluster.create_pod("cart-0");
    assert_eq!(cluster.add("cart-0"), Outcome::Succeeded);
    assert!(!cluster.is_untouched());
    assert_eq!(cluster.server.requests().len(), 2, "{:?}", cluster.server.requests());
}

#[test]
fn errors_of_the_api_server_and_of_the_kubeconfig_are_named() {
    let cluster = TestCluster::new("kubeconfig-refused");
    cluster.create_pod("cart-0");
    cluster.server.forbid(Verb::Get, "pods");
    cluster.assert_refused(11, "responded 403");
    cluster.server.tokens().revoke_all();
    cluster.assert_refused(11, "responded 401");
    cluster.server.set_network(Network::Unreachable).unwrap();
    // The program reports its own deadline, or on a busy machine the plugin reports the program's.
    cluster.assert_refused(11, "answer within");
    std::fs::remove_file(&cluster.kubeconfig).unwrap();
    cluster.assert_refused(7, "kubeconfig cannot be read");
}
