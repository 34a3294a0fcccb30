//! Ambient pods with the real ztunnel and istiod: requests pass by mutual TLS, which the server requires, while Gybe,
//! ztunnel and a pod's label change. ztunnel's program comes from outside.

use std::path::Path;
use std::time::Duration;

use gybe_bench::report::Report;
use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use super::application::{
    self, Answer, CONTROL, Name, PLAIN, READY, get, pod, request, request_until, service, start, wait_for_pod,
};
use super::family::{FAMILIES, address_of, service_of};
use super::images::{self, HUB, TAG};
use super::istio::{self, NAMESPACE};
use super::load::load_during;
use super::{Mesh, commands, with_cleanup};
use crate::agent;
use crate::api::{wait_at_most, wait_until};
use crate::checks::Checks;
use crate::cluster::Cluster;

const TITLE: &str = "Ambient pods with ztunnel";
const MODE: &str = "istio.io/dataplane-mode";
const SERVER: Name<'_> = (PLAIN, "ambient-server");
const CLIENT: Name<'_> = (PLAIN, "ambient-client");
/// The pod outside of the mesh.
const OUTSIDE: Name<'_> = (PLAIN, "ambient-outside");
const POLICIES: &str = "/apis/security.istio.io/v1/namespaces/gybe-test-plain/peerauthentications";
/// More than a pod with open connections takes to leave.
const LEFT: Duration = Duration::from_secs(120);

pub(super) fn run(mesh: &Mesh) -> Result<Report, Failure> {
    let mut checks = Checks::default();
    match &mesh.ztunnel {
        Some(program) => {
            let outcome = with_ztunnel(mesh, program, &mut checks);
            with_cleanup(outcome, remove(mesh))?;
        }
        None => checks.not_run(TITLE, "the program was not given: ZTUNNEL=PROGRAM"),
    }
    Ok(checks.report(TITLE))
}

fn with_ztunnel(mesh: &Mesh, program: &Path, checks: &mut Checks) -> Result<(), Failure> {
    install(mesh, program)?;
    let workstation = &mesh.workstation;
    let nodes = mesh.apart();
    // The kubelet's probes, too, arrive at a server that requires mutual TLS.
    start(workstation, PLAIN, &nodes.server(ambient(pod(SERVER.1))))?;
    start(workstation, PLAIN, &nodes.client(ambient(pod(CLIENT.1))))?;
    start(workstation, PLAIN, &nodes.client(pod(OUTSIDE.1)))?;
    for pod in [SERVER, CLIENT] {
        wait_for_annotation(mesh, pod, Some("enabled"))?;
    }
    // istiod sends the policy, and that the server takes HBONE, to ztunnel after some time.
    wait_until(
        "plain text is refused",
        || Ok(request(workstation, OUTSIDE, &service(SERVER))?.is_refused()),
    )?;
    wait_for_answer(mesh, CLIENT)?;
    requests(mesh, checks, "at first")?;
    let mut during = |what: &str, step: &dyn Fn() -> Result<(), Failure>| {
        load_during(workstation, checks, CLIENT, &service(SERVER), what, |_| step())?;
        requests(mesh, checks, what)
    };
    let cluster = &mesh.cluster;
    during("the agent is killed", &|| agent::kill_and_wait(cluster).map(drop))?;
    during("Gybe is upgraded", &|| install_gybe(mesh, super::gybe::NEXT))?;
    during("ztunnel is restarted", &|| {
        cluster.run("kubectl", &["rollout", "restart", "daemonset/ztunnel", "--namespace", NAMESPACE])?;
        wait_for_ztunnel(cluster)
    })?;
    let leave = || {
        label(mesh, SERVER, "none")?;
        wait_for_annotation(mesh, SERVER, None)?;
        wait_for_verdict(mesh, SERVER, "not meshed")
    };
    let come_back = || {
        label(mesh, SERVER, "ambient")?;
        wait_for_verdict(mesh, SERVER, "redirected")?;
        wait_for_annotation(mesh, SERVER, Some("enabled"))
    };
    load_during(workstation, checks, CLIENT, &service(SERVER), "the server leaves", |_| leave())?;
    // Until ztunnel knows that the server takes HBONE again, mutual TLS would refuse requests.
    mesh.workstation.api.delete(&policy())?;
    come_back()?;
    wait_for_answer(mesh, OUTSIDE)?;
    load_during(workstation, checks, CLIENT, &service(SERVER), "the server leaves, and comes back", |_| {
        leave()?;
        come_back()
    })?;
    application::delete(workstation, &[SERVER, CLIENT, OUTSIDE])
}

/// Returns the pod with the label of ambient mode.
fn ambient(mut pod: Value) -> Value {
    if let Some(labels) = pod.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.insert(MODE.to_owned(), json!("ambient"));
    }
    pod
}

/// Returns the path of the policy that requires mutual TLS.
fn policy() -> String {
    format!("{POLICIES}/{}", SERVER.1)
}

/// Installs ztunnel, and Gybe in ambient mode; mutual TLS is required of the server, except at the port of the scenarios.
fn install(mesh: &Mesh, program: &Path) -> Result<(), Failure> {
    let cluster = &mesh.cluster;
    let policy = json!({
        "apiVersion": "security.istio.io/v1",
        "kind": "PeerAuthentication",
        "metadata": { "name": SERVER.1 },
        "spec": {
            "selector": { "matchLabels": { "app": SERVER.1 } },
            "mtls": { "mode": "STRICT" },
            "portLevelMtls": { CONTROL.to_string(): { "mode": "PERMISSIVE" } },
        },
    });
    mesh.workstation.api.create(POLICIES, &policy)?;
    istio::upgrade(cluster, &mesh.charts, &["pilot.env.PILOT_ENABLE_AMBIENT=true"])?;
    images::import_ztunnel(cluster, program)?;
    let chart = mesh.charts.join("ztunnel").to_string_lossy().into_owned();
    let hub = format!("hub={HUB},tag={TAG},imagePullPolicy=Never");
    let requests = "resources.requests.cpu=1m,resources.requests.memory=16Mi";
    let install = ["upgrade", "--install", "ztunnel", &chart, "--namespace", NAMESPACE];
    cluster.run("helm", &[&install[..], &["--set", &hub, "--set", requests]].concat())?;
    install_gybe(mesh, env!("CARGO_PKG_VERSION"))?;
    wait_for_ztunnel(cluster)
}

fn install_gybe(mesh: &Mesh, version: &str) -> Result<(), Failure> {
    let tag = format!("image.tag={version}");
    mesh.gybe.install(&mesh.cluster, &["settings.backend=nft", "ambient.enabled=true", &tag])
}

fn wait_for_ztunnel(cluster: &Cluster) -> Result<(), Failure> {
    let status = ["rollout", "status", "daemonset/ztunnel", "--namespace", NAMESPACE, "--timeout=180s"];
    cluster
        .run("kubectl", &status)
        .map(drop)
        .map_err(|error| cluster.with_pods(&error, NAMESPACE, &["-l", "app=ztunnel"]))
}

/// Restores what the other scenarios need.
fn remove(mesh: &Mesh) -> Result<(), Failure> {
    let cluster = &mesh.cluster;
    if mesh.workstation.api.get(&policy())?.is_some() {
        mesh.workstation.api.delete(&policy())?;
    }
    mesh.ensure_gybe()?;
    cluster.run("helm", &["uninstall", "ztunnel", "--namespace", NAMESPACE, "--ignore-not-found"])?;
    istio::upgrade(cluster, &mesh.charts, &[])
}

/// Makes requests between the pods, in both families.
fn requests(mesh: &Mesh, checks: &mut Checks, what: &str) -> Result<(), Failure> {
    let workstation = &mesh.workstation;
    for family in FAMILIES {
        let title = |about: &str| format!("{what}: {about}, {family}");
        let address =
            |pod: Name<'_>| Ok::<_, Failure>(address_of(family, &get(workstation, pod)?.unwrap_or_default()));
        let [server, outside] = [SERVER, OUTSIDE].map(|pod| service_of(family, workstation, pod));
        let (server, outside) = (server?, outside?);
        for (about, from, to, by) in [
            ("client to server, which requires mutual TLS", CLIENT, &server, SERVER),
            ("client to a pod outside of the mesh", CLIENT, &outside, OUTSIDE),
        ] {
            let client = address(from)?;
            let is_expected =
                |answer: &Answer| answer.received().is_some_and(|it| it.pod == by.1 && it.peer == client);
            // istiod sends a new service to ztunnel after some time.
            let answer = request_until(workstation, from, to, is_expected)?;
            checks.holds(&title(about), is_expected(&answer), &answer, "answered, from the client's address");
        }
        let answer = request(workstation, OUTSIDE, &server)?;
        checks.holds(&title("a pod outside of the mesh to server"), answer.is_refused(), &answer, "refused");
    }
    // An agent is not ready until its ztunnel is connected.
    wait_until("each node has an agent that is ready", || {
        let agents = commands::ready_agents(workstation)?;
        Ok(mesh.nodes.iter().all(|node| agents.iter().any(|agent| agent.node == *node)))
    })?;
    let verdicts = commands::verify(workstation, &[SERVER, CLIENT, OUTSIDE])?;
    for (pod, expected) in [(SERVER, "redirected"), (CLIENT, "redirected"), (OUTSIDE, "not meshed")] {
        checks.verdict(what, &verdicts, pod, expected);
    }
    Ok(())
}

fn label(mesh: &Mesh, (namespace, name): Name<'_>, mode: &str) -> Result<(), Failure> {
    let patch = json!({ "metadata": { "labels": { MODE: mode } } });
    mesh.workstation.api.patch(&format!("/api/v1/namespaces/{namespace}/pods/{name}"), &patch).map(drop)
}

/// Waits until istiod can learn from the pod's annotation whether it takes HBONE.
fn wait_for_annotation(mesh: &Mesh, pod: Name<'_>, expected: Option<&str>) -> Result<(), Failure> {
    let is_expected = |pod: &Value| {
        let found =
            pod.pointer("/metadata/annotations/ambient.istio.io~1redirection").and_then(Value::as_str);
        (found == expected).then_some(())
    };
    wait_for_pod(&mesh.workstation, pod, READY, &format!("its annotation is {expected:?}"), is_expected)
}

fn wait_for_answer(mesh: &Mesh, client: Name<'_>) -> Result<(), Failure> {
    wait_until(&format!("the server answers {}", client.1), || {
        Ok(request(&mesh.workstation, client, &service(SERVER))?.received().is_some())
    })
}

fn wait_for_verdict(mesh: &Mesh, pod: Name<'_>, expected: &str) -> Result<(), Failure> {
    let name = format!("{}/{}", pod.0, pod.1);
    wait_at_most(LEFT, &format!("`gybe verify --all` reports {name} as {expected}"), || {
        // It fails while no agent is ready.
        let verdicts = commands::verify(&mesh.workstation, &[pod]).unwrap_or_default();
        Ok(verdicts
            .iter()
            .any(|(found, verdict)| *found == name && verdict.split(':').next() == Some(expected)))
    })
}
