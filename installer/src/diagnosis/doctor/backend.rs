//! Findings about the backend in use: the configured one, and the probe report.

use super::observe::Observation;
use super::{About, Finding, Section};
use crate::host::entries::OurEntries;
use crate::probe::node_backend::{Verdict, node_backend};
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::model::Hint;
use gybe_netfilter::probe::choose::BackendSetting;

pub(super) fn examine(observation: &Observation, ours: &OurEntries<'_>) -> Vec<Finding> {
    let entry = ours.plugin_conf();
    let (has_entry, conf) = (entry.is_some(), entry.unwrap_or_default());
    let decided = node_backend(conf.backend, None, observation.probe_report.as_ref());
    let configured = format!("backend: {}", conf.backend.as_str());
    match &decided.verdict {
        // Which backend is configured is not known.
        Verdict::Works(_) | Verdict::Unknown if !has_entry => Vec::new(),
        Verdict::Works(choice) if observation.missing_programs.is_none() => {
            let mut found = vec![Finding::well(
                About::Backend,
                format!("{configured}; the backend in use is {}: {}", choice.backend, choice.why),
            )];
            found.extend(choice.missing.iter().map(|(profile, what)| {
                let text = format!("{} cannot do {profile} on this node: {what}", choice.backend);
                Finding::note(
                    About::Backend,
                    text,
                    Some("the plugin refuses pods that need it, with this reason"),
                )
            }));
            found
        }
        Verdict::Works(_) | Verdict::Unknown if observation.missing_programs.is_some() => observation
            .missing_programs
            .iter()
            .map(|gone| gone_since(conf.backend, &configured, gone))
            .collect(),
        Verdict::Works(_) | Verdict::Unknown => {
            let remedy = match conf.backend {
                BackendSetting::Only(_) => {
                    "run gybe probe to find out whether it works: the plugin uses it without a probe"
                }
                _ => "run gybe probe now, or wait: the next ADD probes",
            };
            vec![Finding::note(About::Backend, format!("{configured}; no probe report yet"), Some(remedy))]
        }
        Verdict::Fails(none) => {
            let remedy = none.hint().unwrap_or_else(|| "run gybe probe --fresh to see what was tried".into());
            vec![
                Finding::wrong(
                    About::Backend,
                    format!("{configured}, and the plugin refuses every pod of the mesh: {none}"),
                    remedy,
                )
                .in_section(Section::NoBackend),
            ]
        }
    }
}

/// The finding about a backend in use whose programs are no longer on the host.
fn gone_since(setting: BackendSetting, configured: &str, (kind, why): &(BackendKind, String)) -> Finding {
    let text = format!("{configured}, and {kind} can no longer write rules: {why}");
    match setting {
        BackendSetting::Only(_) => {
            let remedy = format!(
                "install {kind}'s programs again, or set backend: auto: until then the plugin refuses every pod of the mesh"
            );
            Finding::wrong(About::Backend, text, remedy).in_section(Section::MissingPrograms)
        }
        BackendSetting::Auto | BackendSetting::Iptables => {
            let remedy = "run gybe probe --fresh, or wait: the next ADD of a pod of the mesh probes again";
            Finding::note(About::Backend, text, Some(remedy))
        }
    }
}
