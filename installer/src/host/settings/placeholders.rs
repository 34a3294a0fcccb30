//! `CNI_NETWORK_CONFIG`, the older form of configuration: fills in the placeholders of a template of the
//! plugin's entry. `settings/template.rs` decides what its keys mean next to the settings.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::host::conflist::ISTIO;
use crate::host::conflist::entry::{Entry, EntryError, quoted};

/// The values of a template's placeholders.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct TemplateValues {
    /// The kubeconfig's path on the host.
    pub(super) kubeconfig_path: String,
    pub(super) kubeconfig_name: String,
    pub(super) service_host: String,
    pub(super) service_port: String,
    pub(super) node_name: String,
    pub(super) log_level: String,
}

/// Why a template cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum TemplateError {
    /// No value exists for these placeholders; left in place, the plugin would read them as values.
    #[error("unknown placeholders: {}", .0.join(", "))]
    Unknown(Vec<String>),
    /// The filled-in text is not a plugin's entry.
    #[error("the filled-in configuration is not a plugin's entry")]
    NoEntry(#[from] EntryError),
    #[error("the configuration is for the plugin \"{found}\", not \"{desired}\"")]
    Foreign { found: String, desired: String },
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

/// Keys that libcni sets for every plugin, or that our entry sets itself: a template's values for them are
/// ignored. Go matches keys in any case.
const RESERVED_KEYS: [&str; 4] = ["type", "cniVersion", "name", "capabilities"];

/// Fills in a template and returns its keys, without those that every entry has.
///
/// # Errors
/// If a placeholder is unknown, or the text is not the entry of `plugin` or of istio-cni.
pub(super) fn members(
    template: &str,
    values: &TemplateValues,
    plugin: &str,
) -> Result<Map<String, Value>, TemplateError> {
    let filled = fill(template, values)?;
    let found = Entry::parse(filled.as_bytes())?.plugin().to_owned();
    // Our plugin reads istio-cni's keys too, so its configuration can be used as it is.
    if found != plugin && found != ISTIO {
        return Err(TemplateError::Foreign { found, desired: plugin.to_owned() });
    }
    let value: Value = serde_json::from_str(&filled).unwrap_or_default();
    let members = value.as_object().cloned().unwrap_or_default();
    let is_its_own = |key: &str| !RESERVED_KEYS.iter().any(|reserved| reserved.eq_ignore_ascii_case(key));
    Ok(members.into_iter().filter(|(key, _)| is_its_own(key)).collect())
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

/// The next `__NAME__`, with the text before and after it.
fn next_placeholder(text: &str) -> Option<(&str, &str, &str)> {
    let mut from = 0;
    loop {
        let start = from + text.get(from..)?.find("__")?;
        let inside = text.get(start + 2..)?;
        let end = inside.find("__")?;
        let name = inside.get(..end)?;
        if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            let stop = start + 2 + end + 2;
            return Some((text.get(..start)?, text.get(start..stop)?, text.get(stop..)?));
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
        let members = members(template, &values(), "gybe-cni").unwrap();
        let expected = r#"{"log_level":"debug","kubernetes":{"kubeconfig":"/etc/cni/net.d/gybe-kubeconfig","file":"gybe-kubeconfig",
            "api":"https://[fd00::1]:443","port":443,"node":"node\"1\\"}}"#;
        assert_eq!(Value::Object(members), serde_json::from_str::<Value>(expected).unwrap());
    }

    #[test]
    fn all_unknown_placeholders_are_reported_by_name() {
        let template =
            r#"{"type":"gybe-cni","a":"__ETCD_KEY__","b":"__log_level__","c":"__LOG_LEVEL__ __init__"}"#;
        let refused = members(template, &values(), "gybe-cni").unwrap_err();
        assert_eq!(refused.to_string(), "unknown placeholders: __ETCD_KEY__, __init__, __log_level__");
    }

    #[test]
    fn underscores_alone_are_not_a_placeholder() {
        let template = r#"{"type":"gybe-cni","a":"____","b":"__ a __","c":"__LOG_LEVEL__"}"#;
        assert!(members(template, &values(), "gybe-cni").is_ok());
    }

    #[test]
    fn another_plugins_configuration_is_refused() {
        let refused = members(r#"{"type":"linkerd-cni"}"#, &values(), "gybe-cni");
        assert!(matches!(refused, Err(TemplateError::Foreign { .. })));
        assert!(matches!(members("{", &values(), "gybe-cni"), Err(TemplateError::NoEntry(_))));
    }
}
