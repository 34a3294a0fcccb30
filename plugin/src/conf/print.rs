//! An entry's keys from a `PluginConf`: what the installer writes. Every key stands there, so that
//! nothing depends on a default of whichever version reads it.

use super::{FactsConf, GATES, INBOUND, IPV6, LOG_LEVELS, PluginConf};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

impl PluginConf {
    /// The plugin's own keys; reading them gives this very value again.
    #[must_use]
    pub fn to_members(&self) -> Map<String, Value> {
        let texts: [(&str, &str); 6] = [
            ("log_level", word(&LOG_LEVELS, self.log_level)),
            ("backend", self.backend.as_str()),
            ("pod_namespace", &self.pod_namespace),
            ("gates", word(&GATES, self.gates)),
            ("inboundDefault", word(&INBOUND, self.inbound_default)),
            ("ipv6", word(&IPV6, self.ipv6)),
        ];
        let texts = texts.map(|(key, text)| (key.to_owned(), text.into()));
        let lists = [
            ("exclude_namespaces".to_owned(), json!(self.exclude_namespaces)),
            ("max_intervals".to_owned(), self.max_intervals.0.into()),
            ("facts".to_owned(), self.facts.to_json()),
        ];
        let probed = self.probed.to_json().map(|json| ("probed".to_owned(), json));
        texts.into_iter().chain(lists).chain(probed).collect()
    }
}

impl FactsConf {
    /// A source that is not asked is an empty one: an absent key would be the default.
    fn to_json(&self) -> Value {
        let text =
            |path: &Option<PathBuf>| path.as_ref().map_or(String::new(), |it| it.display().to_string());
        let deadline = u64::try_from(self.deadline.as_millis()).unwrap_or(u64::MAX);
        json!({
            "socket": text(&self.socket), "directory": text(&self.directory),
            "kubeconfig": text(&self.kubeconfig), "deadline_ms": deadline,
        })
    }
}

fn word<T: Copy + PartialEq>(words: &[(&'static str, T)], meant: T) -> &'static str {
    words.iter().find(|(_, meaning)| *meaning == meant).map_or("", |(word, _)| word)
}
