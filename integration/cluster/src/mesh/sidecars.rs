//! Native and plain sidecars with each backend: requests pass by mutual TLS, a client without a sidecar is refused,
//! Istio's validation container passes, and Gybe's own commands agree.

use gybe_bench::report::Report;
use gybe_integration::failure::Failure;
use serde_json::Value;

use super::Mesh;
use super::application::{
    self, INIT, MESHED, Nodes, PLAIN, VALIDATION, annotated, exit_code_of_first_run, pod, request, service,
    start,
};
use super::commands;
use super::workstation::Workstation;
use crate::checks::Checks;

const SERVER: &str = "server";
const CLIENT: &str = "client";

/// The sidecars of the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sidecars {
    Native,
    Plain,
    /// Native or plain, as istiod is configured.
    Configured,
}

pub(super) fn run(mesh: &Mesh) -> Result<Report, Failure> {
    let workstation = &mesh.workstation;
    let mut checks = Checks::default();
    for backend in ["nft", "iptables-legacy"] {
        mesh.gybe.install(&mesh.cluster, &[&format!("settings.backend={backend}")])?;
        mesh.wait_for_backend(backend)?;
        for (kind, sidecars) in [("native", Sidecars::Native), ("plain", Sidecars::Plain)] {
            for nodes in mesh.between_nodes() {
                let what = format!("{backend}, {kind} sidecars, {nodes}");
                requests(workstation, &mut checks, &what, sidecars, nodes)?;
            }
        }
    }
    Ok(checks.report("Sidecars"))
}

impl Sidecars {
    fn annotations(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Sidecars::Native => &[("sidecar.istio.io/nativeSidecar", "true")],
            Sidecars::Plain => &[("sidecar.istio.io/nativeSidecar", "false")],
            Sidecars::Configured => &[],
        }
    }

    /// Reports whether a pod with these init containers has such a sidecar, and leaves the redirection to a CNI plugin.
    fn have(self, init_containers: &[&str]) -> bool {
        match self {
            Sidecars::Native => init_containers == [VALIDATION, "istio-proxy"],
            Sidecars::Plain => init_containers == [VALIDATION],
            Sidecars::Configured => init_containers.contains(&VALIDATION) && !init_containers.contains(&INIT),
        }
    }

    /// The same for a report.
    fn init_containers(self) -> &'static str {
        match self {
            Sidecars::Native => "istio-validation and istio-proxy",
            Sidecars::Plain => "istio-validation",
            Sidecars::Configured => "istio-validation, no istio-init",
        }
    }
}

/// Starts a server and a client in the mesh, and one of each without a sidecar, and makes requests.
pub(super) fn requests(
    workstation: &Workstation,
    checks: &mut Checks,
    what: &str,
    sidecars: Sidecars,
    nodes: Nodes<'_>,
) -> Result<(), Failure> {
    let title = |about: &str| format!("{what}: {about}");
    let pods = [nodes.server(pod(SERVER)), nodes.client(pod(CLIENT))];
    for (name, pod) in [SERVER, CLIENT].iter().zip(&pods) {
        let pod = annotated(pod.clone(), sidecars.annotations());
        let started = start(workstation, MESHED, &pod)?;
        let init = init_containers(&started);
        let about = title(&format!("init containers of {name}"));
        checks.holds(&about, sidecars.have(&init), &init, sidecars.init_containers());
        let about = title(&format!("exit code of {name}'s {VALIDATION}"));
        checks.equal(&about, &exit_code_of_first_run(&started, VALIDATION), &Some(0));
    }
    let status = commands::status(workstation)?;
    for name in [SERVER, CLIENT] {
        let node = commands::node_of(workstation, (MESHED, name))?;
        let of_node = status.iter().find(|it| it.node == node).and_then(|it| it.backend.clone());
        let written = commands::backend_of(workstation, (MESHED, name))?;
        let about = title(&format!("the backend of {name}'s rules, which `gybe status` names"));
        checks.equal(&about, &Some(written), &of_node);
    }
    for pod in &pods {
        start(workstation, PLAIN, pod)?;
    }

    checks.passes(&title("client to server"), workstation, [CLIENT, SERVER], &service((MESHED, SERVER)))?;
    let answer = request(workstation, (PLAIN, CLIENT), &service((MESHED, SERVER)))?;
    let about = title("a client without a sidecar to the server");
    checks.holds(&about, answer.is_refused(), &answer, "refused");
    // The control: without sidecars the same request is answered.
    let answer = request(workstation, (PLAIN, CLIENT), &service((PLAIN, SERVER)))?;
    checks.holds(&title("the same to a server without one"), answer.is_plain_by(SERVER), &answer, "plain");

    let all = [(MESHED, SERVER), (MESHED, CLIENT), (PLAIN, SERVER), (PLAIN, CLIENT)];
    let verdicts = commands::verify(workstation, &all)?;
    for pod in all {
        let expected = if pod.0 == MESHED { "redirected" } else { "not meshed" };
        checks.verdict(what, &verdicts, pod, expected);
    }
    application::delete(workstation, &all)
}

/// Returns the names of the init containers that istiod added.
fn init_containers(pod: &Value) -> Vec<&str> {
    let containers = pod.pointer("/spec/initContainers").and_then(Value::as_array);
    containers.into_iter().flatten().filter_map(|it| it.get("name").and_then(Value::as_str)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_redirects_itself_is_not_left_to_a_plugin() {
        let native = ["istio-validation", "istio-proxy"];
        assert!(Sidecars::Native.have(&native) && !Sidecars::Plain.have(&native));
        assert!(Sidecars::Plain.have(&["istio-validation"]) && !Sidecars::Native.have(&["istio-validation"]));
        assert!(Sidecars::Configured.have(&["secrets", "istio-validation", "istio-proxy"]));
        for init_containers in [["istio-init", "istio-proxy"], ["istio-validation", "istio-init"]] {
            assert!(!Sidecars::Configured.have(&init_containers));
        }
    }
}
