//! A node and its cluster: the API server, the agent, the files between them, and the pods.

use crate::agent::Agent;
use gybe_api_server::{ApiServer, Bearer, Network, Request, ServiceAccount, Token, Validity};
use gybe_integration::plugin_call::PluginDir;
use gybe_integration::programs::path_of_ours;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// The node all of this is about.
pub(crate) const NODE: &str = "node-1";

/// Longer than anything takes that happens at all, on a machine with other work.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Site {
    pub(crate) server: ApiServer,
    pub(crate) account: ServiceAccount,
    pub(crate) place: PluginDir,
    agent: Option<Agent>,
}

/// One of our programs: as it was built with the tests, or in the directory `GYBE_PROGRAMS`.
pub(crate) fn programs(name: &str) -> PathBuf {
    match std::env::var_os("GYBE_PROGRAMS") {
        // A test runs in its package's directory.
        Some(directory) => PathBuf::from("..").join(directory).join(name).canonicalize().unwrap(),
        None => path_of_ours(name).unwrap(),
    }
}

impl Site {
    /// A cluster with a node full of pods, and 100,000 on others.
    pub(crate) fn new(test: &str) -> Self {
        let (server, place) = (ApiServer::start().unwrap(), PluginDir::new(test));
        let account = place.run().join("secrets/kubernetes.io/serviceaccount");
        let account = server.service_account(&account).unwrap();
        server.set_generated_pods(100_000);
        for number in 0..KNOWN {
            server.put_pod(meshed(&known(number)));
        }
        Self { server, account, place, agent: None }
    }

    /// The same with an agent that has seen them.
    pub(crate) fn with_agent(test: &str) -> Self {
        let mut site = Self::new(test);
        site.start_agent();
        site.see_a_watch(0);
        site
    }

    pub(crate) fn start_agent(&mut self) {
        self.agent = Some(Agent::start(&self.place, &self.server));
    }

    /// Ends it as a crash would: its sockets stay where they are.
    pub(crate) fn kill_agent(&mut self) {
        self.agent.take().unwrap().kill();
    }

    /// Waits until the agent watches once more than so often: then it has listed.
    pub(crate) fn see_a_watch(&self, after: usize) {
        let watched = self.server.wait_for_requests(PATIENCE, |requests| watches(requests) > after);
        assert!(watched, "{:#?}", self.server.requests().last());
    }

    /// How often a watch was begun.
    pub(crate) fn watches(&self) -> usize {
        watches(&self.server.requests())
    }

    /// Ends every connection, so that nothing is asked on one that was made before.
    pub(crate) fn cut_connections(&self) {
        self.server.set_network(Network::Refusing).unwrap();
        self.server.set_network(Network::Open).unwrap();
    }

    /// Puts a token of that validity in the place of all there were, and ends the watch that runs by one
    /// of those.
    pub(crate) fn only_token(&self, validity: Validity) {
        let token = self.server.tokens().issue(validity);
        self.server.tokens().accept_only(&[&token]);
        self.account.write(&token).unwrap();
        self.cut_connections();
    }

    /// Puts another token in the file, as the kubelet does while the last still counts, and ends the watch
    /// that runs by that.
    pub(crate) fn rotate(&self, last: &Token) -> Token {
        let next = self.server.tokens().issue(Validity::Valid);
        self.account.write(&next).unwrap();
        self.server.tokens().accept_only(&[last, &next]);
        self.server.cut_watches();
        next
    }

    /// Whether something was answered to who came with that token, or is within that time.
    pub(crate) fn sees_used(&self, token: &Token, within: Duration) -> bool {
        let bearer = Bearer::Token(token.number);
        let used = |request: &Request| request.bearer == bearer && request.code == Some(200);
        self.server.wait_for_requests(within, |requests| requests.iter().any(used))
    }
}

fn watches(requests: &[Request]) -> usize {
    requests.iter().filter(|request| request.is_watch() && request.code == Some(200)).count()
}

/// The name of a pod that is there from the beginning. There are as many as the kubelet allows by default.
pub(crate) fn known(number: usize) -> String {
    format!("known-{}", number % KNOWN)
}

const KNOWN: usize = 110;

/// The example's pod by another name, on this node.
pub(crate) fn meshed(name: &str) -> Value {
    let mut pod: Value = serde_json::from_str(include_str!("../../../examples/pod.json")).unwrap();
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["uid"] = json!(uid(name));
    pod["spec"]["nodeName"] = json!(NODE);
    pod
}

/// Its own for each name.
pub(crate) fn uid(name: &str) -> String {
    let bytes = name.bytes().rev().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("5f1d6c1e-70b7-4d3c-9a51-{bytes:0<12.12}")
}
