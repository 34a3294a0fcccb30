//! docs/MIGRATE.md with Istio's own istio-cni: Gybe takes its place on a node and gives it back, then on all nodes,
//! and in the end istio-cni is back, all while pods make requests.

use std::fs;

use gybe_bench::report::Report;
use gybe_integration::failure::Failure;

use super::Mesh;
use super::application::{
    self, MESHED, NOT_REDIRECTED, Nodes, PLAIN, create, pod, start, wait_for_validation, wait_until_ready_for,
};
use super::commands::{self, Verdicts};
use super::gybe;
use super::istio_cni;
use super::load::{NEXT_ATTEMPT, Pair};
use super::namespaces;
use super::node_files::NodeFiles;
use crate::api::wait_until;
use crate::checks::Checks;
use crate::cluster::HOME;
use crate::network::NODE;

const PAIR: Pair = Pair { client: "migrate-client", server: "migrate-server", fresh: "migrate-fresh" };
/// A pod that starts while a node has neither agent, or both.
const BETWEEN: &str = "migrate-between";

// The commands of the page.
const VALUES: &str = "helm get values istio-cni -n istio-system -o yaml | gybe migrate values - >gybe.yaml";
const DRY_RUN: &str = "kubectl get pods -A -o json --field-selector spec.nodeName=NODE \
                       | ssh NODE gybe migrate --dry-run --pods -";
const CREATE_NAMESPACE: &str = "kubectl create namespace gybe-system";
const PRIVILEGED: &str = "kubectl label namespace gybe-system pod-security.kubernetes.io/enforce=privileged";
const RESTRICT: &str = "helm upgrade istio-cni istio/cni -n istio-system --reuse-values --set-json \
                        'affinity={\"nodeAffinity\": \
                        {\"requiredDuringSchedulingIgnoredDuringExecution\":{\"nodeSelectorTerms\":[{\"matchExpressions\": \
                        [{\"key\":\"example.com/cni\",\"operator\":\"NotIn\",\"values\":[\"gybe\"]}]}]}}}'";
const INSTALL: &str = "helm install gybe manifests/chart -n gybe-system -f gybe.yaml \
                       --set nodeSelector.example\\\\.com/cni=gybe \
                       --set image.repository=registry.example/mesh/gybe";
const LABEL: &str = "kubectl label node NODE example.com/cni=gybe";
const UNLABEL: &str = "kubectl label node NODE example.com/cni-";
const UNINSTALL_BY_HAND: &str = "gybe uninstall";
const LABEL_ALL: &str = "kubectl label nodes --all example.com/cni=gybe";
const STATUS: &str = "gybe status";
const REMOVE_ISTIO_CNI: &str = "helm uninstall istio-cni -n istio-system";
const UNRESTRICT: &str = "helm upgrade gybe manifests/chart -n gybe-system -f gybe.yaml \
                          --set image.repository=registry.example/mesh/gybe";
const LEAVE: &str = "gybe leave";
const INSTALL_ISTIO_CNI: &str = "helm install istio-cni istio/cni -n istio-system";
const REMOVE_GYBE: &str = "helm uninstall gybe -n gybe-system";

/// Runs a command of the page, with this machine's paths and names.
fn run_command(mesh: &Mesh, command: &str) -> Result<String, Failure> {
    let charts = mesh.charts.join("istio-cni");
    let command = command
        .replace("ssh NODE ", "")
        .replace("NODE", NODE)
        .replace("manifests/chart", &mesh.gybe.chart().to_string_lossy())
        .replace(" istio/cni ", &format!(" {} ", charts.display()))
        .replace("registry.example/mesh/gybe", "docker.io/library/gybe");
    mesh.gybe.shell(&mesh.cluster, &format!("cd {HOME} && {command}"))
}

pub(super) fn run(mesh: &Mesh) -> Result<Report, Failure> {
    let (cluster, workstation) = (&mesh.cluster, &mesh.workstation);
    let mut checks = Checks::default();
    mesh.remove_gybe()?;
    cluster
        .run("kubectl", &["delete", "namespace", "gybe-system", "--ignore-not-found", "--timeout=240s"])?;
    let directory = cluster.host().path(HOME);
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("istio-cni.json"), istio_cni::values().to_string())?;
    run_command(mesh, &format!("{INSTALL_ISTIO_CNI} -f istio-cni.json"))?;
    istio_cni::roll_out(cluster)?;
    PAIR.start(workstation, Nodes::Any)?;
    before(mesh, &mut checks)?;
    some_nodes(mesh, &mut checks)?;
    back_on_a_node(mesh, &mut checks)?;
    all_nodes(mesh, &mut checks)?;
    back(mesh, &mut checks)?;
    namespaces::delete_pods(workstation)?;
    clean(mesh, &mut checks)?;
    Ok(checks.report("From istio-cni to Gybe, and back"))
}

/// Section 1: the values and the pods.
fn before(mesh: &Mesh, checks: &mut Checks) -> Result<(), Failure> {
    run_command(mesh, VALUES)?;
    let mut values = fs::read_to_string(mesh.cluster.host().path(HOME).join("gybe.yaml"))?;
    values = values.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    checks.equal("`gybe migrate values`", &values, &istio_cni::translated_values());
    let listed = run_command(mesh, DRY_RUN)?;
    for name in [PAIR.client, PAIR.server] {
        let line = listed.lines().find(|line| line.starts_with(&format!("{MESHED}/{name} ")));
        let is_same =
            line.is_some_and(|line| line.contains("none: Gybe would redirect the same connections"));
        checks.holds(&format!("`gybe migrate --dry-run` about {name}"), is_same, &line, "none");
    }
    Ok(())
}

/// Section 3: a node changes.
fn some_nodes(mesh: &Mesh, checks: &mut Checks) -> Result<(), Failure> {
    let (cluster, workstation) = (&mesh.cluster, &mesh.workstation);
    PAIR.under_load(workstation, checks, "istio-cni is restricted", |_| {
        run_command(mesh, CREATE_NAMESPACE)?;
        run_command(mesh, PRIVILEGED)?;
        run_command(mesh, RESTRICT)?;
        istio_cni::roll_out(cluster)?;
        run_command(mesh, INSTALL).map(drop)
    })?;
    changes_to_gybe(mesh, checks, "the node changes to Gybe", LABEL)
}

/// Runs a command after which the node gets Gybe's agent instead of istio-cni's.
fn changes_to_gybe(mesh: &Mesh, checks: &mut Checks, what: &str, command: &str) -> Result<(), Failure> {
    PAIR.under_load(&mesh.workstation, checks, what, |checks| {
        run_command(mesh, command)?;
        starts_pod_while(mesh, checks, what, || mesh.wait_for_backend("nft"))
    })?;
    names_only(mesh, what, "gybe-cni")?;
    let excluding = NodeFiles::read(mesh.cluster.host())?.conf_files_with(istio_cni::EXCLUDED).len();
    checks.equal(&format!("{what}: conf files with istio-cni's excluded namespace"), &excluding, &1);
    have_rules_of_istio_cni(checks, what, &commands::verify(&mesh.workstation, &PAIR.pods())?);
    Ok(())
}

/// Records that both pods, which started with istio-cni, are redirected by its rules.
fn have_rules_of_istio_cni(checks: &mut Checks, what: &str, verdicts: &Verdicts) {
    for pod in PAIR.pods() {
        checks.verdict(what, verdicts, pod, "redirected by another's rules");
    }
}

/// Starts a pod at once, waits, and records whether the pod becomes ready.
fn starts_pod_while(
    mesh: &Mesh,
    checks: &mut Checks,
    what: &str,
    wait: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let workstation = &mesh.workstation;
    create(workstation, MESHED, &pod(BETWEEN))?;
    start(workstation, PLAIN, &pod(BETWEEN))?;
    wait()?;
    wait_until_ready_for(workstation, (MESHED, BETWEEN), NEXT_ATTEMPT)?;
    PAIR.passes(workstation, checks, what, BETWEEN)?;
    application::delete(workstation, &[(MESHED, BETWEEN), (PLAIN, BETWEEN)])
}

/// Waits until one conf file names this plugin, and none the other one: Gybe's entry becomes a drop-in when istio-cni's
/// program is gone.
fn names_only(mesh: &Mesh, what: &str, plugin: &str) -> Result<(), Failure> {
    wait_until(&format!("{what}: one conf file names {plugin} alone"), || {
        let files = NodeFiles::read(mesh.cluster.host())?;
        let counts = ["istio-cni", "gybe-cni"].map(|named| (named, files.conf_files_with(named).len()));
        Ok(counts.iter().all(|(named, count)| *count == usize::from(*named == plugin)))
    })
}

/// Section 3, back on one node, and once more to Gybe.
fn back_on_a_node(mesh: &Mesh, checks: &mut Checks) -> Result<(), Failure> {
    let (cluster, workstation) = (&mesh.cluster, &mesh.workstation);
    let what = "the node changes back to istio-cni";
    PAIR.under_load(workstation, checks, what, |checks| {
        run_command(mesh, UNLABEL)?;
        gybe::wait_until_gone(cluster)?;
        run_command(mesh, UNINSTALL_BY_HAND)?;
        starts_pod_while(mesh, checks, what, || istio_cni::roll_out(cluster))
    })?;
    names_only(mesh, what, "istio-cni")
}

/// Section 4.
fn all_nodes(mesh: &Mesh, checks: &mut Checks) -> Result<(), Failure> {
    let (cluster, workstation) = (&mesh.cluster, &mesh.workstation);
    changes_to_gybe(mesh, checks, "all nodes change to Gybe", LABEL_ALL)?;
    PAIR.under_load(workstation, checks, "istio-cni is removed", |_| {
        run_command(mesh, STATUS)?;
        run_command(mesh, REMOVE_ISTIO_CNI).map(drop)
    })?;
    let what = "Gybe's restriction is removed";
    PAIR.under_load(workstation, checks, what, |_| {
        run_command(mesh, UNRESTRICT)?;
        crate::release::roll_out(cluster)
    })?;
    names_only(mesh, what, "gybe-cni")
}

/// Section 5.
fn back(mesh: &Mesh, checks: &mut Checks) -> Result<(), Failure> {
    let (cluster, workstation) = (&mesh.cluster, &mesh.workstation);
    let what = "`gybe leave`, and istio-cni again";
    PAIR.under_load(workstation, checks, what, |checks| {
        run_command(mesh, LEAVE)?;
        create(workstation, MESHED, &pod(BETWEEN))?;
        let exit_code = wait_for_validation(workstation, (MESHED, BETWEEN))?;
        let title = format!("{what}: exit code of istio-validation in a pod that starts between");
        checks.equal(&title, &exit_code, &NOT_REDIRECTED);
        run_command(mesh, &format!("{INSTALL_ISTIO_CNI} -f istio-cni.json"))?;
        istio_cni::roll_out(cluster)?;
        wait_until_ready_for(workstation, (MESHED, BETWEEN), NEXT_ATTEMPT)?;
        PAIR.passes(workstation, checks, what, BETWEEN)?;
        application::delete(workstation, &[(MESHED, BETWEEN)])
    })?;
    let what = "Gybe is removed beside istio-cni";
    PAIR.under_load(workstation, checks, what, |_| run_command(mesh, REMOVE_GYBE).map(drop))?;
    names_only(mesh, what, "istio-cni")?;
    have_rules_of_istio_cni(checks, what, &mesh.gybe.verify_by_hand(cluster)?);
    Ok(())
}

/// After all pods are deleted: `gybe uninstall` removes Gybe's programs, `helm uninstall` removes istio-cni.
fn clean(mesh: &Mesh, checks: &mut Checks) -> Result<(), Failure> {
    let cluster = &mesh.cluster;
    gybe::wait_until_gone(cluster)?;
    run_command(mesh, UNINSTALL_BY_HAND)?;
    run_command(mesh, REMOVE_ISTIO_CNI)?;
    wait_until("istio-cni's agent has ended", || Ok(istio_cni::pods(cluster)?.is_empty()))?;
    // istio-cni writes the conf file in another form.
    mesh.before.restore_conf_files(cluster.host())?;
    let left = NodeFiles::read(cluster.host())?.differences(&mesh.before);
    checks.equal("files of the node that differ from before", &left, &Vec::new());
    run_command(mesh, UNLABEL).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_those_of_the_page() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/MIGRATE.md");
        // A backslash continues a line of the page.
        let words =
            |text: &str| text.split_whitespace().filter(|word| *word != "\\").collect::<Vec<_>>().join(" ");
        let page = words(&fs::read_to_string(page).unwrap());
        for command in [
            VALUES,
            DRY_RUN,
            CREATE_NAMESPACE,
            PRIVILEGED,
            RESTRICT,
            INSTALL,
            LABEL,
            UNLABEL,
            UNINSTALL_BY_HAND,
            LABEL_ALL,
            STATUS,
            REMOVE_ISTIO_CNI,
            UNRESTRICT,
            LEAVE,
            INSTALL_ISTIO_CNI,
            REMOVE_GYBE,
        ] {
            let words = words(command);
            let is_there = page.contains(&format!("`{words}`")) || page.contains(&format!("$ {words} "));
            assert!(is_there, "{words}");
        }
    }
}
