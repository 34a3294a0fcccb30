//! A call of the plugin with an agent's socket in its configuration and with the runtime's annotations, and a directory
//! of manifests for it.

use crate::program::{Outcome, run};
use gybe_test_support::TestDir;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The annotation that the injector adds.
pub(crate) const STATUS: &str = "sidecar.istio.io/status";

/// A configuration with the socket of an agent in the directory of `pods`.
pub(crate) fn entry(pods: &Pods, annotations: Option<Value>) -> Value {
    let runtime = annotations.map(|these| json!({ "io.kubernetes.cri.pod-annotations": these }));
    json!({
        "cniVersion": "1.0.0", "name": "net", "type": "gybe-cni", "pod_namespace": "gybe-system",
        "facts": { "socket": pods.0.join("facts.sock"), "deadline_ms": 400 },
        "runtimeConfig": runtime, "prevResult": { "cniVersion": "1.0.0" },
    })
}

/// The variables of a call about a pod whose network namespace does not exist.
pub(crate) fn environment<'a>(verb: &'a str, args: &'a str) -> [(&'a str, &'a str); 6] {
    [
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/nonexistent"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
        ("CNI_ARGS", args),
    ]
}

/// Calls the plugin for a pod, `namespace/name`, and checks that it ends in time.
pub(crate) fn call(verb: &str, pod: &str, entry: &Value) -> Outcome {
    let (namespace, name) = pod.split_once('/').unwrap();
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_UID=u1");
    let before = Instant::now();
    let outcome = run(environment(verb, &args), &entry.to_string());
    assert!(before.elapsed() < Duration::from_secs(20), "{:?}: {outcome:?}", before.elapsed());
    outcome
}

/// A directory of manifests for one test.
pub(crate) struct Pods(pub(crate) TestDir);

impl Pods {
    pub(crate) fn new(test: &str) -> Self {
        Self(TestDir::new(&format!("cni-{test}")))
    }

    /// Writes the pod's manifest to the path where the plugin looks for it.
    pub(crate) fn add(&self, namespace: &str, name: &str, manifest: &Value) {
        self.0.write(format!("{namespace}/{name}.json"), manifest.to_string());
    }

    /// The value of the key `facts` for this directory.
    pub(crate) fn facts(&self) -> Value {
        json!({ "directory": self.0.path() })
    }
}

/// A pod as Istio's injector leaves it, with these annotations added.
pub(crate) fn meshed(annotations: &[(&str, &str)]) -> Value {
    let mut pod = json!({
        "metadata": { "annotations": { "sidecar.istio.io/status": "{}" } },
        "spec": { "containers": [{ "name": "app" }, { "name": "istio-proxy", "args": ["proxy", "sidecar"] }] },
    });
    for (name, value) in annotations {
        pod["metadata"]["annotations"][*name] = (*value).into();
    }
    pod
}
