//! The older form of configuration, `CNI_NETWORK_CONFIG`: a template of the plugin's entry, filled in.
//! What its keys mean beside the settings is in `settings/template.rs`.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::conflist::ISTIO;
use super::entry::{Entry, EntryError, quoted};

/// What a template may ask for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Where the kubeconfig lies on the host.
    pub kubeconfig_path: String,
    /// Its file name alone.
    pub kubeconfig_name: String,
    /// The API server.
    pub service_host: String,
    /// Its port.
    pub service_port: String,
    /// This node.
    pub node_name: String,
    /// How much the plugin tells.
    pub log_level: String,
}

/// Why a template is no configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Nobody would fill them in, and the plugin would read them.
    #[error("unknown placeholders: {}", .0.join(", "))]
    Unknown(Vec<String>),
    /// Filled in, it is no entry.
    #[error("the filled-in configuration is no plugin's entry")]
    NoEntry(#[from] EntryError),
    /// Somebody else's plugin.
    #[error("the configuration is of plugin \"{found}\", not \"{wanted}\"")]
    Foreign {
        /// Whose it is.
        found: String,
        /// Whose it has to be.
        wanted: String,
    },
}

impl Facts {
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

/// What libcni gives every plugin, and what our entry has of its own: a template's words for them do
/// not count. Go reads keys in any case.
const NOT_THE_TEMPLATES: [&str; 4] = ["type", "cniVersion", "name", "capabilities"];

/// Fills in a template and returns its keys, without those that every entry has.
///
/// # Errors
/// When a placeholder is unknown, or the text is not the entry of `plugin` or of istio-cni.
pub fn members(template: &str, facts: &Facts, plugin: &str) -> Result<Map<String, Value>, TemplateError> {
    let filled = fill(template, facts)?;
    let found = Entry::parse(filled.as_bytes())?.plugin().to_owned();
    // The incumbent's keys are read by our plugin too, so its configuration serves as it is.
    if found != plugin && found != ISTIO {
        return Err(TemplateError::Foreign { found, wanted: plugin.to_owned() });
    }
    let value: Value = serde_json::from_str(&filled).unwrap_or_default();
    let members = value.as_object().cloned().unwrap_or_default();
    let is_its_own = |key: &str| !NOT_THE_TEMPLATES.iter().any(|reserved| reserved.eq_ignore_ascii_case(key));
    Ok(members.into_iter().filter(|(key, _)| is_its_own(key)).collect())
}

fn fill(template: &str, facts: &Facts) -> Result<String, TemplateError> {
    let (mut out, mut unknown, mut rest) = (String::new(), BTreeSet::new(), template);
    while let Some((before, placeholder, after)) = next(rest) {
        out.push_str(before);
        match facts.get(placeholder) {
            // As the inside of a JSON string: no value can end it.
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

/// The next `__NAME__`, with what stands before and after it.
fn next(text: &str) -> Option<(&str, &str, &str)> {
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

    fn facts() -> Facts {
        Facts {
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
        let members = members(template, &facts(), "gybe-cni").unwrap();
        let want = r#"{"log_level":"debug","kubernetes":{"kubeconfig":"/etc/cni/net.d/gybe-kubeconfig","file":"gybe-kubeconfig",
            "api":"https://[fd00::1]:443","port":443,"node":"node\"1\\"}}"#;
        assert_eq!(Value::Object(members), serde_json::from_str::<Value>(want).unwrap());
    }

    #[test]
    fn unknown_placeholders_are_refused_all_at_once_and_by_name() {
        let template =
            r#"{"type":"gybe-cni","a":"__ETCD_KEY__","b":"__log_level__","c":"__LOG_LEVEL__ __init__"}"#;
        let refused = members(template, &facts(), "gybe-cni").unwrap_err();
        assert_eq!(refused.to_string(), "unknown placeholders: __ETCD_KEY__, __init__, __log_level__");
    }

    #[test]
    fn underscores_alone_are_no_placeholder() {
        let template = r#"{"type":"gybe-cni","a":"____","b":"__ a __","c":"__LOG_LEVEL__"}"#;
        assert!(members(template, &facts(), "gybe-cni").is_ok());
    }

    #[test]
    fn another_plugins_configuration_is_refused() {
        let refused = members(r#"{"type":"linkerd-cni"}"#, &facts(), "gybe-cni");
        assert!(matches!(refused, Err(TemplateError::Foreign { .. })));
        assert!(matches!(members("{", &facts(), "gybe-cni"), Err(TemplateError::NoEntry(_))));
    }
}
