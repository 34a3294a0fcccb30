//! The built `gybe node` and the agent's parts, each on directories and an API server of one test: the reconcile loop
//! on a node's directories, the pod cache and its watch, the sockets, the pages for probes and metrics.

#![cfg(test)]

mod api_requests;
mod broken_pods;
mod cluster_queries;
mod condition;
mod conflicts;
mod doctor;
mod health_and_metrics;
mod host_faults;
mod leader;
mod leave;
mod node;
mod queries;
mod repair;
mod settings;
mod shutdown;
mod start_and_end;
mod status_command;
mod taints;
mod take_over;
mod watch;
mod watch_failures;
mod with_api_server;

use gybe_api_server::{ApiServer, Request, ServiceAccount, Validity};
use gybe_installer::agent::pods::{PodLookup, WatchState, WatchedPods};
use gybe_installer::cluster::{self, Cluster};
use gybe_plugin::facts::wire::{self, FactsResponse};
use gybe_test_support::{PATIENCE, TestDir, wait_until};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The deadline of a query at the facts socket.
pub(crate) const QUERY_DEADLINE: Duration = Duration::from_millis(950);
pub(crate) const NODE: &str = "node-1";

pub(crate) struct TestCluster {
    pub(crate) server: ApiServer,
    pub(crate) account: ServiceAccount,
    pub(crate) directory: TestDir,
}

impl TestCluster {
    pub(crate) fn new(test: &str) -> Self {
        let directory = TestDir::new(&format!("cluster-{test}"));
        let server = ApiServer::start().unwrap();
        let account = server.service_account(&directory.join("serviceaccount")).unwrap();
        Self { server, account, directory }
    }

    /// Returns the cluster's settings as the agent's pod has them.
    pub(crate) fn settings(&self) -> Cluster {
        let address = self.server.address();
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        Cluster::Own(cluster::ServiceAccount { host, port, directory: self.account.path().to_owned() })
    }

    /// Starts a watch and waits for its first list.
    pub(crate) fn start_watch(&self) -> WatchedPods {
        let watched = WatchedPods::start(&self.settings(), NODE, None).unwrap();
        wait_for_state(&watched, |state| state.synced);
        watched
    }

    /// Creates a pod with this uid on this node, as Istio's injector changes it.
    pub(crate) fn put(&self, name: &str, uid: &str) {
        self.server.put_pod(injected_pod(name, uid));
    }

    /// Replaces the token by a new one, and revokes the old one.
    pub(crate) fn rotate(&self) {
        self.account.write(&self.server.tokens().issue(Validity::Valid)).unwrap();
    }

    /// Returns the number of GET requests for this pod.
    pub(crate) fn get_count(&self, name: &str) -> usize {
        let path = format!("/pods/{name}");
        self.server.requests().iter().filter(|request| request.path.ends_with(&path)).count()
    }

    pub(crate) fn watch_count(&self) -> usize {
        self.server.requests().iter().filter(|request| request.is_watch()).count()
    }

    pub(crate) fn list_count(&self) -> usize {
        self.server.requests().iter().filter(|request| request.is_list_of_pods()).count()
    }

    /// Waits until the recorded requests satisfy `is_enough`.
    pub(crate) fn wait_for_requests(&self, is_enough: impl Fn(&[Request]) -> bool) {
        assert!(self.server.wait_for_requests(PATIENCE, is_enough), "{:#?}", self.server.requests());
    }
}

pub(crate) fn injected_pod(name: &str, uid: &str) -> Value {
    json!({
        "kind": "Pod",
        "metadata": {
            "namespace": "shop", "name": name, "uid": uid,
            "annotations": { "sidecar.istio.io/status": "{}", "example.com/other": "x" },
            "managedFields": [{ "manager": "kubelet" }],
        },
        "spec": {
            "nodeName": NODE,
            "containers": [
                { "name": "app", "env": [{ "name": "PASSWORD", "value": "hunter2" }] },
                { "name": "istio-proxy", "args": ["proxy", "sidecar"] },
            ],
        },
        "status": { "phase": "Running" },
    })
}

/// Queries a pod as the plugin does; returns the uid in the answer, or the response without facts.
pub(crate) fn query(pods: &WatchedPods, name: &str, uid: &str) -> Result<String, FactsResponse> {
    query_within(PATIENCE, pods, name, uid)
}

pub(crate) fn query_within(
    deadline: Duration,
    pods: &WatchedPods,
    name: &str,
    uid: &str,
) -> Result<String, FactsResponse> {
    let question = json!({ "version": 1, "namespace": "shop", "name": name, "uid": uid }).to_string();
    let pod = wire::decode_request(question.as_bytes()).unwrap().pod;
    let before = Instant::now();
    let answer = pods.wait_for(&pod, before + deadline);
    assert!(before.elapsed() < deadline + Duration::from_secs(5), "{:?}: {answer:?}", before.elapsed());
    match answer {
        FactsResponse::Pod(facts) => Ok(facts.uid),
        other => Err(other),
    }
}

/// Asserts that the pod is known, from the cache or the API server, which on a busy machine takes its time.
pub(crate) fn assert_known(pods: &WatchedPods, name: &str, uid: &str) {
    assert_eq!(query(pods, name, uid), Ok(uid.to_owned()), "{name} {uid} {:?}", pods.state());
}

/// Polls until the watch's state satisfies `is_reached`; the state has no notification.
pub(crate) fn wait_for_state(pods: &WatchedPods, is_reached: impl Fn(&WatchState) -> bool) {
    wait_until("the watch is in that state", || is_reached(&pods.state()));
}

pub(crate) fn is_healthy(state: &WatchState) -> bool {
    state.problem.is_none()
}

pub(crate) fn status(state: &WatchState) -> Option<u16> {
    state.problem.as_ref().and_then(|fault| fault.status)
}

/// Returns a cluster with one pod, and an open watch.
pub(crate) fn watched_cluster(test: &str) -> (TestCluster, WatchedPods) {
    let cluster = TestCluster::new(test);
    cluster.put("cart-0", "u0");
    let watched = cluster.start_watch();
    cluster.wait_for_requests(|requests| {
        requests.iter().any(|request| request.is_watch() && request.code == Some(200))
    });
    assert_known(&watched, "cart-0", "u0");
    (cluster, watched)
}

/// Asserts that the watch has recovered: it reports a new pod.
pub(crate) fn assert_recovered(cluster: &TestCluster, watched: &WatchedPods, name: &str) {
    wait_for_state(watched, is_healthy);
    cluster.put(name, "new");
    assert_known(watched, name, "new");
    assert_known(watched, "cart-0", "u0");
}
