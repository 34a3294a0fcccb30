//! The older form of the entry, `CNI_NETWORK_CONFIG`: a template. Its placeholders are filled in before it is
//! parsed. A setting overrides the template's key of the same meaning. The agent itself sets `probed`,
//! `pod_namespace`, `facts.socket`, `facts.kubeconfig` and `capabilities`, and ignores the template's values for
//! them. Each ignored value yields a note.

use super::environment::Environment;
use super::reader::{RawSetting, SettingsReader};
use crate::error::chain;
use crate::host::conflist::ISTIO;
use crate::host::conflist::entry::{Entry, EntryError, quoted};
use crate::host::image::PLUGIN;
use gybe_plugin::conf::{PluginConf, ProbeHint, is_plugin_key, unknown_keys};
use gybe_plugin::network_conf::POD_ANNOTATIONS;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The template with its placeholders filled in.
pub(super) struct Template {
    /// The variable or the ConfigMap's key that holds it.
    pub(super) name: &'static str,
    /// Its keys that the plugin parses.
    pub(super) members: Map<String, Value>,
    /// Its other keys, which are copied into the entry.
    unknown_members: Map<String, Value>,
    /// The plugin's configuration from the template alone.
    conf: PluginConf,
    /// Whether it requests other capabilities than the agent.
    has_other_capabilities: bool,
}

/// Reads the template; none if it is absent or refused. `level` is the configured log level.
pub(super) fn read(
    reader: &mut SettingsReader<'_>,
    environment: &Environment,
    level: Option<RawSetting<'_>>,
) -> Option<Template> {
    let text = reader.sources.network_config.as_deref().map(str::trim).filter(|text| !text.is_empty());
    let file = text.map(|text| RawSetting { name: "CNI_NETWORK_CONFIG_FILE", text });
    let setting = reader.either("cni_network_config", "CNI_NETWORK_CONFIG").or(file)?;
    let level = level.map_or("info", |level| level.text);
    let all = filled_members(setting.text, &values(environment, level), PLUGIN).map_err(|why| chain(&why));
    let parsed = all.and_then(|all| Ok((PluginConf::read(&all).map_err(|why| why.to_string())?, all)));
    let (conf, all) = parsed.map_err(|why| reader.refuse(setting, why)).ok()?;
    let (capabilities, all): (Map<_, _>, Map<_, _>) =
        all.into_iter().partition(|(key, _)| key.eq_ignore_ascii_case("capabilities"));
    let requested = capabilities.values().filter_map(Value::as_object).flatten();
    let has_other_capabilities = requested.into_iter().any(|(name, _)| name != POD_ANNOTATIONS);
    let unknown = unknown_keys(&all);
    if !unknown.is_empty() {
        reader.notes.push(format!("{}: unknown keys {}", setting.name, unknown.join(", ")));
    }
    let (members, unknown_members) = all.into_iter().partition(|(key, _)| is_plugin_key(key));
    Some(Template { name: setting.name, members, unknown_members, conf, has_other_capabilities })
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
                    self.members.get("kubernetes").is_some_and(|kubernetes| kubernetes.get(key).is_some())
                }
                _ => false,
            }
    }

    /// Returns a note if a setting overrides a different value of the template.
    pub(super) fn note_of_override(&self, key: &str, by: &str, conf: &PluginConf) -> Option<String> {
        let (template, effective) = (self.conf.to_members(), conf.to_members());
        let differs = self.has(key) && template.get(key) != effective.get(key);
        differs.then(|| {
            let value = template.get(key).map(Value::to_string).unwrap_or_default();
            let value: String = value.chars().take(64).collect();
            format!("{} has {key} {value}, which {by} overrides", self.name)
        })
    }

    /// Sets the agent's own values in `conf`, and returns a note for each different value of the template.
    pub(super) fn replace_with_agents_values(
        &self,
        environment: &Environment,
        kubeconfig: Option<PathBuf>,
        conf: &mut PluginConf,
    ) -> Vec<String> {
        let template = &self.conf;
        let mut notes = Vec::new();
        if self.members.contains_key("probed") {
            notes.push("has probed, which is ignored: the agent writes the probe report");
        }
        if !template.pod_namespace.is_empty() && template.pod_namespace != environment.namespace {
            notes.push("has another pod_namespace than the agent's: the agent's is used");
        }
        let has_socket = self.members.get("facts").is_some_and(|facts| facts.get("socket").is_some());
        if has_socket && template.facts.socket != Some(environment.facts_socket()) {
            notes.push("has another facts.socket than the agent's: the agent's is used");
        }
        if template.facts.kubeconfig.is_some() && template.facts.kubeconfig != kubeconfig {
            notes.push(match kubeconfig {
                Some(_) => "names another kubeconfig than the agent writes: the agent's is used",
                None => {
                    "names a kubeconfig, which is ignored because pod_source is agent; set pod_source: api"
                }
            });
        }
        if self.has_other_capabilities {
            notes.push(
                "has other capabilities than pod annotations, which are ignored: gybe-cni needs no others",
            );
        }
        conf.probed = ProbeHint::default();
        conf.pod_namespace.clone_from(&environment.namespace);
        conf.facts.socket = Some(environment.facts_socket());
        conf.facts.kubeconfig = kubeconfig;
        notes.into_iter().map(|note| format!("{} {note}", self.name)).collect()
    }
}

/// The values of a template's placeholders.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct TemplateValues {
    /// The kubeconfig's path on the host.
    kubeconfig_path: String,
    kubeconfig_name: String,
    service_host: String,
    service_port: String,
    node_name: String,
    log_level: String,
}

/// Why a template cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum TemplateError {
    /// These placeholders have no value. The plugin would read the placeholder itself as the value.
    #[error("unknown placeholders: {}", .0.join(", "))]
    Unknown(Vec<String>),
    #[error("the filled-in configuration is not a plugin's entry")]
    NoEntry(#[from] EntryError),
    #[error("the configuration is for the plugin \"{found}\", not \"{desired}\"")]
    OtherPlugin { found: String, desired: String },
}

impl TemplateValues {
    fn get(&self, placeholder: &str) -> Option<&str> {
        Some(match placeholder {
            "__KUBECONFIG_FILEPATH__" => &self.kubeconfig_path,
            "__KUBECONFIG_FILENAME__" => &self.kubeconfig_name,
            "__KUBERNETES_SERVICE_HOST__" => &self.service_host,
            "__KUBERNETES_SERVICE_PORT__" => &self.service_port,
            "__KUBERNETES_NODE_NAME__" => &self.node_name,
            "__LOG_LEVEL__" => &self.log_level,
            _ => return None,
        })
    }
}

/// Keys that libcni sets for every plugin: a template's values for them are ignored. They match in any case, as in Go's
/// encoding/json.
const RESERVED_KEYS: [&str; 3] = ["type", "cniVersion", "name"];

/// Fills in a template and returns its members except those of [`RESERVED_KEYS`].
///
/// # Errors
/// If a placeholder is unknown, or the text is not the entry of `plugin` or of istio-cni.
fn filled_members(
    template: &str,
    values: &TemplateValues,
    plugin: &str,
) -> Result<Map<String, Value>, TemplateError> {
    let filled = fill(template, values)?;
    let found = Entry::parse(filled.as_bytes())?.plugin().to_owned();
    // Our plugin reads istio-cni's keys too, so an entry of istio-cni is used unchanged.
    if found != plugin && found != ISTIO {
        return Err(TemplateError::OtherPlugin { found, desired: plugin.to_owned() });
    }
    let value: Value = serde_json::from_str(&filled).unwrap_or_default();
    let members = value.as_object().cloned().unwrap_or_default();
    let is_kept = |key: &str| !RESERVED_KEYS.iter().any(|reserved| reserved.eq_ignore_ascii_case(key));
    Ok(members.into_iter().filter(|(key, _)| is_kept(key)).collect())
}

fn fill(template: &str, values: &TemplateValues) -> Result<String, TemplateError> {
    let (mut out, mut unknown, mut rest) = (String::new(), BTreeSet::new(), template);
    while let Some((before, placeholder, after)) = next_placeholder(rest) {
        out.push_str(before);
        match values.get(placeholder) {
            // Escaped as the inside of a JSON string, so that no value can end the string.
            Some(value) => {
                let quoted = quoted(value);
                let inside = quoted.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
                out.push_str(inside.unwrap_or_default());
            }
            None => {
                unknown.insert(placeholder.to_owned());
            }
        }
        rest = after;
    }
    out.push_str(rest);
    if unknown.is_empty() { Ok(out) } else { Err(TemplateError::Unknown(unknown.into_iter().collect())) }
}

/// Returns the next `__NAME__`, with the text before and after it.
fn next_placeholder(text: &str) -> Option<(&str, &str, &str)> {
    let mut from = 0;
    loop {
        let start = from + text.get(from..)?.find("__")?;
        let inside = text.get(start + 2..)?;
        let length = inside.find("__")?;
        let name = inside.get(..length)?;
        if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            let end = start + 2 + length + 2;
            return Some((text.get(..start)?, text.get(start..end)?, text.get(end..)?));
        }
        from = start + 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> TemplateValues {
        TemplateValues {
            kubeconfig_path: "/etc/cni/net.d/gybe-kubeconfig".into(),
            kubeconfig_name: "gybe-kubeconfig".into(),
            service_host: "fd00::1".into(),
            service_port: "443".into(),
            node_name: "node\"1\\".into(),
            log_level: "debug".into(),
        }
    }

    #[test]
    fn every_placeholder_is_filled_in() {
        let template = r#"{"cniVersion":"0.3.1","name":"istio-cni","type":"istio-cni","log_level":"__LOG_LEVEL__",
            "kubernetes":{"kubeconfig":"__KUBECONFIG_FILEPATH__","file":"__KUBECONFIG_FILENAME__",
            "api":"https://[__KUBERNETES_SERVICE_HOST__]:__KUBERNETES_SERVICE_PORT__",
            "port":__KUBERNETES_SERVICE_PORT__,"node":"__KUBERNETES_NODE_NAME__"}}"#;
        let members = filled_members(template, &values(), "gybe-cni").unwrap();
        let expected = r#"{"log_level":"debug","kubernetes":{"kubeconfig":"/etc/cni/net.d/gybe-kubeconfig","file":"gybe-kubeconfig",
            "api":"https://[fd00::1]:443","port":443,"node":"node\"1\\"}}"#;
        assert_eq!(Value::Object(members), serde_json::from_str::<Value>(expected).unwrap());
    }

    #[test]
    fn all_unknown_placeholders_are_reported_by_name() {
        let template =
            r#"{"type":"gybe-cni","a":"__ETCD_KEY__","b":"__log_level__","c":"__LOG_LEVEL__ __init__"}"#;
        let refused = filled_members(template, &values(), "gybe-cni").unwrap_err();
        assert_eq!(refused.to_string(), "unknown placeholders: __ETCD_KEY__, __init__, __log_level__");
    }

    #[test]
    fn underscores_alone_are_not_a_placeholder() {
        let template = r#"{"type":"gybe-cni","a":"____","b":"__ a __","c":"__LOG_LEVEL__"}"#;
        assert!(filled_members(template, &values(), "gybe-cni").is_ok());
    }

    #[test]
    fn another_plugins_configuration_is_refused() {
        let refused = filled_members(r#"{"type":"linkerd-cni"}"#, &values(), "gybe-cni");
        assert!(matches!(refused, Err(TemplateError::OtherPlugin { .. })));
        assert!(matches!(filled_members("{", &values(), "gybe-cni"), Err(TemplateError::NoEntry(_))));
    }
}
