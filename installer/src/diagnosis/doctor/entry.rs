//! Findings about our entry's values, parsed as the plugin parses them.

use super::observe::Observation;
use super::{About, Finding, Section};
use crate::host::entries::{OurEntries, members, requests_annotations};
use gybe_plugin::conf::{PluginConf, unknown_keys};
use gybe_plugin::network_conf::POD_ANNOTATIONS;
use serde_json::{Map, Value};

pub(super) fn examine(observation: &Observation, ours: &OurEntries<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = ours
        .entries()
        .flat_map(|(file, entry)| of_entry(&file.to_string(), &members(entry).unwrap_or_default()))
        .collect();
    if let Some((kubeconfig, why)) = &observation.unreadable_kubeconfig {
        let text = format!("the kubeconfig {} cannot be read: {}", kubeconfig.display(), why.desc());
        let remedy =
            "set pod_source: api, so that the agent writes the file, or remove the path from the entry";
        found.push(Finding::wrong(About::Entry, text, remedy).in_section(Section::WrongKubeconfig));
    }
    found
}

fn of_entry(file: &str, members: &Map<String, Value>) -> Vec<Finding> {
    let conf = match PluginConf::read(members) {
        Ok(conf) => conf,
        Err(wrong) => {
            let text = format!("in {file}: {wrong}; the plugin refuses every ADD (GYBE-ADD-009)");
            let remedy = "docs/CONFIGURE.md lists every key; gybe install writes the entry again";
            return vec![Finding::wrong(About::Entry, text, remedy).in_section(Section::WrongEntry)];
        }
    };
    let mut found = Vec::new();
    let unknown = unknown_keys(members);
    if !unknown.is_empty() {
        let text = format!("in {file}: unknown keys {}", unknown.join(", "));
        found.push(Finding::note(About::Entry, text, None));
    }
    if !requests_annotations(members) {
        let text = format!(
            "in {file}: the entry does not request the capability {POD_ANNOTATIONS}, so pods outside the mesh wait for the agent too"
        );
        found.push(Finding::wrong(About::Entry, text, "run gybe install, or add it to \"capabilities\""));
    }
    if found.is_empty() {
        let excluded: Vec<&str> = conf.exclude_namespaces.iter().map(String::as_str).collect();
        let excluded = if excluded.is_empty() { "none".to_owned() } else { excluded.join(", ") };
        found.push(Finding::well(About::Entry, format!("in {file}: excluded namespaces: {excluded}")));
    }
    found
}
