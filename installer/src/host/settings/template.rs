//! The older form of the entry, `CNI_NETWORK_CONFIG`: a template. A setting overrides the template's key of the
//! same meaning. The agent itself sets `probed`, `pod_namespace`, `facts.socket`, `facts.kubeconfig` and
//! `capabilities`, and ignores the template's values for them. Each ignored value yields a note.

use super::environment::Environment;
use super::logging;
use super::reader::{RawSetting, SettingsReader};
use crate::error::chain;
use crate::host::image::PLUGIN;
use crate::host::settings::placeholders::{TemplateValues, members};
use gybe_plugin::conf::{PluginConf, ProbeHint, is_plugin_key, unknown_keys};
use serde_json::{Map, Value};
use std::path::PathBuf;

/// The template with its placeholders filled in.
pub(super) struct Template {
    /// The variable or the ConfigMap's key that holds it.
    pub(super) name: &'static str,
    /// Its keys that the plugin reads.
    pub(super) members: Map<String, Value>,
    /// Its other keys, which are copied into the entry.
    unknown_members: Map<String, Value>,
    /// The plugin's configuration as it would be without further settings.
    conf: PluginConf,
}

/// Reads the template; none if it is absent or the plugin cannot parse it.
pub(super) fn read(reader: &mut SettingsReader<'_>, environment: &Environment) -> Option<Template> {
    let file = reader.sources.network_config.as_deref().map(str::trim).filter(|text| !text.is_empty());
    let file = file.map(|text| RawSetting { name: "CNI_NETWORK_CONFIG_FILE", text });
    let setting = reader.either("cni_network_config", "CNI_NETWORK_CONFIG").or(file)?;
    let level = logging::level(reader).map_or("info", |level| level.text);
    let all = members(setting.text, &values(environment, level), PLUGIN).map_err(|why| chain(&why));
    let read = all.and_then(|all| Ok((PluginConf::read(&all).map_err(|why| why.to_string())?, all)));
    let (conf, all) = read.map_err(|why| reader.refuse(setting, why)).ok()?;
    let unknown = unknown_keys(&all);
    if !unknown.is_empty() {
        reader.notes.push(format!("{}: unknown keys {}", setting.name, unknown.join(", ")));
    }
    let (members, unknown_members) = all.into_iter().partition(|(key, _)| is_plugin_key(key));
    Some(Template { name: setting.name, members, unknown_members, conf })
}

fn values(environment: &Environment, level: &str) -> TemplateValues {
    let path = environment.kubeconfig();
    TemplateValues {
        kubeconfig_path: path.display().to_string(),
        kubeconfig_name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        service_host: environment.api.host.clone(),
        service_port: environment.api.port.clone(),
        node_name: environment.node.clone(),
        log_level: level.to_owned(),
    }
}

impl Template {
    /// Its other keys, which are copied into the entry.
    pub(super) fn into_unknown_members(self) -> Map<String, Value> {
        self.unknown_members
    }

    /// Reports whether it has this key of an entry, or istio-cni's key of the same meaning.
    pub(super) fn has(&self, key: &str) -> bool {
        let is_true = |key: &str| self.members.get(key) == Some(&Value::Bool(true));
        self.members.get(key).is_some_and(|value| !value.is_null())
            || match key {
                "log_level" => self.members.contains_key("plugin_log_level"),
                "backend" => is_true("native_nftables"),
                "exclude_namespaces" => {
                    self.members.get("kubernetes").is_some_and(|it| it.get(key).is_some())
                }
                _ => false,
            }
    }

    /// Returns a note if a setting overrides a different value of the template.
    pub(super) fn note_of_override(&self, key: &str, by: &str, conf: &PluginConf) -> Option<String> {
        let (was, is) = (self.conf.to_members(), conf.to_members());
        let differs = self.has(key) && was.get(key) != is.get(key);
        differs.then(|| {
            let theirs: String = was.get(key).map(Value::to_string).unwrap_or_default();
            let theirs: String = theirs.chars().take(64).collect();
            format!("{} has {key} {theirs}, which {by} overrides", self.name)
        })
    }

    /// Replaces the template's values with the agent's own, and returns a note for each that differed.
    pub(super) fn replace_with_agents_values(
        &self,
        environment: &Environment,
        kubeconfig: Option<PathBuf>,
        conf: &mut PluginConf,
    ) -> Vec<String> {
        let theirs = &self.conf;
        let mut notes = Vec::new();
        if self.members.contains_key("probed") {
            notes.push("has probed, which is ignored: the agent writes the probe report");
        }
        if !theirs.pod_namespace.is_empty() && theirs.pod_namespace != environment.namespace {
            notes.push("has another pod_namespace than the agent's: the agent's is used");
        }
        let has_socket = self.members.get("facts").is_some_and(|it| it.get("socket").is_some());
        if has_socket && theirs.facts.socket != Some(environment.facts_socket()) {
            notes.push("has another facts.socket than the agent's: the agent's is used");
        }
        if theirs.facts.kubeconfig.is_some() && theirs.facts.kubeconfig != kubeconfig {
            notes.push(match kubeconfig {
                Some(_) => "names another kubeconfig than the agent writes: the agent's is used",
                None => {
                    "names a kubeconfig, which is ignored because pod_source is agent; set pod_source: api"
                }
            });
        }
        conf.probed = ProbeHint::default();
        conf.pod_namespace.clone_from(&environment.namespace);
        conf.facts.socket = Some(environment.facts_socket());
        conf.facts.kubeconfig = kubeconfig;
        notes.into_iter().map(|note| format!("{} {note}", self.name)).collect()
    }
}
