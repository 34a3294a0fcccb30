//! Gybe's image as the image of the init container that istiod adds: `istio-init` redirects pods on a node without
//! Gybe's plugin, `istio-validation` validates them on a node with it.

use gybe_bench::report::Report;
use gybe_integration::failure::Failure;

use super::Mesh;
use super::application::{
    self, INIT, MESHED, PLAIN, VALIDATION, exit_code_of_first_run, pod, request, service, start,
};
use super::commands;
use super::family::FAMILIES;
use super::gybe;
use super::images::{HUB, TAG};
use super::istio;
use super::modes::{CLIENT, MESHED_PODS, PODS, SERVER, dns, requests, start_pods};
use super::namespaces::wait_for_init_containers;
use super::with_cleanup;
use crate::checks::Checks;

const VALIDATED: &str = "validated";

pub(super) fn run(mesh: &Mesh) -> Result<Report, Failure> {
    let mut checks = Checks::default();
    let outcome = redirected_by_init(mesh, &mut checks).and_then(|()| validated(mesh, &mut checks));
    let restored = inject(mesh, VALIDATION, &format!("{HUB}/proxyv2:{TAG}"), &[]);
    with_cleanup(outcome, restored).map(|()| checks.report("Gybe's image in the init container"))
}

/// `istio-init` redirects each kind of pod. An agent that is installed later leaves these pods as they are.
fn redirected_by_init(mesh: &Mesh, checks: &mut Checks) -> Result<(), Failure> {
    let workstation = &mesh.workstation;
    mesh.remove_gybe()?;
    inject_gybe(mesh, INIT, "pilot.cni.enabled=false")?;
    start_pods(workstation, checks, "Gybe's image", INIT, |_, pod| pod)?;
    for family in FAMILIES {
        requests(workstation, checks, family)?;
        dns(workstation, checks, family)?;
    }
    mesh.ensure_gybe()?;
    let verdicts = commands::verify(workstation, &PODS)?;
    checks.redirected("with an agent installed later", &verdicts, &MESHED_PODS);
    let what = format!("{CLIENT} to {SERVER} with an agent installed later");
    checks.passes(&what, workstation, [CLIENT, SERVER], &service((MESHED, SERVER))).map(drop)
}

/// `istio-validation` validates a pod that Gybe's plugin has redirected.
fn validated(mesh: &Mesh, checks: &mut Checks) -> Result<(), Failure> {
    let workstation = &mesh.workstation;
    inject_gybe(mesh, VALIDATION, "pilot.cni.enabled=true")?;
    let started = start(workstation, MESHED, &pod(VALIDATED))?;
    let exit_code = exit_code_of_first_run(&started, VALIDATION);
    checks.equal(&format!("exit code of {VALIDATED}'s {VALIDATION}"), &exit_code, &Some(0));
    let what = format!("{VALIDATED} to {SERVER}, which its init container redirects");
    checks.passes(&what, workstation, [VALIDATED, SERVER], &service((MESHED, SERVER)))?;
    let answer = request(workstation, (PLAIN, CLIENT), &service((MESHED, VALIDATED)))?;
    checks.holds("a client without a sidecar to the same", answer.is_refused(), &answer, "refused");
    application::delete(workstation, &[&PODS[..], &[(MESHED, VALIDATED)]].concat())
}

/// Makes istiod add this init container with Gybe's image.
fn inject_gybe(mesh: &Mesh, container: &str, cni: &str) -> Result<(), Failure> {
    let image = gybe::image();
    inject(mesh, container, &image, &[cni, &format!("global.proxy_init.image={image}")])
}

/// Upgrades istiod to these values, and waits until it adds this init container with this image.
fn inject(mesh: &Mesh, container: &str, image: &str, values: &[&str]) -> Result<(), Failure> {
    istio::upgrade(&mesh.cluster, &mesh.charts, values)?;
    wait_for_init_containers(&mesh.workstation, &format!("istiod adds {container} with {image}"), |added| {
        added.iter().any(|it| it.name == container && it.image == image)
    })
}
