//! An API server for one test, the service account's directory, and a watch. Dropping [`Ground`] removes them.

use gybe_api_server::{ApiServer, Request, ServiceAccount, Validity};
use gybe_installer::agent::PodLookup;
use gybe_installer::agent::cluster::{self, Cluster, WatchState, WatchedPods};
use gybe_plugin::facts::wire::{self, FactsResponse};
use gybe_test_support::{TestDir, wait_until};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The longest wait for one event: more than any takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// The deadline of a query at the facts socket.
pub(crate) const CALL: Duration = Duration::from_millis(950);
pub(crate) const NODE: &str = "node-1";

pub(crate) struct Ground {
    pub(crate) server: ApiServer,
    pub(crate) account: ServiceAccount,
    pub(crate) directory: TestDir,
}

impl Ground {
    pub(crate) fn new(test: &str) -> Self {
        let directory = TestDir::new(&format!("cluster-{test}"));
        let server = ApiServer::start().unwrap();
        let account = server.service_account(&directory.join("serviceaccount")).unwrap();
        Self { server, account, directory }
    }

    /// Returns the cluster's settings as the agent's pod has them.
    pub(crate) fn cluster(&self) -> Cluster {
        let address = self.server.address();
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        Cluster::Own(cluster::ServiceAccount { host, port, directory: self.account.path().to_owned() })
    }

    /// Starts a watch and waits for its first list.
    pub(crate) fn watched(&self) -> WatchedPods {
        let watched = WatchedPods::start(&self.cluster(), NODE).unwrap();
        becomes(&watched, |state| state.synced);
        watched
    }

    /// Creates a pod with this uid on this node, as Istio's injector changes it.
    pub(crate) fn put(&self, name: &str, uid: &str) {
        self.server.put_pod(meshed(name, uid));
    }

    /// Replaces the token by a new one, and revokes the old one.
    pub(crate) fn rotate(&self) {
        self.account.write(&self.server.tokens().issue(Validity::Valid)).unwrap();
    }

    /// Returns the number of GET requests for this pod.
    pub(crate) fn gets(&self, name: &str) -> usize {
        let path = format!("/pods/{name}");
        self.server.requests().iter().filter(|request| request.path.ends_with(&path)).count()
    }

    pub(crate) fn watches(&self) -> usize {
        self.server.requests().iter().filter(|request| request.is_watch()).count()
    }

    pub(crate) fn lists(&self) -> usize {
        self.server.requests().iter().filter(|request| request.is_list_of_pods()).count()
    }

    /// Waits until the recorded requests satisfy `wanted`.
    pub(crate) fn asked(&self, wanted: impl Fn(&[Request]) -> bool) {
        assert!(self.server.wait_for_requests(PATIENCE, wanted), "{:#?}", self.server.requests());
    }
}

pub(crate) fn meshed(name: &str, uid: &str) -> Value {
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
pub(crate) fn asked(pods: &WatchedPods, name: &str, uid: &str) -> Result<String, FactsResponse> {
    let question = json!({ "version": 1, "namespace": "shop", "name": name, "uid": uid }).to_string();
    let pod = wire::decode_request(question.as_bytes()).unwrap().pod;
    let before = Instant::now();
    let answer = pods.wait_for(&pod, before + CALL);
    assert!(before.elapsed() < CALL + Duration::from_secs(5), "{:?}: {answer:?}", before.elapsed());
    match answer {
        FactsResponse::Pod(facts) => Ok(facts.uid),
        other => Err(other),
    }
}

/// Asserts that a query about a cached pod is answered at once, from the cache.
pub(crate) fn knows(pods: &WatchedPods, name: &str, uid: &str) {
    assert_eq!(asked(pods, name, uid), Ok(uid.to_owned()), "{name} {uid} {:?}", pods.state());
}

/// Polls until the watch's state satisfies `wanted`; the state has no notification.
pub(crate) fn becomes(pods: &WatchedPods, wanted: impl Fn(&WatchState) -> bool) {
    wait_until("the watch is in that state", || wanted(&pods.state()));
}
