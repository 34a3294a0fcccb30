//! docs/MIGRATE.md with Istio's own istio-cni: Gybe takes its place on a node and gives it back, then on all nodes,
//! and in the end istio-cni is back, all while pods make requests.

use std::fs;

use gybe_bench::report::Report;
use gybe_integration::failure::Failure;

use super::Mesh;
use super::application::{
    self, MESHED, NOT_REDIRECTED, PLAIN, create, pod, start, wait_for_validation, wait_until_ready_for,
};
use super::checks::Checks;
use super::gybe;
use super::istio_cni;
use super::load::{NEXT_ATTEMPT, Pair};
use super::node_files::NodeFiles;
use crate::agent;
use crate::api::{wait_at_most, wait_until};
use crate::cluster::HOME;
use crate::network::NODE;

const PAIR: Pair = Pair { client: "migrate-client", server: "migrate-server", fresh: "migrate-fresh" };
/// A pod that starts while a node has neither agent, or both.
const BETWEEN: &str = "migrate-between";

// The commands of the page.
const VALUES: &str = "helm get values istio-cni -n istio-system -o yaml | gybe migrate values - >gybe.yaml";
const DRY_RUN: &str = "kubectl get pods -A -o json --field-selector spec.nodeName=NODE \
                       | ssh NODE gybe migrate --dry-run --pods -";
const NAMESPACE: &str = "kubectl create namespace gybe-system";
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

/// An operator's shell, with the mesh.
struct Operator<'m> {
    mesh: &'m Mesh,
}

impl Operator<'_> {
    /// Runs a command of the page, with this machine's paths and names.
    fn run(&self, command: &str) -> Result<String, Failure> {
        let charts = self.mesh.charts.join("istio-cni");
        let command = command
            .replace("ssh NODE ", "")
            .replace("NODE", NODE)
            .replace(" istio/cni ", &format!(" {} ", charts.display()))
            .replace("manifests/chart", &self.mesh.gybe.chart().to_string_lossy())
            .replace("registry.example/mesh/gybe", "docker.io/library/gybe");
        let script = format!("cd {HOME} && {command}");
        self.mesh.gybe.shell(&self.mesh.cluster, &script)
    }
}

pub(super) fn run(mesh: &Mesh) -> Result<Report, Failure> {
    let cluster = &mesh.cluster;
    let operator = Operator { mesh };
    let mut checks = Checks::default();
    mesh.remove_gybe()?;
    cluster.run("kubectl", &["delete", "namespace", "gybe-system", "--ignore-not-found"])?;
    let directory = cluster.node.host().path(HOME);
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("istio-cni.json"), istio_cni::values().to_string())?;
    operator.run(&format!("{INSTALL_ISTIO_CNI} -f istio-cni.json"))?;
    istio_cni::roll_out(cluster)?;
    PAIR.start(cluster)?;
    before(&operator, &mut checks)?;
    some_nodes(&operator, &mut checks)?;
    back_on_a_node(&operator, &mut checks)?;
    all_nodes(&operator, &mut checks)?;
    back(&operator, &mut checks)?;
    for namespace in [MESHED, PLAIN] {
        application::delete_all(cluster, namespace)?;
    }
    clean(&operator, &mut checks)?;
    Ok(checks.report("From istio-cni to Gybe, and back"))
}

/// Section 1: the values and the pods.
fn before(operator: &Operator<'_>, checks: &mut Checks) -> Result<(), Failure> {
    checks.equal("`gybe migrate values`", &operator.run(VALUES)?, &String::new());
    let listed = operator.run(DRY_RUN)?;
    for name in [PAIR.client, PAIR.server] {
        let line = listed.lines().find(|line| line.starts_with(&format!("{MESHED}/{name} ")));
        let is_same =
            line.is_some_and(|line| line.contains("none: Gybe would redirect the same connections"));
        checks.holds(&format!("`gybe migrate --dry-run` about {name}"), is_same, &line, "none");
    }
    Ok(())
}

/// Section 3: a node changes.
fn some_nodes(operator: &Operator<'_>, checks: &mut Checks) -> Result<(), Failure> {
    let cluster = &operator.mesh.cluster;
    PAIR.under_load(cluster, checks, "istio-cni is restricted", |_| {
        operator.run(NAMESPACE)?;
        operator.run(PRIVILEGED)?;
        operator.run(RESTRICT)?;
        istio_cni::roll_out(cluster)?;
        operator.run(INSTALL).map(drop)
    })?;
    changes_to_gybe(operator, checks, "the node changes to Gybe", LABEL)
}

/// Runs a command after which the node gets Gybe's agent instead of istio-cni's.
fn changes_to_gybe(
    operator: &Operator<'_>,
    checks: &mut Checks,
    what: &str,
    command: &str,
) -> Result<(), Failure> {
    let mesh = operator.mesh;
    PAIR.under_load(&mesh.cluster, checks, what, |checks| {
        operator.run(command)?;
        between(operator, checks, what, || mesh.gybe.wait_for_backend(&mesh.cluster, "nft"))
    })?;
    only(operator, checks, what, "gybe-cni")?;
    checks.redirected(what, &mesh.gybe.verify(&mesh.cluster)?, &[PAIR.client, PAIR.server]);
    Ok(())
}

/// Starts a pod at once, waits, and records whether the pod becomes ready.
fn between(
    operator: &Operator<'_>,
    checks: &mut Checks,
    what: &str,
    wait: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let cluster = &operator.mesh.cluster;
    create(cluster, MESHED, &pod(BETWEEN))?;
    start(cluster, PLAIN, &pod(BETWEEN))?;
    wait()?;
    wait_until_ready_for(cluster, (MESHED, BETWEEN), NEXT_ATTEMPT)?;
    PAIR.passes(cluster, checks, what, BETWEEN)?;
    application::delete(cluster, &[(MESHED, BETWEEN), (PLAIN, BETWEEN)])
}

/// Records that the conf file names this plugin, and not the other one.
fn only(operator: &Operator<'_>, checks: &mut Checks, what: &str, plugin: &str) -> Result<(), Failure> {
    let files = NodeFiles::read(&operator.mesh.cluster)?;
    for named in ["istio-cni", "gybe-cni"] {
        let title = format!("{what}: conf files that name {named}");
        checks.equal(&title, &files.conf_files_with(named).len(), &usize::from(named == plugin));
    }
    Ok(())
}

/// Section 3, back on one node, and once more to Gybe.
fn back_on_a_node(operator: &Operator<'_>, checks: &mut Checks) -> Result<(), Failure> {
    let cluster = &operator.mesh.cluster;
    let what = "the node changes back to istio-cni";
    PAIR.under_load(cluster, checks, what, |checks| {
        operator.run(UNLABEL)?;
        wait_at_most(gybe::END, "Gybe's pod has gone", || Ok(agent::pods(cluster)?.is_empty()))?;
        operator.run(UNINSTALL_BY_HAND)?;
        between(operator, checks, what, || istio_cni::roll_out(cluster))
    })?;
    only(operator, checks, what, "istio-cni")
}

/// Section 4.
fn all_nodes(operator: &Operator<'_>, checks: &mut Checks) -> Result<(), Failure> {
    let mesh = operator.mesh;
    let cluster = &mesh.cluster;
    changes_to_gybe(operator, checks, "all nodes change to Gybe", LABEL_ALL)?;
    PAIR.under_load(cluster, checks, "istio-cni is removed", |_| {
        operator.run(STATUS)?;
        operator.run(REMOVE_ISTIO_CNI).map(drop)
    })?;
    let what = "Gybe's restriction is removed";
    PAIR.under_load(cluster, checks, what, |_| {
        operator.run(UNRESTRICT)?;
        crate::release::roll_out(cluster)
    })?;
    only(operator, checks, what, "gybe-cni")
}

/// Section 5.
fn back(operator: &Operator<'_>, checks: &mut Checks) -> Result<(), Failure> {
    let mesh = operator.mesh;
    let cluster = &mesh.cluster;
    let what = "`gybe leave`, and istio-cni again";
    PAIR.under_load(cluster, checks, what, |checks| {
        operator.run(LEAVE)?;
        create(cluster, MESHED, &pod(BETWEEN))?;
        let exit_code = wait_for_validation(cluster, (MESHED, BETWEEN))?;
        let title = format!("{what}: exit code of istio-validation in a pod that starts between");
        checks.equal(&title, &exit_code, &Some(NOT_REDIRECTED));
        operator.run(&format!("{INSTALL_ISTIO_CNI} -f istio-cni.json"))?;
        istio_cni::roll_out(cluster)?;
        wait_until_ready_for(cluster, (MESHED, BETWEEN), NEXT_ATTEMPT)?;
        PAIR.passes(cluster, checks, what, BETWEEN)?;
        application::delete(cluster, &[(MESHED, BETWEEN)])
    })?;
    let what = "Gybe is removed beside istio-cni";
    PAIR.under_load(cluster, checks, what, |_| operator.run(REMOVE_GYBE).map(drop))?;
    only(operator, checks, what, "istio-cni")?;
    checks.redirected(what, &mesh.gybe.verify_by_hand(cluster)?, &[PAIR.client, PAIR.server]);
    Ok(())
}

/// When all pods are gone, `gybe uninstall` removes the programs, and the chart's removal istio-cni.
fn clean(operator: &Operator<'_>, checks: &mut Checks) -> Result<(), Failure> {
    let cluster = &operator.mesh.cluster;
    wait_at_most(gybe::END, "Gybe's pod has gone", || Ok(agent::pods(cluster)?.is_empty()))?;
    operator.run(UNINSTALL_BY_HAND)?;
    operator.run(REMOVE_ISTIO_CNI)?;
    wait_until("istio-cni's agent has ended", || Ok(istio_cni::pods(cluster)?.is_empty()))?;
    // istio-cni writes the conf file in another form.
    operator.mesh.before.restore_conf_files(cluster)?;
    let left = NodeFiles::read(cluster)?.differences(&operator.mesh.before);
    checks.equal("files of the node that differ from before", &left, &Vec::new());
    operator.run(UNLABEL).map(drop)
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
            NAMESPACE,
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
