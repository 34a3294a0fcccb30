//! Who else writes conf files here, or leads pods through a mesh.

use super::programs::program;
use super::sight::Sight;
use super::{About, Finding};
use crate::host::install::conflist::{Chain, ISTIO};
use crate::host::install::fight::rivals::likely;
use crate::host::install::judge::primary;
use crate::host::install::seen::ORIGINAL;
use crate::host::settings::PLUGIN;

pub(super) fn examine(sight: &Sight) -> Vec<Finding> {
    let mut found = istio(sight);
    let choice = primary(&sight.snapshot.conf, PLUGIN, &sight.snapshot.runtimes);
    let plugins: Vec<&str> =
        choice.iter().flat_map(|choice| choice.network.plugins.iter().map(String::as_str)).collect();
    if let Some(rival) = likely(&plugins).filter(|_| !plugins.contains(&ISTIO)) {
        let says = format!("{} writes this chain too", rival.name);
        let remedy = format!("if our entry keeps going: {}", rival.setting);
        found.push(Finding::note(About::Others, says, Some(&remedy)));
    }
    found.extend(socket_load_balancing(&plugins));
    found
}

fn istio(sight: &Sight) -> Vec<Finding> {
    let files = sight.snapshot.conf.files.iter().filter(|(name, _)| !name.ends_in(ORIGINAL));
    let chains =
        files.filter_map(|(name, file)| Some((name, Chain::read(file.content.as_ref().ok()?).ok()?)));
    let mut found = Vec::new();
    found.extend(chains.filter(|(_, chain)| chain.entry(ISTIO).is_some()).map(|(name, chain)| {
        let has_program = program(sight, ISTIO).is_some();
        of_entry(&name.to_string(), &chain, has_program)
    }));
    let files: Vec<String> = sight.of_istio.iter().map(|path| path.display().to_string()).collect();
    if !files.is_empty() {
        let says = format!("istio-cni's agent has left, or keeps, {}", files.join(", "));
        let remedy = "a kubeconfig holds a token: remove these once its DaemonSet is gone";
        found.push(Finding::note(About::Others, says, Some(remedy)));
    }
    found.extend(stand_in(sight));
    found
}

/// What an istio-cni entry means, and never an advice that leaves pods without a redirect.
fn of_entry(name: &str, chain: &Chain, has_program: bool) -> Finding {
    let beside = chain.entry(PLUGIN).is_some();
    let wrong = |says: String, remedy: &str| Finding::wrong(About::Others, says, remedy);
    let note = |says: String, remedy: &str| Finding::note(About::Others, says, Some(remedy));
    if chain.is_ambient() {
        let says = format!("{name} has an istio-cni entry that serves ambient mode (ambient_enabled: true)");
        return match beside {
            true => wrong(format!("{says}, and ours beside it"), KEEP_ISTIO),
            false => note(says, KEEP_ISTIO),
        };
    }
    let take_over = "gybe install --take-over now (in the cluster: take_over: now) replaces it by ours in one write; then \
                     remove the DaemonSet istio-cni-node";
    match (beside, has_program) {
        (true, _) => {
            let says = format!(
                "{name} has an istio-cni entry beside ours: both redirect, and the second is refused"
            );
            wrong(says, take_over)
        }
        (false, true) => {
            let says = format!("{name} has an istio-cni entry: pods are redirected by istio-cni");
            note(says, &format!("nothing, if that is wanted; to change to Gybe: {take_over}"))
        }
        (false, false) => {
            let says = format!(
                "{name} has an istio-cni entry, and there is no program istio-cni: pods cannot start"
            );
            wrong(says, &format!("bring the DaemonSet istio-cni-node back; to change to Gybe: {take_over}"))
        }
    }
}

/// Gybe serves sidecars only.
const KEEP_ISTIO: &str = "keep istio-cni here and exclude this node: Gybe has no ambient mode (node affinity of the DaemonSet \
                          gybe-node; gybe uninstall takes out what is here)";

/// Cilium may rewrite a connection's destination in connect(2), before any rule sees a packet.
fn socket_load_balancing(plugins: &[&str]) -> Option<Finding> {
    let says = "Cilium may translate services at the socket (bpf-lb-sock): a pod's connections to a service's address \
                then reach the proxy with the address of one of the service's pods";
    let remedy = "set Cilium's Helm value socketLB.hostNamespaceOnly=true, which excludes pods";
    plugins.contains(&"cilium-cni").then(|| Finding::note(About::Others, says, Some(remedy)))
}

fn stand_in(sight: &Sight) -> Option<Finding> {
    let (theirs, ours) = (program(sight, ISTIO)?, program(sight, PLUGIN));
    if ours.is_some_and(|ours| ours.hash == theirs.hash) {
        let says = "istio-cni is our plugin here: it answers DEL for sandboxes that were made with istio-cni";
        return Some(Finding::well(About::Others, says));
    }
    Some(Finding::note(About::Others, "the program istio-cni is there", None))
}
