//! A cluster, a node agent with a token like a pod's, and a sandbox for ADDs. All gone with the test.

use gybe_api_server::{ApiServer, ServiceAccount, Validity};
use gybe_installer::demo::namespace::Namespace;
use gybe_integration::programs::{path_of_ours, run};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// Longer than anything takes that comes at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) const NODE: &str = "node-1";
pub(crate) const STATUS: &str = "sidecar.istio.io/status";

pub(crate) struct Ground {
    pub(crate) server: ApiServer,
    pub(crate) account: ServiceAccount,
    pub(crate) place: PathBuf,
    pub(crate) kubeconfig: PathBuf,
    pod: Namespace,
}

/// A running agent, told to end as a crash would. Whatever it prints is read, also when nobody waits for
/// a line: it tells on every plugin's.
pub(crate) struct Agent {
    child: Child,
    lines: Receiver<String>,
}

/// What an ADD came to: its code of CNI's, and its words.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Refused(u64, String),
}

impl Ground {
    pub(crate) fn new(test: &str) -> Self {
        let place = std::env::temp_dir().join(format!("gybe-with-cluster-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&place);
        fs::create_dir_all(&place).unwrap();
        let server = ApiServer::start().unwrap();
        let account = server.service_account(&place.join("serviceaccount")).unwrap();
        let kubeconfig = server.kubeconfig(&place).unwrap();
        let mut config: Value = serde_json::from_slice(&fs::read(&kubeconfig).unwrap()).unwrap();
        config["users"][0]["user"] = json!({ "tokenFile": account.path().join("token") });
        fs::write(&kubeconfig, config.to_string()).unwrap();
        let pod = Namespace::new().unwrap();
        pod.run(|| run("ip", &["address", "add", "10.244.0.10/32", "dev", "lo"], "")).unwrap().unwrap();
        Self { server, account, place, kubeconfig, pod }
    }

    /// A meshed pod of this node comes to be.
    pub(crate) fn put(&self, name: &str) {
        let mut pod: Value = serde_json::from_str(include_str!("../../../examples/pod.json")).unwrap();
        let uid = format!("uid-of-{name}");
        pod["metadata"]["name"] = name.into();
        pod["metadata"]["uid"] = uid.into();
        pod["spec"]["nodeName"] = NODE.into();
        self.server.put_pod(pod);
    }

    /// An agent that knows the pods there are.
    pub(crate) fn agent(&self) -> Agent {
        let agent = self.agent_begun();
        agent.tells("gybe node: pods are known");
        agent
    }

    /// One that has only begun.
    pub(crate) fn agent_begun(&self) -> Agent {
        let mut command = Command::new(path_of_ours("gybe").unwrap());
        command.env_clear().args(["node", "--node-name", NODE, "--kubeconfig"]).arg(&self.kubeconfig);
        command.arg("--socket").arg(self.place.join("run/facts.sock"));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (tell, lines) = channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        thread::spawn(move || stderr.lines().map_while(Result::ok).all(|line| tell.send(line).is_ok()));
        Agent { child, lines }
    }

    /// The example's ADD, for this pod; by the agent, or as `facts` says.
    pub(crate) fn add(&self, name: &str, annotations: &Value, facts: Option<Value>) -> Outcome {
        let mut add: Value = serde_json::from_str(include_str!("../../../examples/add.json")).unwrap();
        add["env"]["CNI_NETNS"] = json!(self.pod.path());
        let args = format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};K8S_POD_UID=uid-of-{name}");
        add["env"]["CNI_ARGS"] = format!("IgnoreUnknown=1;{args}").into();
        add["stdin"]["backend"] = "nft".into();
        add["stdin"]["facts"] =
            facts.unwrap_or_else(|| json!({ "socket": self.place.join("run/facts.sock") }));
        add["stdin"]["runtimeConfig"]["io.kubernetes.cri.pod-annotations"] = annotations.clone();
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

    /// A token of that validity is the only one that there is.
    pub(crate) fn token(&self, validity: Validity) {
        self.server.tokens().revoke_all();
        self.account.write(&self.server.tokens().issue(validity)).unwrap();
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.place);
    }
}

impl Agent {
    /// Reads on until that line.
    pub(crate) fn tells(&self, message: &str) -> Value {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|why| panic!("it told no {message:?}: {why}"));
            let line: Value = serde_json::from_str(&line).unwrap_or_else(|fault| panic!("{fault}: {line}"));
            if line["msg"] == message {
                return line;
            }
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
