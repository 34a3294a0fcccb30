//! Who else writes conf files here, or leads pods through a mesh.

use super::programs::program;
use super::sight::Sight;
use super::{About, Finding};
use crate::install::conflist::{Chain, ISTIO};
use crate::install::fight::rivals::likely;
use crate::install::judge::primary;
use crate::install::seen::ORIGINAL;
use crate::settings::PLUGIN;

pub(super) fn examine(sight: &Sight) -> Vec<Finding> {
    let mut found = istio(sight);
    let choice = primary(&sight.snapshot.conf, PLUGIN);
    let plugins: Vec<&str> =
        choice.iter().flat_map(|choice| choice.network.plugins.iter().map(String::as_str)).collect();
    if let Some(rival) = likely(&plugins).filter(|_| !plugins.contains(&ISTIO)) {
        let says = format!("{} writes this chain too", rival.name);
        let remedy = format!("if our entry keeps going: {}", rival.setting);
        found.push(Finding::note(About::Others, says, Some(&remedy)));
    }
    found
}

fn istio(sight: &Sight) -> Vec<Finding> {
    let files = sight.snapshot.conf.files.iter().filter(|(name, _)| !name.ends_in(ORIGINAL));
    let chains =
        files.filter_map(|(name, file)| Some((name, Chain::read(file.content.as_ref().ok()?).ok()?)));
    let mut found = Vec::new();
    for (name, chain) in chains.filter(|(_, chain)| chain.entry(ISTIO).is_some()) {
        let beside = chain.entry(PLUGIN).is_some();
        let says = match beside {
            true => {
                format!("{name} has an istio-cni entry beside ours: both redirect, and the second is refused")
            }
            false => format!("{name} has an istio-cni entry"),
        };
        let remedy = "remove the DaemonSet istio-cni-node, then gybe install takes its place; or set take_over: now (--take-over now)";
        found.push(match beside {
            true => Finding::wrong(About::Others, says, remedy),
            false => Finding::note(About::Others, says, Some(remedy)),
        });
    }
    let files: Vec<String> = sight.of_istio.iter().map(|path| path.display().to_string()).collect();
    if !files.is_empty() {
        let says = format!("istio-cni's agent has left, or keeps, {}", files.join(", "));
        let remedy = "a kubeconfig holds a token: remove these once its DaemonSet is gone";
        found.push(Finding::note(About::Others, says, Some(remedy)));
    }
    found.extend(stand_in(sight));
    found
}

fn stand_in(sight: &Sight) -> Option<Finding> {
    let (theirs, ours) = (program(sight, ISTIO)?, program(sight, PLUGIN));
    if ours.is_some_and(|ours| ours.hash == theirs.hash) {
        let says = "istio-cni is our plugin here: it answers DEL for sandboxes that were made with istio-cni";
        return Some(Finding::well(About::Others, says));
    }
    Some(Finding::note(About::Others, "the program istio-cni is there", None))
}
