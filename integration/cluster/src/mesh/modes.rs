//! What annotations, and the kinds of pods, change: TPROXY, IPv6, DNS capture, excluded ports and addresses, proxies
//! for which the application waits, and pods that end.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use gybe_bench::report::Report;
use gybe_containerd_tests::SimulatedHost;
use gybe_integration::failure::Failure;
use gybe_netfilter::model::ruleset::Family;
use serde_json::{Value, json};

use super::Mesh;
use super::application::{
    self, Answer, CONTROL, EXCLUDED_PORT, MESHED, Name, Nodes, PLAIN, PORT, READY, VALIDATION, annotated,
    control, create, ending, exit_code_of_first_run, get, pod, request, service, start, wait_for_pod,
    wait_until_ready, with_image,
};
use super::commands;
use super::family::{self, FAMILIES, ranges};
use super::workstation::Workstation;
use crate::agent::{self, GYBE};
use crate::api::{wait_at_most, wait_until};
use crate::checks::Checks;
use crate::cluster::has_condition;

pub(super) const SERVER: &str = "modes-server";
pub(super) const CLIENT: &str = "modes-client";
const TPROXY: &str = "tproxy";
const DNS_CLIENT: &str = "dns-client";
const PORT_CLIENT: &str = "excluded-port-client";
const RANGE_CLIENT: &str = "excluded-range-client";
const USER_NAMESPACE: &str = "user-namespace";
/// A host that only istiod knows.
const HOST: &str = "only-in-the-mesh.internal";

/// The pods of [`start_pods`] in the mesh.
pub(super) const MESHED_PODS: [&str; 4] = [SERVER, CLIENT, TPROXY, DNS_CLIENT];
/// The pods of [`start_pods`].
pub(super) const PODS: [Name<'_>; 6] = [
    (MESHED, SERVER),
    (MESHED, CLIENT),
    (MESHED, TPROXY),
    (MESHED, DNS_CLIENT),
    (PLAIN, SERVER),
    (PLAIN, CLIENT),
];
/// The pods with exclusions.
const EXCLUDING: [Name<'_>; 2] = [(MESHED, PORT_CLIENT), (MESHED, RANGE_CLIENT)];

pub(super) fn run(mesh: &Mesh) -> Result<Report, Failure> {
    let workstation = &mesh.workstation;
    let mut checks = Checks::default();
    mesh.ensure_gybe()?;
    for nodes in mesh.between_nodes() {
        checks.part(&nodes.to_string());
        connections(workstation, &mut checks, nodes)?;
        let client = get(workstation, (MESHED, CLIENT))?.unwrap_or_default();
        checks.equal("families of a sidecar", &family::served_by(&client), &FAMILIES.to_vec());
        for family in FAMILIES {
            let replaced = replaced_client(workstation, family, &request_plain(workstation, family)?)?;
            checks.equal(&format!("an address that replaces the client's, {family}"), &replaced, &None);
        }
        match mesh.versions.without_user_namespaces() {
            None => user_namespace(mesh, &mut checks, nodes)?,
            Some(reason) => checks.not_run("a pod with `hostUsers: false`", reason),
        }
        application::delete(workstation, &[&PODS[..], &EXCLUDING].concat())?;
    }
    Ok(checks.report("Modes of redirection and kinds of pods"))
}

/// Starts the pods and makes requests, for which an API server suffices. The pods stay.
pub(super) fn connections(
    workstation: &Workstation,
    checks: &mut Checks,
    nodes: Nodes<'_>,
) -> Result<(), Failure> {
    let ports = format!("{CONTROL},{EXCLUDED_PORT}");
    start_pods(workstation, checks, "kinds of pods", VALIDATION, |name, pod| match name {
        SERVER => nodes.server(annotated(pod, &[("traffic.sidecar.istio.io/excludeInboundPorts", &ports)])),
        TPROXY => nodes.server(pod),
        _ => nodes.client(pod),
    })?;
    let client = get(workstation, (MESHED, CLIENT))?.unwrap_or_default();
    for family in family::served_by(&client) {
        requests(workstation, checks, family)?;
        dns(workstation, checks, family)?;
    }
    start_excluding(workstation, nodes)?;
    excluded(workstation, checks)?;
    ends(workstation, checks, nodes)?;
    probes(workstation, checks)
}

/// Starts the pods that [`requests`] and [`dns`] need, each as `adjust` returns it for its name, and records that the
/// init container of those in the mesh has succeeded. Returns them as [`PODS`] has them.
pub(super) fn start_pods(
    workstation: &Workstation,
    checks: &mut Checks,
    what: &str,
    init_container: &str,
    adjust: impl Fn(&str, Value) -> Value,
) -> Result<Vec<Value>, Failure> {
    for (namespace, name) in PODS {
        let pod = match name {
            TPROXY => with_tproxy(pod(name)),
            DNS_CLIENT => with_dns_capture(pod(name)),
            _ => pod(name),
        };
        create(workstation, namespace, &adjust(name, pod))?;
    }
    let mut started = Vec::new();
    for (namespace, name) in PODS {
        let pod = wait_until_ready(workstation, (namespace, name))?;
        if namespace == MESHED {
            let title = format!("{what}: exit code of {name}'s {init_container}");
            checks.equal(&title, &exit_code_of_first_run(&pod, init_container), &Some(0));
        }
        started.push(pod);
    }
    Ok(started)
}

/// Starts the clients with exclusions.
fn start_excluding(workstation: &Workstation, nodes: Nodes<'_>) -> Result<(), Failure> {
    let of_servers = [ranges(workstation, (MESHED, SERVER))?, ranges(workstation, (PLAIN, SERVER))?];
    let excluded = [
        ("traffic.sidecar.istio.io/excludeOutboundPorts", PORT.to_string()),
        ("traffic.sidecar.istio.io/excludeOutboundIPRanges", of_servers.concat().join(",")),
    ];
    for ((namespace, name), (key, value)) in EXCLUDING.iter().zip(&excluded) {
        create(workstation, namespace, &nodes.client(annotated(pod(name), &[(key, value)])))?;
    }
    EXCLUDING.iter().try_for_each(|pod| wait_until_ready(workstation, *pod).map(drop))
}

/// Services of one family. REDIRECT gives the application's connections an address of the proxy's; TPROXY keeps the
/// client's. Outbound, both modes redirect.
pub(super) fn requests(
    workstation: &Workstation,
    checks: &mut Checks,
    family: Family,
) -> Result<(), Failure> {
    // The control: without sidecars the same requests are answered.
    let plain = request_plain(workstation, family)?;
    let what = format!("a client without a sidecar to a server without one, {family}");
    checks.holds(&what, plain.is_plain_by(SERVER), &plain, "plain");
    let replaced = replaced_client(workstation, family, &plain)?;
    let client = get(workstation, (MESHED, CLIENT))?.unwrap_or_default();
    let of_client = family::address_of(family, &client);
    for (server, peer) in [(SERVER, family::proxy(family)), (TPROXY, of_client.as_str())] {
        let target = family::service_of(family, workstation, (MESHED, server))?;
        let what = format!("{CLIENT} to {server}, {family}");
        let answer = checks.passes(&what, workstation, [CLIENT, server], &target)?;
        let what = format!("the client's address in {server}, {family}");
        match &replaced {
            Some(address) if server == TPROXY => checks.not_run(
                &what,
                &format!("the cluster replaces it: a server without a sidecar observes {address}"),
            ),
            _ => {
                let observed = answer.received().map(|received| received.peer.as_str());
                checks.equal(&what, &observed, &Some(peer));
            }
        }
        let answer = request(workstation, (PLAIN, CLIENT), &target)?;
        let what = format!("a client without a sidecar to {server}, {family}");
        checks.holds(&what, answer.is_refused(), &answer, "refused");
    }
    let target = family::service_of(family, workstation, (MESHED, SERVER))?;
    checks
        .passes(&format!("{TPROXY} to {SERVER}, {family}"), workstation, [TPROXY, SERVER], &target)
        .map(drop)
}

/// Makes a request that no sidecar sees.
fn request_plain(workstation: &Workstation, family: Family) -> Result<Answer, Failure> {
    let target = family::service_of(family, workstation, (PLAIN, SERVER))?;
    request(workstation, (PLAIN, CLIENT), &target)
}

/// Returns the address that replaced the client's in the answer to [`request_plain`]: a cluster may masquerade.
fn replaced_client(
    workstation: &Workstation,
    family: Family,
    answer: &Answer,
) -> Result<Option<String>, Failure> {
    let client = get(workstation, (PLAIN, CLIENT))?.unwrap_or_default();
    let peer = answer.received().map(|received| received.peer.clone());
    Ok(peer.filter(|peer| *peer != family::address_of(family, &client)))
}

/// Returns the pod with `hostUsers: false`.
fn in_a_user_namespace(mut pod: Value) -> Value {
    if let Some(spec) = pod.pointer_mut("/spec").and_then(Value::as_object_mut) {
        spec.insert("hostUsers".to_owned(), json!(false));
    }
    pod
}

/// A pod with users of its own is redirected as others are, and repaired.
fn user_namespace(mesh: &Mesh, checks: &mut Checks, nodes: Nodes<'_>) -> Result<(), Failure> {
    let (cluster, workstation) = (&mesh.cluster, &mesh.workstation);
    let pod = start(workstation, MESHED, &nodes.server(in_a_user_namespace(pod(USER_NAMESPACE))))?;
    let uid = pod.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
    let node = cluster.node_of(&pod)?;
    let maps = user_maps(node.host(), uid)?;
    let is_mapped = !maps.is_empty() && maps.iter().all(|first| first.as_str() != "0");
    checks.holds(
        "users of the node that are root in a pod with `hostUsers: false`",
        is_mapped,
        &maps,
        "not root",
    );
    for [from, to] in [[USER_NAMESPACE, SERVER], [CLIENT, USER_NAMESPACE]] {
        checks.passes(&format!("{from} to {to}"), workstation, [from, to], &service((MESHED, to)))?;
    }
    let answer = request(workstation, (PLAIN, CLIENT), &service((MESHED, USER_NAMESPACE)))?;
    checks.holds("a client without a sidecar to that pod", answer.is_refused(), &answer, "refused");
    node.host().run(Path::new(GYBE), &["remove", "--pod", &format!("{MESHED}/{USER_NAMESPACE}")])?;
    wait_until("the event about the repair of the pod with `hostUsers: false`", || {
        Ok(!agent::events(cluster, &pod, "RedirectionRepaired")?.is_empty())
    })?;
    let what = "a pod with `hostUsers: false` that had lost its rules";
    checks.redirected(what, &commands::verify(workstation, &[(MESHED, USER_NAMESPACE)])?, &[USER_NAMESPACE]);
    let target = service((MESHED, USER_NAMESPACE));
    checks.passes(&format!("{CLIENT} to {what}"), workstation, [CLIENT, USER_NAMESPACE], &target)?;
    application::delete(workstation, &[(MESHED, USER_NAMESPACE)])
}

/// Returns which user of the node is root in each process of a pod's containers.
fn user_maps(host: &SimulatedHost, pod_uid: &str) -> Result<BTreeSet<String>, Failure> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(host.path("/proc"))? {
        let process = entry?.path();
        // A process may end meanwhile.
        let text = |file: &str| fs::read_to_string(process.join(file)).unwrap_or_default();
        if text("cgroup").contains(&format!("/pod{pod_uid}/")) {
            found.extend(text("uid_map").split_whitespace().nth(1).map(str::to_owned));
        }
    }
    Ok(found)
}

/// With DNS capture pilot-agent answers for hosts that only istiod knows, and forwards other queries.
pub(super) fn dns(workstation: &Workstation, checks: &mut Checks, family: Family) -> Result<(), Failure> {
    let entries = format!("/apis/networking.istio.io/v1/namespaces/{MESHED}/serviceentries");
    let spec = json!({
        "hosts": [HOST],
        "addresses": [family::of_no_host(family)],
        "location": "MESH_INTERNAL",
        "resolution": "STATIC",
        "ports": [{ "number": PORT, "name": "http", "protocol": "HTTP" }],
        "workloadSelector": { "labels": { "app": SERVER } },
    });
    let entry = json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": "ServiceEntry",
        "metadata": { "name": "host" },
        "spec": spec,
    });
    workstation.api.create(&entries, &entry)?;
    let outcome = resolved_host(workstation, checks, family);
    workstation.api.delete(&format!("{entries}/host"))?;
    outcome
}

/// Requests to the host that only istiod knows, and to one of the cluster's.
fn resolved_host(workstation: &Workstation, checks: &mut Checks, family: Family) -> Result<(), Failure> {
    let resolved = |client| control(workstation, client, &format!("resolve/{HOST}"));
    wait_at_most(READY, &format!("pilot-agent answers for a host of istiod, {family}"), || {
        Ok(resolved((MESHED, DNS_CLIENT))? == json!([family::of_no_host(family)]))
    })?;
    checks.equal(&format!("addresses without a sidecar, {family}"), &resolved((PLAIN, CLIENT))?, &json!([]));
    let pair = [DNS_CLIENT, SERVER];
    let what = format!("a request to a host that only pilot-agent resolves, {family}");
    checks.passes(&what, workstation, pair, &format!("{HOST}:{PORT}"))?;
    let target = family::service_of(family, workstation, (MESHED, SERVER))?;
    let what = format!("a request to a host that the cluster's DNS server resolves, {family}");
    checks.passes(&what, workstation, pair, &target).map(drop)
}

/// Returns the pod with TPROXY for inbound connections.
fn with_tproxy(pod: Value) -> Value {
    annotated(pod, &[("sidecar.istio.io/interceptionMode", "TPROXY")])
}

/// Returns the pod with DNS capture.
fn with_dns_capture(pod: Value) -> Value {
    let capture = json!({ "proxyMetadata": { "ISTIO_META_DNS_CAPTURE": "true" } }).to_string();
    annotated(pod, &[("proxy.istio.io/config", &capture)])
}

/// Connections to excluded ports and addresses miss the sidecar, and only these.
fn excluded(workstation: &Workstation, checks: &mut Checks) -> Result<(), Failure> {
    let server = get(workstation, (MESHED, SERVER))?.unwrap_or_default();
    let address: IpAddr =
        server.pointer("/status/podIP").and_then(Value::as_str).unwrap_or_default().parse()?;
    let at = |port| SocketAddr::new(address, port).to_string();
    let answer = request(workstation, (PLAIN, CLIENT), &at(EXCLUDED_PORT))?;
    let is_plain = answer.is_plain_by(SERVER);
    checks.holds("a client without a sidecar to an excluded inbound port", is_plain, &answer, "plain");
    let answer = request(workstation, (PLAIN, CLIENT), &at(PORT))?;
    checks.holds("the same to the other port", answer.is_refused(), &answer, "refused");
    for (client, is_redirected) in [(CLIENT, true), (PORT_CLIENT, false), (RANGE_CLIENT, false)] {
        // Envoy gives each request that it forwards an id.
        let answer = request(workstation, (MESHED, client), &service((PLAIN, SERVER)))?;
        let has_id = answer.received().map(|received| received.has_id);
        checks.equal(&format!("{client}'s request passes its sidecar"), &has_id, &Some(is_redirected));
        let (target, what) = (service((MESHED, SERVER)), format!("{client} to {SERVER}"));
        if is_redirected {
            checks.passes(&what, workstation, [client, SERVER], &target)?;
        } else {
            let answer = request(workstation, (MESHED, client), &target)?;
            checks.holds(&what, answer.is_refused(), &answer, "refused");
        }
    }
    Ok(())
}

/// An application whose first request passes because it waits for its proxy, and a Job that ends.
fn ends(workstation: &Workstation, checks: &mut Checks, nodes: Nodes<'_>) -> Result<(), Failure> {
    let target = service((MESHED, SERVER));
    let hold = json!({ "holdApplicationUntilProxyStarts": true }).to_string();
    let waiting = annotated(
        ending("waiting", &target),
        &[("proxy.istio.io/config", &hold), ("sidecar.istio.io/nativeSidecar", "false")],
    );
    create(workstation, MESHED, &nodes.client(waiting))?;
    let exit_code =
        wait_for_pod(workstation, (MESHED, "waiting"), READY, "the application has ended", |pod| {
            let mut statuses = pod.pointer("/status/containerStatuses")?.as_array()?.iter();
            let status = statuses.find(|status| status.get("name").and_then(Value::as_str) == Some("app"))?;
            status.pointer("/state/terminated/exitCode")?.as_i64()
        })?;
    checks.equal("exit code of an application with one request, which waits for its proxy", &exit_code, &0);

    let native = [("sidecar.istio.io/nativeSidecar", "true")];
    let template = with_image(workstation, nodes.client(annotated(ending("job", &target), &native)));
    let jobs = format!("/apis/batch/v1/namespaces/{MESHED}/jobs");
    let job = json!({
        "metadata": { "name": "job" },
        "spec": { "backoffLimit": 0, "template": template },
    });
    application::create_account(workstation, MESHED, "job")?;
    workstation.api.create(&jobs, &job)?;
    let mut found = Value::Null;
    let ended = wait_at_most(READY, "the Job has ended", || {
        found = workstation.api.get(&format!("{jobs}/job"))?.unwrap_or_default();
        Ok(has_condition(&found, "Complete") || has_condition(&found, "Failed"))
    });
    workstation.api.delete(&format!("{jobs}/job?propagationPolicy=Background"))?;
    ended?;
    checks.equal(
        "a Job with one request and a native sidecar is complete",
        &has_condition(&found, "Complete"),
        &true,
    );
    application::delete(workstation, &[(MESHED, "waiting")])
}

/// The kubelet's probes reach the application through pilot-agent: the kubelet has no client certificate.
fn probes(workstation: &Workstation, checks: &mut Checks) -> Result<(), Failure> {
    let server = get(workstation, (MESHED, SERVER))?.unwrap_or_default();
    // Where a sidecar starts before the application, it may be the first container.
    let containers = server.pointer("/spec/containers").and_then(Value::as_array);
    let is_application = |it: &&Value| it.get("name").and_then(Value::as_str) == Some("app");
    let application = containers.into_iter().flatten().find(is_application);
    let path = application.and_then(|it| it.pointer("/readinessProbe/httpGet/path")?.as_str());
    checks.equal(
        "the path of a readiness probe that istiod has rewritten",
        &path,
        &Some("/app-health/app/readyz"),
    );
    checks.equal("the pod is ready", &has_condition(&server, "Ready"), &true);
    Ok(())
}
