//! Pods of the mesh and outside of it, and the connections that show whether a pod is redirected.

use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use gybe_containerd_tests::WORKLOAD;
use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use crate::network::NODE_ADDRESS;

/// The application's port.
const APPLICATION: u16 = 8080;
/// A port of the application that is excluded from the redirection: there it answers what a connection from the pod
/// to the node's listener answers.
const RELAY: u16 = 8081;
/// The port of the node's listener.
const OUTSIDE: u16 = 8099;
/// The proxy's ports.
const OUTBOUND: u16 = 15001;
const INBOUND: u16 = 15006;
/// A pod's answer takes longer than the connection that it makes.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The time between two attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Whether a pod has a sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Meshed,
    Plain,
}

/// A pod with an application and, in the mesh, a sidecar as Istio's injector adds it in CNI mode.
pub(crate) fn pod(kind: Kind, namespace: &str, name: &str, label: &str) -> Value {
    let relay = format!("{RELAY}={NODE_ADDRESS}:{OUTSIDE}");
    let mut containers = vec![container("app", &[&APPLICATION.to_string(), &relay], 1000)];
    let mut annotations = json!({});
    if kind == Kind::Meshed {
        containers.push(container("istio-proxy", &[&OUTBOUND.to_string(), &INBOUND.to_string()], 1337));
        annotations = json!({
            "sidecar.istio.io/status": "{}",
            "traffic.sidecar.istio.io/excludeInboundPorts": RELAY.to_string(),
        });
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": { "storm": label },
            "annotations": annotations,
        },
        "spec": {
            "containers": containers,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            // With 0 the API server deletes the object before the kubelet has ended the pod.
            "terminationGracePeriodSeconds": 1,
        },
    })
}

/// Returns the pod on this node, without the scheduler.
pub(crate) fn on(node: &str, pod: Value) -> Value {
    with("nodeName", node, pod)
}

/// Returns the pod with this RuntimeClass.
pub(crate) fn of_class(class: &str, pod: Value) -> Value {
    with("runtimeClassName", class, pod)
}

fn with(key: &str, value: &str, mut pod: Value) -> Value {
    if let Some(spec) = pod.pointer_mut("/spec").and_then(Value::as_object_mut) {
        spec.insert(key.to_owned(), json!(value));
    }
    pod
}

fn container(name: &str, arguments: &[&str], user: u32) -> Value {
    json!({
        "name": name,
        "image": WORKLOAD.name,
        "imagePullPolicy": "Never",
        "args": arguments,
        "securityContext": { "runAsUser": user, "runAsGroup": user },
    })
}

/// Starts the node's listener, which ends with the process.
pub(crate) fn listen_outside() -> Result<(), Failure> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, OUTSIDE))?;
    thread::spawn(move || {
        for connection in listener.incoming() {
            // A client may close its end at once.
            let _ =
                connection.and_then(|mut it| io::Write::write_all(&mut it, OUTSIDE.to_string().as_bytes()));
        }
    });
    Ok(())
}

/// The listeners that a connection to a pod and one from it reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reached {
    inbound: String,
    outbound: String,
}

impl Reached {
    /// The listeners of a pod of this kind.
    pub(crate) fn expected(kind: Kind) -> Reached {
        let (inbound, outbound) = match kind {
            Kind::Meshed => (INBOUND, OUTBOUND),
            Kind::Plain => (APPLICATION, OUTSIDE),
        };
        Reached { inbound: inbound.to_string(), outbound: outbound.to_string() }
    }

    /// Connects to a pod from the node, and from the pod to the node.
    pub(crate) fn by(pod: &Value) -> Reached {
        let answer = |port| match pod.pointer("/status/podIP").and_then(Value::as_str).map(str::parse) {
            Some(Ok(address)) => connect(address, port).unwrap_or_else(|error| error.to_string()),
            _ => "the pod has no address".to_owned(),
        };
        Reached { inbound: answer(APPLICATION), outbound: answer(RELAY) }
    }
}

fn connect(address: IpAddr, port: u16) -> io::Result<String> {
    let begin = Instant::now();
    let mut connection = loop {
        match TcpStream::connect_timeout(&SocketAddr::new(address, port), TIMEOUT) {
            // A container is ready before its program listens.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused && begin.elapsed() < TIMEOUT => {
                thread::sleep(RETRY_INTERVAL);
            }
            connection => break connection?,
        }
    };
    connection.set_read_timeout(Some(TIMEOUT))?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer)
}
