//! The backend of a node: the operator's setting for the node, else for the cluster, else the plugin's choice; and
//! whether it works according to the probe. Pure.
//!
//! The operator's setting goes into the entry's `backend`, which the plugin uses without probing. The result of the
//! probe goes into `probed`, with the kernel that it is true for: as a setting it would outlive its kernel after a
//! reboot, and every ADD until the agent runs again would be refused.

use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::probe::Capabilities;
use gybe_netfilter::probe::choose::{BackendSetting, Choice, NoBackend, choose, next};
use gybe_plugin::conf::{PluginConf, ProbeHint};
use std::fmt;

/// The node label that overrides the cluster's setting.
pub const LABEL: &str = "gybe.dev/backend";

/// The probe's report about the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeProbe {
    pub kernel: String,
    pub capabilities: Capabilities,
}

/// Where the setting comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingSource {
    /// The node's label.
    Label,
    /// The cluster's setting.
    Cluster,
    /// There is no setting: the plugin uses the result of the probe.
    None,
}

/// Whether the setting works on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendVerdict {
    /// The node was not probed for it.
    Unknown,
    Works(Choice),
    Fails(NoBackend),
}

/// A node's backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeBackend {
    /// The setting for the entry.
    pub setting: BackendSetting,
    pub source: SettingSource,
    pub verdict: BackendVerdict,
    /// The kernel that `verdict` is about.
    pub kernel: Option<String>,
    /// A label that names no backend, and is ignored.
    pub unknown_label: Option<String>,
}

/// Decides the node's backend. While the report is missing because the plugin removed it, the caller passes the last
/// one, so that the entry is not rewritten.
#[must_use]
pub fn node_backend(cluster: BackendSetting, label: Option<&str>, probe: Option<&NodeProbe>) -> NodeBackend {
    let by_label = label.and_then(|label| label.parse().ok());
    let unknown_label = label.filter(|_| by_label.is_none()).map(str::to_owned);
    let (setting, source) = match by_label {
        Some(setting) => (setting, SettingSource::Label),
        None if cluster == BackendSetting::Auto => (cluster, SettingSource::None),
        None => (cluster, SettingSource::Cluster),
    };
    let verdict = probe.map_or(BackendVerdict::Unknown, |probe| verdict(&probe.capabilities, setting));
    NodeBackend { setting, source, verdict, kernel: probe.map(|probe| probe.kernel.clone()), unknown_label }
}

fn verdict(known: &Capabilities, setting: BackendSetting) -> BackendVerdict {
    match choose(known, setting) {
        Ok(choice) => BackendVerdict::Works(choice),
        Err(_) if next(known, setting).is_some() => BackendVerdict::Unknown,
        Err(none) => BackendVerdict::Fails(none),
    }
}

impl NodeBackend {
    /// Returns the backend in use, as far as it is known.
    #[must_use]
    pub fn writes(&self) -> Option<BackendKind> {
        match (&self.verdict, self.setting) {
            (_, BackendSetting::Only(kind)) => Some(kind),
            (BackendVerdict::Works(choice), _) => Some(choice.backend),
            _ => None,
        }
    }

    /// Sets the backend in the configuration for the plugin's entry.
    pub fn write_into(&self, conf: &mut PluginConf) {
        conf.backend = self.setting;
        let is_probed = self.setting.named().is_none();
        conf.probed = match (is_probed, self.writes(), &self.kernel) {
            (true, Some(kind), Some(kernel)) => ProbeHint { backend: Some(kind), kernel: kernel.clone() },
            _ => ProbeHint::default(),
        };
    }

    /// Returns a note about an ignored label.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let label = self.unknown_label.as_ref()?;
        let label: String = label.chars().take(64).collect();
        Some(format!("node label {LABEL} is {label:?}, which names no backend; it is ignored"))
    }
}

/// The reason in one sentence.
impl fmt::Display for NodeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            SettingSource::Label => write!(f, "node label {LABEL} is {}", self.setting.as_str())?,
            SettingSource::Cluster => write!(f, "the setting is {}", self.setting.as_str())?,
            SettingSource::None => write!(f, "the plugin chooses")?,
        }
        match &self.verdict {
            BackendVerdict::Unknown => f.write_str("; the node has not been probed yet"),
            BackendVerdict::Works(choice) => write!(f, "; {}", choice.why),
            BackendVerdict::Fails(none) => write!(f, "; {none}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_netfilter::model::Hint;
    use gybe_netfilter::probe::{Finding, Findings, Profile, Refusal};

    fn findings(finding: &Finding) -> Findings {
        Profile::ALL.into_iter().map(|profile| (profile, finding.clone())).collect()
    }

    /// A kernel with nothing but ip_tables.
    fn legacy_only() -> NodeProbe {
        let refused =
            findings(&Finding::Refused(Refusal { why: "no nf_tables".into(), ..Refusal::default() }));
        let backends = [
            (BackendKind::Nft, refused.clone()),
            (BackendKind::IptablesNft, refused),
            (BackendKind::IptablesLegacy, findings(&Finding::Works)),
        ];
        let capabilities = Capabilities { backends: backends.into_iter().collect(), untried: Vec::new() };
        NodeProbe { kernel: "4.18.0".into(), capabilities }
    }

    fn entry(backend: &NodeBackend) -> (&'static str, ProbeHint) {
        let before = ProbeHint { backend: Some(BackendKind::Nft), kernel: "of before".to_owned() };
        let mut conf = PluginConf { probed: before, ..PluginConf::default() };
        backend.write_into(&mut conf);
        (conf.backend.as_str(), conf.probed)
    }

    #[test]
    fn the_label_overrides_the_clusters_setting_and_an_unknown_label_is_ignored() {
        let nft = BackendSetting::Only(BackendKind::Nft);
        for (cluster, label, setting, source) in [
            (BackendSetting::Auto, None, "auto", SettingSource::None),
            (nft, None, "nft", SettingSource::Cluster),
            (nft, Some("iptables-legacy"), "iptables-legacy", SettingSource::Label),
            (nft, Some("auto"), "auto", SettingSource::Label),
            (nft, Some("legacy"), "nft", SettingSource::Cluster),
            (BackendSetting::Auto, Some(""), "auto", SettingSource::None),
        ] {
            let decided = node_backend(cluster, label, None);
            assert_eq!((decided.setting.as_str(), decided.source), (setting, source), "{label:?}");
            assert_eq!(
                decided.note().is_some(),
                decided.source != SettingSource::Label && label.is_some(),
                "{label:?}"
            );
        }
        let note = node_backend(nft, Some("nfq\n"), None).note().unwrap();
        assert!(
            note.starts_with("node label gybe.dev/backend is \"nfq\\n\", which names no backend"),
            "{note}"
        );
    }

    #[test]
    fn f23_the_probes_result_is_written_next_to_the_setting_with_its_kernel() {
        let probe = legacy_only();
        let auto = node_backend(BackendSetting::Auto, None, Some(&probe));
        let probed = ProbeHint { backend: Some(BackendKind::IptablesLegacy), kernel: "4.18.0".to_owned() };
        assert_eq!(entry(&auto), ("auto", probed));
        assert_eq!(auto.writes(), Some(BackendKind::IptablesLegacy));
        assert!(
            auto.to_string().contains("auto: iptables-legacy does everything; nft: v4 refused: no nf_tables")
        );
        assert_eq!(entry(&node_backend(BackendSetting::Auto, None, None)), ("auto", ProbeHint::default()));
        let forced = node_backend(BackendSetting::Auto, Some("iptables-legacy"), Some(&probe));
        assert_eq!(entry(&forced), ("iptables-legacy", ProbeHint::default()));
    }

    #[test]
    fn f23_a_setting_that_cannot_work_is_reported_before_a_pod_fails() {
        let probe = legacy_only();
        let nft = node_backend(BackendSetting::Only(BackendKind::Nft), None, Some(&probe));
        let BackendVerdict::Fails(none) = &nft.verdict else { panic!("{nft:?}") };
        assert!(none.hint().unwrap().contains("iptables-legacy works on this node"));
        assert_eq!(nft.writes(), Some(BackendKind::Nft), "the operator's setting stays");
        // The plugin probes only what it needs: whether the other backends fail is unknown.
        let mut partly = legacy_only();
        partly.capabilities.backends = [(BackendKind::Nft, findings(&Finding::Works))].into_iter().collect();
        let iptables = node_backend(BackendSetting::Iptables, None, Some(&partly));
        assert_eq!((iptables.verdict, iptables.source), (BackendVerdict::Unknown, SettingSource::Cluster));
        // The probe does not load ip_tables; the first pod of a node with that setting does.
        partly.capabilities.backends.insert(BackendKind::IptablesLegacy, findings(&Finding::NotLoaded));
        let legacy = node_backend(BackendSetting::Only(BackendKind::IptablesLegacy), None, Some(&partly));
        assert_eq!(legacy.verdict, BackendVerdict::Unknown);
    }
}
