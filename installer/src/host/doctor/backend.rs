//! What writes the rules: the entry's word, and what the probe found.

use super::chain::Ours;
use super::sight::Sight;
use super::{About, Finding, entry};
use crate::probe::node_backend::{Verdict, node_backend};
use gybe_netfilter::backend::BackendKind;
use gybe_netfilter::choose::Override;

pub(super) fn examine(sight: &Sight, ours: &Ours<'_>) -> Vec<Finding> {
    let Some(conf) = entry::conf(ours) else { return Vec::new() };
    let decided = node_backend(conf.backend, None, sight.found.as_ref());
    let word = format!("the entry says {}", conf.backend.as_str());
    match &decided.verdict {
        Verdict::Works(choice) if sight.no_programs.is_none() => {
            let mut found = vec![Finding::well(
                About::Backend,
                format!("{word}; {} writes: {}", choice.backend, choice.why),
            )];
            found.extend(choice.missing.iter().map(|(profile, what)| {
                let says = format!("{} cannot do {profile} on this node: {what}", choice.backend);
                Finding::note(About::Backend, says, Some("pods that need it are refused, with the reason"))
            }));
            found
        }
        Verdict::Works(_) | Verdict::Unknown if sight.no_programs.is_some() => {
            sight.no_programs.iter().map(|gone| gone_since(conf.backend.wish(), &word, gone)).collect()
        }
        Verdict::Works(_) | Verdict::Unknown => {
            let remedy = match conf.backend.wish() {
                Override::Only(_) => "it is taken at its word; gybe probe finds out whether it works",
                _ => "the next ADD finds out; gybe probe does so now",
            };
            vec![Finding::note(
                About::Backend,
                format!("{word}; nothing has been found out yet"),
                Some(remedy),
            )]
        }
        Verdict::Fails(none) => {
            let remedy = none.hint().unwrap_or_else(|| "gybe probe --fresh says what was tried".to_owned());
            vec![Finding::wrong(
                About::Backend,
                format!("{word}, and every pod of the mesh is refused: {none}"),
                remedy,
            )]
        }
    }
}

/// The backend that writes takes programs which are no longer on the host.
fn gone_since(wish: Override, word: &str, (kind, why): &(BackendKind, String)) -> Finding {
    let says = format!("{word}, and {kind} cannot write any more: {why}");
    match wish {
        Override::Only(_) => {
            let remedy = format!(
                "every pod of the mesh is refused: install {kind}'s programs again, or set backend: auto"
            );
            Finding::wrong(About::Backend, says, remedy)
        }
        Override::Auto | Override::Iptables => {
            let remedy = "the next ADD of the mesh finds out anew what works; gybe probe --fresh does so now";
            Finding::note(About::Backend, says, Some(remedy))
        }
    }
}
