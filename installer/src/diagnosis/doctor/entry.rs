//! Findings about our entry's values, parsed as the plugin parses them, and about the backend in use: the configured one,
//! and the probe report.

use super::observe::Observation;
use super::{About, DoctorFinding, Section};
use crate::host::entries::{OurEntries, members, requests_annotations};
use crate::probe::node_backend::{BackendVerdict, node_backend};
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::model::Hint;
use gybe_netfilter::probe::choose::BackendSetting;
use gybe_plugin::conf::{PluginConf, unknown_keys};
use gybe_plugin::network_conf::POD_ANNOTATIONS;
use serde_json::{Map, Value};

pub(super) fn examine(observation: &Observation, ours: &OurEntries<'_>) -> Vec<DoctorFinding> {
    let mut found: Vec<DoctorFinding> = ours
        .entries()
        .flat_map(|(file, entry)| of_entry(&file.to_string(), &members(entry).unwrap_or_default()))
        .collect();
    if let Some((kubeconfig, why)) = &observation.unreadable_kubeconfig {
        let text = format!("the kubeconfig {} cannot be read: {}", kubeconfig.display(), why.desc());
        let remedy =
            "set pod_source: api, so that the agent writes the file, or remove the path from the entry";
        found.push(DoctorFinding::wrong(About::Entry, text, remedy).in_section(Section::WrongKubeconfig));
    }
    found
}

fn of_entry(file: &str, members: &Map<String, Value>) -> Vec<DoctorFinding> {
    let conf = match PluginConf::read(members) {
        Ok(conf) => conf,
        Err(wrong) => {
            let text = format!("in {file}: {wrong}; the plugin refuses every ADD (GYBE-ADD-009)");
            let remedy = "docs/CONFIGURE.md lists every key; gybe install writes the entry again";
            return vec![DoctorFinding::wrong(About::Entry, text, remedy).in_section(Section::WrongEntry)];
        }
    };
    let mut found = Vec::new();
    let unknown = unknown_keys(members);
    if !unknown.is_empty() {
        let text = format!("in {file}: unknown keys {}", unknown.join(", "));
        found.push(DoctorFinding::note(About::Entry, text, None));
    }
    if !requests_annotations(members) {
        let text = format!(
            "in {file}: the entry does not request the capability {POD_ANNOTATIONS}, so pods outside the mesh wait for the agent too"
        );
        found.push(DoctorFinding::wrong(
            About::Entry,
            text,
            "run gybe install, or add it to \"capabilities\"",
        ));
    }
    if found.is_empty() {
        let excluded: Vec<&str> = conf.exclude_namespaces.iter().map(String::as_str).collect();
        let excluded = if excluded.is_empty() { "none".to_owned() } else { excluded.join(", ") };
        found.push(DoctorFinding::well(About::Entry, format!("in {file}: excluded namespaces: {excluded}")));
    }
    found
}

/// Findings about the backend in use.
pub(super) fn backend(observation: &Observation, ours: &OurEntries<'_>) -> Vec<DoctorFinding> {
    let entry = ours.plugin_conf();
    let (has_entry, conf) = (entry.is_some(), entry.unwrap_or_default());
    let decided = node_backend(conf.backend, None, observation.probe_report.as_ref());
    let configured = format!("backend: {}", conf.backend.as_str());
    match &decided.verdict {
        // Which backend is configured is not known.
        BackendVerdict::Works(_) | BackendVerdict::Unknown if !has_entry => Vec::new(),
        BackendVerdict::Works(choice) if observation.missing_programs.is_none() => {
            let mut found = vec![DoctorFinding::well(
                About::Backend,
                format!("{configured}; the backend in use is {}: {}", choice.backend, choice.why),
            )];
            found.extend(choice.missing.iter().map(|(profile, what)| {
                let text = format!("{} cannot do {profile} on this node: {what}", choice.backend);
                DoctorFinding::note(
                    About::Backend,
                    text,
                    Some("the plugin refuses pods that need it, with this reason"),
                )
            }));
            found
        }
        BackendVerdict::Works(_) | BackendVerdict::Unknown if observation.missing_programs.is_some() => {
            observation
                .missing_programs
                .iter()
                .map(|(kind, why)| gone_since(conf.backend, &configured, *kind, why))
                .collect()
        }
        BackendVerdict::Works(_) | BackendVerdict::Unknown => {
            let remedy = match conf.backend {
                BackendSetting::Only(_) => {
                    "run gybe probe to find out whether it works: the plugin uses it without a probe"
                }
                _ => "run gybe probe now, or wait: the next ADD probes",
            };
            vec![DoctorFinding::note(
                About::Backend,
                format!("{configured}; no probe report yet"),
                Some(remedy),
            )]
        }
        BackendVerdict::Fails(none) => {
            let remedy = none.hint().unwrap_or_else(|| "run gybe probe --fresh to see what was tried".into());
            vec![
                DoctorFinding::wrong(
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
fn gone_since(setting: BackendSetting, configured: &str, kind: BackendKind, why: &str) -> DoctorFinding {
    let text = format!("{configured}, and {kind} can no longer write rules: {why}");
    match setting {
        BackendSetting::Only(_) => {
            let remedy = format!(
                "install {kind}'s programs again, or set backend: auto: until then the plugin refuses every pod of the mesh"
            );
            DoctorFinding::wrong(About::Backend, text, remedy).in_section(Section::MissingPrograms)
        }
        BackendSetting::Auto | BackendSetting::Iptables => {
            let remedy = "run gybe probe --fresh, or wait: the next ADD of a pod of the mesh probes again";
            DoctorFinding::note(About::Backend, text, Some(remedy))
        }
    }
}
