//! No agent at all: the plugin has the API server asked by a kubeconfig, through `gybe pod-facts`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up must stop"
)]
#![allow(clippy::disallowed_methods, reason = "an ADD is a program")]

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

struct Ground {
    server: ApiServer,
    kubeconfig: PathBuf,
    pod: Namespace,
    _place: PluginDir,
}

/// What an ADD came to: its code of CNI's, and its words.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Refused(u64, String),
}

impl Ground {
    fn new(test: &str) -> Self {
        let (server, place) = (ApiServer::start().unwrap(), PluginDir::new(test));
        let kubeconfig = server.kubeconfig(&place.run()).unwrap();
        let pod = Namespace::new().unwrap();
        pod.run(|| run("ip", &["address", "add", "10.244.0.10/32", "dev", "lo"], "")).unwrap().unwrap();
        Self { server, kubeconfig, pod, _place: place }
    }

    /// The example's pod comes to be, by this name.
    fn put(&self, name: &str) {
        let mut pod: Value = serde_json::from_str(include_str!("../../../examples/pod.json")).unwrap();
        pod["metadata"]["name"] = name.into();
        pod["metadata"]["uid"] = format!("uid-of-{name}").into();
        self.server.put_pod(pod);
    }

    /// The example's ADD, for the pod of this name.
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
            return Outcome::Passed;
        }
        Outcome::Refused(answer["code"].as_u64().unwrap(), answer["msg"].as_str().unwrap().to_owned())
    }

    fn refuses(&self, code: u64, words: &str) {
        match self.add("cart-0") {
            Outcome::Refused(told, why) if told == code && why.contains(words) => {}
            other => panic!("{code} {words:?}: {other:?}"),
        }
        assert!(self.is_untouched());
    }

    fn is_untouched(&self) -> bool {
        self.pod.run(|| Nft.inspect()).unwrap().unwrap().is_empty()
    }
}

#[test]
fn a_pod_is_redirected_by_what_gybe_pod_facts_learns() {
    let ground = Ground::new("kubeconfig");
    ground.refuses(11, "GYBE-ADD-017");
    ground.put("cart-0");
    assert_eq!(ground.add("cart-0"), Outcome::Passed);
    assert!(!ground.is_untouched());
    assert_eq!(ground.server.requests().len(), 2, "{:?}", ground.server.requests());
}

#[test]
fn what_stands_between_is_told() {
    let ground = Ground::new("kubeconfig-refused");
    ground.put("cart-0");
    ground.server.forbid(Verb::Get, "pods");
    ground.refuses(11, "said 403");
    ground.server.tokens().revoke_all();
    ground.refuses(11, "said 401");
    ground.server.set_network(Network::Unreachable).unwrap();
    ground.refuses(11, "did not answer within");
    std::fs::remove_file(&ground.kubeconfig).unwrap();
    ground.refuses(7, "kubeconfig cannot be read");
}
