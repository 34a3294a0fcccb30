//! A call of the plugin with an agent's socket in its configuration and with the runtime's annotations.

use crate::pods::Pods;
use crate::program::{Outcome, run};
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
