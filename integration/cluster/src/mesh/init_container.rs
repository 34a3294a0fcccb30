//! Gybe's image as the image of the init container that istiod adds: `istio-init` redirects pods on a node without
//! Gybe's plugin, `istio-validation` validates them on a node with it.

use gybe_bench::report::Report;
use gybe_integration::failure::Failure;
use serde_json::Value;

use super::Mesh;
use super::application::{
    self, MESHED, Name, PLAIN, VALIDATION, exit_code_of_first_run, pod, request, service, start,
};
use super::checks::Checks;
use super::commands;
use super::family::Family;
use super::gybe;
use super::istio;
use super::modes::{CLIENT, DNS_CLIENT, SERVER, TPROXY, dns, requests, with_dns_capture, with_tproxy};
use super::namespaces::injected_init_containers;
use crate::api::wait_until;

const VALIDATED: &str = "validated";

pub(super) fn run(mesh: &Mesh) -> Result<Report, Failure> {
    let mut checks = Checks::default();
    let outcome = redirected_by_init(mesh, &mut checks).and_then(|()| validated(mesh, &mut checks));
    istio::upgrade(&mesh.cluster, &mesh.charts, &[])?;
    outcome.map(|()| checks.report("Gybe's image in the init container"))
}

/// `istio-init` redirects each kind of pod. An agent that is installed later leaves these pods as they are.
fn redirected_by_init(mesh: &Mesh, checks: &mut Checks) -> Result<(), Failure> {
    let workstation = &mesh.workstation;
    mesh.remove_gybe()?;
    inject(mesh, "istio-init", "pilot.cni.enabled=false")?;
    for pod in [pod(SERVER), pod(CLIENT), with_tproxy(pod(TPROXY)), with_dns_capture(pod(DNS_CLIENT))] {
        let started = start(workstation, MESHED, &pod)?;
        let name = pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let exit_code = exit_code_of_first_run(&started, "istio-init");
        checks.equal(&format!("exit code of {name}'s istio-init"), &exit_code, &Some(0));
    }
    for name in [SERVER, CLIENT] {
        start(workstation, PLAIN, &pod(name))?;
    }
    for family in [Family::Ipv4, Family::Ipv6] {
        requests(workstation, checks, family)?;
        dns(workstation, checks, family)?;
    }
    mesh.ensure_gybe()?;
    let meshed = [SERVER, CLIENT, TPROXY, DNS_CLIENT];
    checks.redirected(
        "with an agent installed later",
        &commands::verify(workstation, &[(MESHED, SERVER)])?,
        &meshed,
    );
    let what = format!("{CLIENT} to {SERVER} with an agent installed later");
    checks.passes(&what, workstation, [CLIENT, SERVER], &service((MESHED, SERVER))).map(drop)
}

/// `istio-validation` validates a pod that Gybe's plugin has redirected.
fn validated(mesh: &Mesh, checks: &mut Checks) -> Result<(), Failure> {
    let workstation = &mesh.workstation;
    inject(mesh, VALIDATION, "pilot.cni.enabled=true")?;
    let started = start(workstation, MESHED, &pod(VALIDATED))?;
    let exit_code = exit_code_of_first_run(&started, VALIDATION);
    checks.equal(&format!("exit code of {VALIDATED}'s istio-validation"), &exit_code, &Some(0));
    let what = format!("{VALIDATED} to {SERVER}, which its init container redirects");
    checks.passes(&what, workstation, [VALIDATED, SERVER], &service((MESHED, SERVER)))?;
    let answer = request(workstation, (PLAIN, CLIENT), &service((MESHED, VALIDATED)))?;
    checks.holds("a client without a sidecar to the same", answer.is_refused(), &answer, "refused");
    let meshed = [SERVER, CLIENT, TPROXY, DNS_CLIENT, VALIDATED].map(|name| (MESHED, name));
    let all: Vec<Name<'_>> = meshed.into_iter().chain([(PLAIN, SERVER), (PLAIN, CLIENT)]).collect();
    application::delete(workstation, &all)
}

/// Makes istiod add this init container with Gybe's image.
fn inject(mesh: &Mesh, container: &str, cni: &str) -> Result<(), Failure> {
    let image = gybe::image();
    let values = [cni, &format!("global.proxy_init.image={image}")];
    istio::upgrade(&mesh.cluster, &mesh.charts, &values)?;
    let expected = [Some(container), Some(image.as_str())];
    wait_until(&format!("istiod adds {container} with {image}"), || {
        let added = injected_init_containers(&mesh.workstation);
        Ok(added
            .iter()
            .any(|it| ["name", "image"].map(|key| it.get(key).and_then(Value::as_str)) == expected))
    })
}
