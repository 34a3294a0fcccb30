//! The pods of the mesh, and requests from one to another.

use std::fmt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gybe_integration::failure::Failure;
use serde::Deserialize;
use serde_json::{Value, json};

use super::workstation::Workstation;
use crate::api::{wait_at_most, wait_for};
use crate::cluster::has_condition;

/// The namespace whose pods istiod injects.
pub(super) const MESHED: &str = "gybe-test-mesh";
/// The namespace of pods without a sidecar.
pub(super) const PLAIN: &str = "gybe-test-plain";
/// The port of the application.
pub(super) const PORT: u16 = 8080;
/// Another port of the application.
pub(super) const EXCLUDED_PORT: u16 = 8082;
/// The port at which the application makes requests for the scenarios; excluded from the redirection.
pub(super) const CONTROL: u16 = 8081;
/// Istio's init container that redirects its pod.
pub(super) const INIT: &str = "istio-init";
/// Istio's validation container, and its exit code when connections are not redirected.
pub(super) const VALIDATION: &str = "istio-validation";
pub(super) const NOT_REDIRECTED: i64 = 126;
/// More than a pod with Envoy takes to be ready on a busy machine.
pub(super) const READY: Duration = Duration::from_secs(180);
/// More than istiod takes to configure running sidecars.
const CONFIGURED: Duration = Duration::from_secs(30);
/// The time between two requests.
const INTERVAL: Duration = Duration::from_millis(200);

/// Which pod: its namespace and its name, which is also that of its service and of its service account.
pub(super) type Name<'n> = (&'n str, &'n str);

/// The nodes on which the clients and the servers of a scenario run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nodes<'n> {
    /// The scheduler's choice.
    Any,
    On {
        clients: &'n str,
        servers: &'n str,
    },
}

impl Nodes<'_> {
    /// Returns the pod on the node of the clients.
    pub(super) fn client(self, pod: Value) -> Value {
        match self {
            Nodes::Any => pod,
            Nodes::On { clients, .. } => on(pod, clients),
        }
    }

    /// Returns the pod on the node of the servers.
    pub(super) fn server(self, pod: Value) -> Value {
        match self {
            Nodes::Any => pod,
            Nodes::On { servers, .. } => on(pod, servers),
        }
    }
}

impl fmt::Display for Nodes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Nodes::Any => f.write_str("any node"),
            Nodes::On { clients, servers } => write!(f, "clients on {clients}, servers on {servers}"),
        }
    }
}

/// Returns the pod on this node, where no taint keeps it off or ends it.
fn on(mut pod: Value, node: &str) -> Value {
    if let Some(spec) = pod.pointer_mut("/spec").and_then(Value::as_object_mut) {
        spec.insert("nodeName".to_owned(), json!(node));
        spec.insert("tolerations".to_owned(), json!([{ "operator": "Exists" }]));
    }
    pod
}

/// Returns an application's pod; [`create`] adds the image.
pub(super) fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": { "app": name },
            "annotations": { "traffic.sidecar.istio.io/excludeInboundPorts": CONTROL.to_string() },
        },
        "spec": {
            "serviceAccountName": name,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "app",
                "imagePullPolicy": "IfNotPresent",
                "args": ["serve", format!("--control={CONTROL}"), PORT.to_string(), EXCLUDED_PORT.to_string()],
                "ports": [{ "containerPort": PORT }],
                "readinessProbe": { "httpGet": { "port": PORT, "path": "/ready" }, "periodSeconds": 1 },
            }],
        },
    })
}

/// Returns the pod with these annotations, too.
pub(super) fn annotated(mut pod: Value, annotations: &[(&str, &str)]) -> Value {
    if let Some(map) = pod.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        map.extend(annotations.iter().map(|(key, value)| ((*key).to_owned(), json!(value))));
    }
    pod
}

/// Returns a pod that makes one request and ends: with 0 if it was answered; [`create`] adds the image.
pub(super) fn ending(name: &str, target: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": name }, "annotations": {} },
        "spec": {
            "serviceAccountName": name,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "app",
                "imagePullPolicy": "IfNotPresent",
                "args": ["get", target],
            }],
        },
    })
}

/// Creates a pod with its service account and service. Waits only for istiod's webhook: the API server's connection to an
/// istiod that ends is reset.
pub(super) fn create(workstation: &Workstation, namespace: &str, pod: &Value) -> Result<(), Failure> {
    let name = pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    create_account(workstation, namespace, name)?;
    let pod = with_image(workstation, pod.clone());
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    wait_for(READY, "istiod's webhook responds", || match workstation.api.create(&pods, &pod) {
        Err(error) if format!("{error:?}").contains("failed calling webhook") => Ok(None),
        created => created.map(|_| Some(())),
    })
}

/// Returns the pod with the application's image in each container that names none.
pub(super) fn with_image(workstation: &Workstation, mut pod: Value) -> Value {
    let containers = pod.pointer_mut("/spec/containers").and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
        container.entry("image").or_insert_with(|| json!(workstation.application));
    }
    pod
}

/// Creates a service account and a service, unless those of a deleted pod exist.
pub(super) fn create_account(workstation: &Workstation, namespace: &str, name: &str) -> Result<(), Failure> {
    let path = |kind: &str| format!("/api/v1/namespaces/{namespace}/{kind}");
    let metadata = json!({ "name": name });
    if workstation.api.get(&format!("{}/{name}", path("serviceaccounts")))?.is_none() {
        workstation.api.create(&path("serviceaccounts"), &json!({ "metadata": metadata }))?;
        let spec = json!({
            "selector": { "app": name },
            "ipFamilyPolicy": "PreferDualStack",
            "ports": [{ "name": "http", "port": PORT }],
        });
        workstation.api.create(&path("services"), &json!({ "metadata": metadata, "spec": spec }))?;
    }
    Ok(())
}

/// Returns a pod as the API server has it.
pub(super) fn get(workstation: &Workstation, (namespace, name): Name<'_>) -> Result<Option<Value>, Failure> {
    workstation.api.get(&format!("/api/v1/namespaces/{namespace}/pods/{name}"))
}

/// Returns the status of an init container of a pod.
pub(super) fn init_status<'p>(pod: &'p Value, container: &str) -> Option<&'p Value> {
    let statuses = pod.pointer("/status/initContainerStatuses").and_then(Value::as_array);
    let is_it = |status: &&Value| status.get("name").and_then(Value::as_str) == Some(container);
    statuses.into_iter().flatten().find(is_it)
}

/// Returns the exit code of an init container that ran once and ended.
pub(super) fn exit_code_of_first_run(pod: &Value, container: &str) -> Option<i64> {
    let status = init_status(pod, container)?;
    if status.get("restartCount").and_then(Value::as_i64) != Some(0) {
        return None;
    }
    status.pointer("/state/terminated/exitCode").and_then(Value::as_i64)
}

/// Returns the exit code of Istio's validation container when it ended last; nothing if it has not ended yet.
pub(super) fn validation_exit_code(pod: &Value) -> Option<i64> {
    let ended = |state| init_status(pod, VALIDATION)?.pointer(state).and_then(Value::as_i64);
    ended("/state/terminated/exitCode").or_else(|| ended("/lastState/terminated/exitCode"))
}

/// Waits until Istio's validation container in a pod has ended, and returns its exit code.
pub(super) fn wait_for_validation(workstation: &Workstation, pod: Name<'_>) -> Result<i64, Failure> {
    wait_for_pod(workstation, pod, READY, &format!("{VALIDATION} has ended"), validation_exit_code)
}

/// Waits until a pod is ready, and returns it.
pub(super) fn wait_until_ready(workstation: &Workstation, pod: Name<'_>) -> Result<Value, Failure> {
    wait_until_ready_for(workstation, pod, READY)
}

/// As [`wait_until_ready`], for at most `limit`.
pub(super) fn wait_until_ready_for(
    workstation: &Workstation,
    pod: Name<'_>,
    limit: Duration,
) -> Result<Value, Failure> {
    wait_for_pod(workstation, pod, limit, "is ready", |pod| has_condition(pod, "Ready").then(|| pod.clone()))
}

/// Waits until `observe` returns a value for a pod, and returns that. A failure has the pod's description and the logs
/// of its containers.
pub(super) fn wait_for_pod<T>(
    workstation: &Workstation,
    pod: Name<'_>,
    limit: Duration,
    what: &str,
    observe: impl Fn(&Value) -> Option<T>,
) -> Result<T, Failure> {
    let (namespace, name) = pod;
    wait_for(limit, &format!("pod {namespace}/{name}: {what}"), || {
        Ok(observe(&get(workstation, pod)?.unwrap_or_default()))
    })
    .map_err(|error| workstation.with_pods(&error, namespace, &[name]))
}

/// Creates a pod and waits until it is ready.
pub(super) fn start(workstation: &Workstation, namespace: &str, pod: &Value) -> Result<Value, Failure> {
    create(workstation, namespace, pod)?;
    let name = pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    wait_until_ready(workstation, (namespace, name))
}

/// Deletes pods, and waits until they are gone.
pub(super) fn delete(workstation: &Workstation, pods: &[Name<'_>]) -> Result<(), Failure> {
    for (namespace, name) in pods {
        workstation.api.delete(&format!("/api/v1/namespaces/{namespace}/pods/{name}"))?;
    }
    wait_at_most(READY, &format!("{pods:?} are deleted"), || {
        for pod in pods {
            if get(workstation, *pod)?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

/// Deletes all pods of a namespace, and waits until they are gone.
pub(super) fn delete_all(workstation: &Workstation, namespace: &str) -> Result<(), Failure> {
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    workstation.api.delete(&pods)?;
    wait_at_most(READY, &format!("the pods of {namespace} are deleted"), || {
        Ok(workstation.api.list(&pods)?.is_empty())
    })
}

/// What a pod's application received for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// An application answered.
    Application(Received),
    /// An answer with another status, from a proxy, and its text.
    Status(u64, String),
    /// The connection failed.
    Error(String),
}

/// What an application received.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Received {
    /// The application's pod.
    pub(super) pod: String,
    /// The address from which the application saw the connection.
    pub(super) peer: String,
    /// The client that the server's sidecar authenticated, as Envoy describes it.
    client: Option<String>,
    /// A sidecar gave the request an id.
    pub(super) has_id: bool,
}

impl Answer {
    /// Reports whether this application answered, and its sidecar authenticated the client by mutual TLS.
    pub(super) fn is_by(&self, server: &str, client: Name<'_>) -> bool {
        let account = format!("ns/{}/sa/{}", client.0, client.1);
        let is_account = |id: &str| id.split_once('/').is_some_and(|(_trust_domain, path)| path == account);
        let is_client = |described: &String| {
            let mut ids = described.split([';', ',']).filter_map(|part| part.strip_prefix("URI=spiffe://"));
            ids.any(is_account)
        };
        matches!(self, Answer::Application(it) if it.pod == server && it.client.as_ref().is_some_and(is_client))
    }

    /// Reports whether this application answered to a client that no sidecar authenticated.
    pub(super) fn is_plain_by(&self, server: &str) -> bool {
        matches!(self, Answer::Application(it) if it.pod == server && it.client.is_none())
    }

    /// Reports whether a sidecar that allows only mutual TLS closed the connection: one that cannot be made, or is not
    /// answered in time, fails with another error.
    pub(super) fn is_refused(&self) -> bool {
        let texts = ["Connection reset by peer", "not an answer: \"\""];
        matches!(self, Answer::Error(error) if texts.iter().any(|text| error.contains(text)))
    }

    /// Reports whether the cluster's DNS server or kube-proxy does not know a new service, or its endpoint, yet.
    fn is_too_early(&self) -> bool {
        let texts = [
            "failed to lookup address information",
            "Connection refused",
            "No route to host",
            "Network is unreachable",
        ];
        matches!(self, Answer::Error(error) if texts.iter().any(|text| error.contains(text)))
    }

    /// What the application received; nothing if none answered.
    pub(super) fn received(&self) -> Option<&Received> {
        if let Answer::Application(received) = self { Some(received) } else { None }
    }

    fn from(answer: &Value) -> Result<Answer, Failure> {
        let text = |key: &str| answer.get(key).and_then(Value::as_str).unwrap_or_default();
        Ok(match answer.get("status").and_then(Value::as_u64) {
            Some(200) => Answer::Application(serde_json::from_str(text("body"))?),
            Some(status) => Answer::Status(status, text("body").to_owned()),
            None => Answer::Error(text("error").to_owned()),
        })
    }
}

/// Makes a request to `HOST:PORT/PATH` from inside a pod; again while the cluster does not know a new service.
pub(super) fn request(workstation: &Workstation, from: Name<'_>, target: &str) -> Result<Answer, Failure> {
    request_until(workstation, from, target, |answer| !answer.is_too_early())
}

/// Makes a request until its answer is as it should be, and returns the last answer.
pub(super) fn request_until(
    workstation: &Workstation,
    from: Name<'_>,
    target: &str,
    is_expected: impl Fn(&Answer) -> bool,
) -> Result<Answer, Failure> {
    let deadline = Instant::now() + CONFIGURED;
    loop {
        let answer = Answer::from(&control(workstation, from, &format!("get/{target}"))?)?;
        if is_expected(&answer) || Instant::now() >= deadline {
            return Ok(answer);
        }
        sleep(INTERVAL);
    }
}

/// Makes a request from a pod of the mesh until its answer proves mutual TLS with this server, and returns the last
/// answer: istiod sends a new service, and a new pod's address, to running sidecars after some time.
pub(super) fn request_by_mutual_tls(
    workstation: &Workstation,
    client: &str,
    server: &str,
    target: &str,
) -> Result<Answer, Failure> {
    let from = (MESHED, client);
    request_until(workstation, from, target, |answer| answer.is_by(server, from))
}

/// Sends a command to the application of a pod, through the API server.
pub(super) fn control(
    workstation: &Workstation,
    (namespace, name): Name<'_>,
    command: &str,
) -> Result<Value, Failure> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:{CONTROL}/proxy/{command}");
    let answer = workstation.api.get(&path)?;
    let missing = || {
        format!(
            "pod {namespace}/{name} does not exist, or its application does not know the command {command}"
        )
    };
    answer.ok_or_else(|| Failure::new(missing()))
}

/// Returns the host and port of a pod's service. Resolvers add the cluster's domain.
pub(super) fn service((namespace, name): Name<'_>) -> String {
    format!("{name}.{namespace}.svc:{PORT}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_taint_keeps_a_pod_off_its_node() {
        let nodes = Nodes::On { clients: "a", servers: "b" };
        let spec = |node: &str| json!({ "nodeName": node, "tolerations": [{ "operator": "Exists" }] });
        let pod = || json!({ "spec": {} });
        assert_eq!(nodes.client(pod()), json!({ "spec": spec("a") }));
        assert_eq!(nodes.server(pod()), json!({ "spec": spec("b") }));
        assert_eq!([Nodes::Any.client(pod()), Nodes::Any.server(pod())], [pod(), pod()]);
    }

    #[test]
    fn only_an_answer_to_an_authenticated_client_proves_mutual_tls() {
        let answer = |client: Value| {
            let body = json!({ "pod": "server", "peer": "127.0.0.6", "client": client, "has_id": true });
            Answer::from(&json!({ "status": 200, "body": body.to_string() })).unwrap()
        };
        let by = "By=spiffe://cluster.local/ns/mesh/sa/server;Hash=0;Subject=\"\"";
        let through = answer(json!(format!("{by};URI=spiffe://cluster.local/ns/mesh/sa/client")));
        assert!(through.is_by("server", ("mesh", "client")) && !through.is_plain_by("server"));
        let elsewhere = answer(json!("URI=spiffe://example.org/ns/mesh/sa/client"));
        assert!(elsewhere.is_by("server", ("mesh", "client")));
        let other = answer(json!("URI=spiffe://example.org/ns/mesh/sa/client/ns/mesh/sa/other"));
        assert!(!other.is_by("server", ("mesh", "client")) && !other.is_by("server", ("mesh", "other")));
        assert!(!through.is_by("server", ("mesh", "clien")) && !through.is_by("other", ("mesh", "client")));
        let plain = answer(Value::Null);
        assert!(!plain.is_by("server", ("mesh", "client")) && plain.is_plain_by("server"));
        let other = |answer: Value| Answer::from(&answer).unwrap();
        let unavailable = Answer::Status(503, "text".to_owned());
        assert_eq!(other(json!({ "status": 503, "body": "text" })), unavailable);
        for (error, is_refused, is_too_early) in [
            ("Connection reset by peer (os error 104)", true, false),
            ("not an answer: \"\"", true, false),
            ("connection timed out", false, false),
            ("failed to lookup address information: Name or service not known", false, true),
            ("Connection refused (os error 111)", false, true),
            ("Network is unreachable (os error 101)", false, true),
        ] {
            let answer = other(json!({ "error": error }));
            assert_eq!((answer.is_refused(), answer.is_too_early()), (is_refused, is_too_early), "{error}");
        }
    }
}
