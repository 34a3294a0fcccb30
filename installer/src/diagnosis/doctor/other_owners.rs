//! Findings about other owners: agents that also write conf files here, and other meshes.

use super::observe::Observation;
use super::programs::program;
use super::{About, DoctorFinding, Section};
use crate::host::conflict::likely;
use crate::host::conflist::{ISTIO, PluginChain};
use crate::host::image::PLUGIN;
use crate::host::judge::primary;
use crate::host::observe::{FileName, ORIGINAL};
use crate::host::problem::Problem;

pub(super) fn examine(observation: &Observation) -> Vec<DoctorFinding> {
    let mut found = istio(observation);
    let choice = primary(&observation.snapshot.conf, PLUGIN, &observation.snapshot.runtimes);
    let plugins: Vec<&str> =
        choice.iter().flat_map(|choice| choice.network.plugins.iter().map(String::as_str)).collect();
    if let Some(owner) = likely(&plugins).filter(|_| !plugins.contains(&ISTIO)) {
        let text = format!("{} also writes this chain", owner.name);
        let remedy = format!("if the entry of gybe-cni keeps disappearing: {}", owner.setting);
        found.push(DoctorFinding::note(About::Others, text, Some(&remedy)));
    }
    found.extend(socket_load_balancing(&plugins));
    found
}

fn istio(observation: &Observation) -> Vec<DoctorFinding> {
    let files = observation.snapshot.conf.files.iter().filter(|(name, _)| !name.ends_in(ORIGINAL));
    let chains =
        files.filter_map(|(name, file)| Some((name, PluginChain::read(file.content.as_ref().ok()?).ok()?)));
    let mut found = Vec::new();
    found.extend(chains.filter(|(_, chain)| chain.entry(ISTIO).is_some()).map(|(name, chain)| {
        let has_program = program(observation, ISTIO).is_some();
        of_entry(name, &chain, has_program)
    }));
    let files: Vec<String> = observation.istio_files.iter().map(|path| path.display().to_string()).collect();
    if !files.is_empty() {
        let text = format!("files of istio-cni's agent: {}", files.join(", "));
        let remedy = "remove them once its DaemonSet is gone: a kubeconfig holds a token";
        found.push(DoctorFinding::note(About::Others, text, Some(remedy)));
    }
    found.extend(stand_in(observation));
    found
}

/// Judges an istio-cni entry. Pods stay redirected whichever remedy an operator applies.
fn of_entry(name: &FileName, chain: &PluginChain, has_program: bool) -> DoctorFinding {
    let has_ours = chain.entry(PLUGIN).is_some();
    let wrong = |text: String, remedy: &str| {
        DoctorFinding::wrong(About::Others, text, remedy).in_section(Section::NodeNotReady)
    };
    let note = |text: String, remedy: &str| DoctorFinding::note(About::Others, text, Some(remedy));
    if chain.is_ambient() {
        let text = format!("{name} has an istio-cni entry that serves ambient mode (ambient_enabled: true)");
        return match has_ours {
            true => wrong(format!("{text}, and an entry of gybe-cni"), KEEP_ISTIO),
            false => note(text, KEEP_ISTIO),
        };
    }
    let take_over = "run gybe install --take-over now (in the cluster: take_over: now), which replaces it with ours in one write; \
                     then remove the DaemonSet istio-cni-node";
    match (has_ours, has_program) {
        (true, _) => wrong(Problem::BothEntries(name.clone()).to_string(), take_over),
        (false, true) => {
            let text = format!("{name} has an istio-cni entry: istio-cni redirects pods");
            note(text, &format!("to change to Gybe: {take_over}; otherwise do nothing"))
        }
        (false, false) => {
            let text = format!(
                "{name} has an istio-cni entry, but the program istio-cni is missing: pods cannot start"
            );
            wrong(
                text,
                &format!("deploy the DaemonSet istio-cni-node again; or, to change to Gybe: {take_over}"),
            )
        }
    }
}

const KEEP_ISTIO: &str = "set AMBIENT_ENABLED for gybe's agent (in the chart: ambient.enabled), which then replaces the entry as \
                          soon as istio-cni's agent has gone from the node (take_over); or \
                          keep istio-cni here and exclude this node from Gybe (node affinity of the DaemonSet gybe-node; \
                          once its agent has ended, gybe uninstall removes what is here)";

/// Cilium may rewrite a connection's destination in connect(2), before any rule receives a packet.
fn socket_load_balancing(plugins: &[&str]) -> Option<DoctorFinding> {
    let text = "Cilium may translate service addresses in connect(2) (bpf-lb-sock): a pod's connection to a service \
                then reaches the proxy with the address of one of the service's pods";
    let remedy = "set Cilium's Helm value socketLB.hostNamespaceOnly=true, which excludes pods";
    plugins.contains(&"cilium-cni").then(|| DoctorFinding::note(About::Others, text, Some(remedy)))
}

fn stand_in(observation: &Observation) -> Option<DoctorFinding> {
    let (theirs, ours) = (program(observation, ISTIO)?, program(observation, PLUGIN));
    if ours.is_some_and(|ours| ours.hash == theirs.hash) {
        let text =
            "the program istio-cni is our plugin: it answers DEL for sandboxes that were made with istio-cni";
        return Some(DoctorFinding::well(About::Others, text));
    }
    Some(DoctorFinding::note(About::Others, "the program istio-cni exists", None))
}
