//! Native and plain sidecars with each backend: requests pass by mutual TLS, a client without a sidecar is refused,
//! Istio's validation container passes, and Gybe's own commands agree.

use gybe_bench::report::Report;
use gybe_integration::failure::Failure;
use serde_json::Value;

use super::Mesh;
use super::application::{
    self, MESHED, PLAIN, VALIDATION, annotated, exit_code_of_first_run, pod, request, service, start,
};
use super::checks::Checks;

const SERVER: &str = "server";
const CLIENT: &str = "client";

pub(super) fn run(mesh: &Mesh) -> Result<Report, Failure> {
    let mut checks = Checks::default();
    for backend in ["nft", "iptables-legacy"] {
        mesh.gybe.install(&mesh.cluster, &[&format!("settings.backend={backend}")])?;
        mesh.gybe.wait_for_backend(&mesh.cluster, backend)?;
        for native in [true, false] {
            requests(mesh, &mut checks, backend, native)?;
        }
    }
    Ok(checks.report("Sidecars"))
}

fn requests(mesh: &Mesh, checks: &mut Checks, backend: &str, native: bool) -> Result<(), Failure> {
    let cluster = &mesh.cluster;
    let kind = if native { "native" } else { "plain" };
    let sidecars = format!("{backend}, {kind} sidecars");
    let title = |what: &str| format!("{sidecars}: {what}");
    let sidecar = ("sidecar.istio.io/nativeSidecar", if native { "true" } else { "false" });
    for name in [SERVER, CLIENT] {
        let started = start(cluster, MESHED, &annotated(pod(name), &[sidecar]))?;
        let expected =
            if native { ["istio-validation", "istio-proxy"].as_slice() } else { &["istio-validation"] };
        checks.equal(
            &title(&format!("init containers of {name}")),
            &init_containers(&started),
            &names(expected),
        );
        checks.equal(
            &title(&format!("exit code of {name}'s istio-validation")),
            &exit_code_of_first_run(&started, VALIDATION),
            &Some(0),
        );
    }
    for name in [SERVER, CLIENT] {
        let written = mesh.gybe.backend_of(cluster, (MESHED, name))?;
        checks.equal(&title(&format!("the backend of {name}'s rules")), &written.as_str(), &backend);
    }
    start(cluster, PLAIN, &pod(SERVER))?;
    start(cluster, PLAIN, &pod(CLIENT))?;

    checks.passes(&title("client to server"), cluster, [CLIENT, SERVER], &service((MESHED, SERVER)))?;
    let answer = request(cluster, (PLAIN, CLIENT), &service((MESHED, SERVER)))?;
    let what = title("a client without a sidecar to the server");
    checks.holds(&what, answer.is_refused(), &answer, "refused");
    // The control: without sidecars the same request is answered.
    let answer = request(cluster, (PLAIN, CLIENT), &service((PLAIN, SERVER)))?;
    checks.holds(&title("the same to a server without one"), answer.is_plain_by(SERVER), &answer, "plain");

    let verdicts = mesh.gybe.verify(cluster)?;
    for name in [SERVER, CLIENT] {
        checks.verdict(&sidecars, &verdicts, (MESHED, name), "redirected");
        checks.verdict(&sidecars, &verdicts, (PLAIN, name), "not meshed");
    }
    application::delete(cluster, &[(MESHED, SERVER), (MESHED, CLIENT), (PLAIN, SERVER), (PLAIN, CLIENT)])
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Returns the names of the init containers that istiod added.
fn init_containers(pod: &Value) -> Vec<String> {
    let containers = pod.pointer("/spec/initContainers").and_then(Value::as_array);
    let names = containers.into_iter().flatten().filter_map(|it| it.get("name").and_then(Value::as_str));
    names.map(str::to_owned).collect()
}
