//! Which backend a node's plugin is to use: the operator's word for the node, else for the cluster,
//! else the plugin's choice; and what the probe's findings make of it. Pure.
//!
//! The operator's word goes into the entry's `backend`, where the plugin takes it at its word. What the
//! probe found goes beside it, into `probed`, with the kernel it is true for: written as a word it would
//! outlive its kernel by a reboot, and every ADD until the agent is back would be refused for it.

use gybe_netfilter::backend::BackendKind;
use gybe_netfilter::choose::{BackendSetting, Choice, NoBackend, choose, next};
use gybe_netfilter::probe::Capabilities;
use gybe_plugin::conf::{PluginConf, ProbeHint};
use std::fmt;

/// The node label that overrides the cluster's setting.
pub const LABEL: &str = "gybe.dev/backend";

/// What was found out about the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// On which kernel.
    pub kernel: String,
    /// What works there.
    pub capabilities: Capabilities,
}

/// Who has decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The node's label.
    Label,
    /// The cluster's setting.
    Cluster,
    /// Nobody: the plugin goes by the probe.
    Nobody,
}

/// What the findings make of the word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is known yet.
    Unknown,
    /// This one writes.
    Works(Choice),
    /// None does.
    Fails(NoBackend),
}

/// A node's backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeBackend {
    /// The word for the entry.
    pub word: BackendSetting,
    /// Whose it is.
    pub by: By,
    /// What it comes to.
    pub verdict: Verdict,
    /// The kernel that is said of.
    pub kernel: Option<String>,
    /// A label that means nothing, and so counts for nothing.
    pub unknown_label: Option<String>,
}

/// Decides. Findings are forgotten for a moment now and then: whoever writes the entry hands in the
/// last ones meanwhile, so that the entry is not written for that.
#[must_use]
pub fn node_backend(cluster: BackendSetting, label: Option<&str>, found: Option<&Found>) -> NodeBackend {
    let by_label = label.and_then(|label| label.parse().ok());
    let unknown_label = label.filter(|_| by_label.is_none()).map(str::to_owned);
    let (word, by) = match by_label {
        Some(word) => (word, By::Label),
        None if cluster == BackendSetting::Auto => (cluster, By::Nobody),
        None => (cluster, By::Cluster),
    };
    let verdict = found.map_or(Verdict::Unknown, |found| judge(&found.capabilities, word));
    NodeBackend { word, by, verdict, kernel: found.map(|found| found.kernel.clone()), unknown_label }
}

fn judge(known: &Capabilities, wish: BackendSetting) -> Verdict {
    match choose(known, wish) {
        Ok(choice) => Verdict::Works(choice),
        Err(_) if next(known, wish).is_some() => Verdict::Unknown,
        Err(none) => Verdict::Fails(none),
    }
}

impl NodeBackend {
    /// The backend that writes, as far as it is known.
    #[must_use]
    pub fn writes(&self) -> Option<BackendKind> {
        match (&self.verdict, self.word) {
            (_, BackendSetting::Only(kind)) => Some(kind),
            (Verdict::Works(choice), _) => Some(choice.backend),
            _ => None,
        }
    }

    /// Puts it into what the plugin's entry is to say.
    pub fn write_into(&self, conf: &mut PluginConf) {
        conf.backend = self.word;
        let choice_is_ours = self.word.named().is_none();
        conf.probed = match (choice_is_ours, self.writes(), &self.kernel) {
            (true, Some(kind), Some(kernel)) => ProbeHint { backend: Some(kind), kernel: kernel.clone() },
            _ => ProbeHint::default(),
        };
    }

    /// What an operator should know about the label.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let label = self.unknown_label.as_ref()?;
        let label: String = label.chars().take(64).collect();
        Some(format!("node label {LABEL} is {label:?}, which names no backend; it is ignored"))
    }
}

/// Why it is so, in a sentence.
impl fmt::Display for NodeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by {
            By::Label => write!(f, "node label {LABEL} says {}", self.word.as_str())?,
            By::Cluster => write!(f, "the setting says {}", self.word.as_str())?,
            By::Nobody => write!(f, "the choice is the plugin's")?,
        }
        match &self.verdict {
            Verdict::Unknown => f.write_str("; nothing has been found out yet"),
            Verdict::Works(choice) => write!(f, "; {}", choice.why),
            Verdict::Fails(none) => write!(f, "; {none}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_netfilter::hint::Hint;
    use gybe_netfilter::probe::{Finding, Findings, Profile, Refusal};

    fn findings(finding: &Finding) -> Findings {
        Profile::ALL.into_iter().map(|profile| (profile, finding.clone())).collect()
    }

    /// A kernel with nothing but ip_tables.
    fn legacy_only() -> Found {
        let refused =
            findings(&Finding::Refused(Refusal { why: "no nf_tables".into(), ..Refusal::default() }));
        let backends = [
            (BackendKind::Nft, refused.clone()),
            (BackendKind::IptablesNft, refused),
            (BackendKind::IptablesLegacy, findings(&Finding::Works)),
        ];
        let capabilities = Capabilities { backends: backends.into_iter().collect(), untried: Vec::new() };
        Found { kernel: "4.18.0".into(), capabilities }
    }

    fn entry(backend: &NodeBackend) -> (&'static str, ProbeHint) {
        let before = ProbeHint { backend: Some(BackendKind::Nft), kernel: "of before".to_owned() };
        let mut conf = PluginConf { probed: before, ..PluginConf::default() };
        backend.write_into(&mut conf);
        (conf.backend.as_str(), conf.probed)
    }

    #[test]
    fn the_label_counts_for_more_than_the_cluster_and_an_unknown_one_for_nothing() {
        let nft = BackendSetting::Only(BackendKind::Nft);
        for (cluster, label, word, by) in [
            (BackendSetting::Auto, None, "auto", By::Nobody),
            (nft, None, "nft", By::Cluster),
            (nft, Some("iptables-legacy"), "iptables-legacy", By::Label),
            (nft, Some("auto"), "auto", By::Label),
            (nft, Some("legacy"), "nft", By::Cluster),
            (BackendSetting::Auto, Some(""), "auto", By::Nobody),
        ] {
            let decided = node_backend(cluster, label, None);
            assert_eq!((decided.word.as_str(), decided.by), (word, by), "{label:?}");
            assert_eq!(decided.note().is_some(), decided.by != By::Label && label.is_some(), "{label:?}");
        }
        let told = node_backend(nft, Some("nfq\n"), None).note().unwrap();
        assert!(
            told.starts_with("node label gybe.dev/backend is \"nfq\\n\", which names no backend"),
            "{told}"
        );
    }

    #[test]
    fn f23_what_the_probe_found_is_written_beside_the_word_with_its_kernel() {
        let found = legacy_only();
        let auto = node_backend(BackendSetting::Auto, None, Some(&found));
        let probed = ProbeHint { backend: Some(BackendKind::IptablesLegacy), kernel: "4.18.0".to_owned() };
        assert_eq!(entry(&auto), ("auto", probed));
        assert_eq!(auto.writes(), Some(BackendKind::IptablesLegacy));
        assert!(
            auto.to_string().contains("auto: iptables-legacy does everything; nft: v4 refused: no nf_tables")
        );
        assert_eq!(entry(&node_backend(BackendSetting::Auto, None, None)), ("auto", ProbeHint::default()));
        let forced = node_backend(BackendSetting::Auto, Some("iptables-legacy"), Some(&found));
        assert_eq!(entry(&forced), ("iptables-legacy", ProbeHint::default()));
    }

    #[test]
    fn f23_a_word_that_cannot_work_here_is_known_before_a_pod_fails() {
        let found = legacy_only();
        let nft = node_backend(BackendSetting::Only(BackendKind::Nft), None, Some(&found));
        let Verdict::Fails(none) = &nft.verdict else { panic!("{nft:?}") };
        assert!(none.hint().unwrap().contains("iptables-legacy works on this node"));
        assert_eq!(nft.writes(), Some(BackendKind::Nft), "the word is the operator's all the same");
        // The plugin tries what it needs and no more: the rest is not known to fail.
        let mut partly = legacy_only();
        partly.capabilities.backends = [(BackendKind::Nft, findings(&Finding::Works))].into_iter().collect();
        let iptables = node_backend(BackendSetting::Iptables, None, Some(&partly));
        assert_eq!((iptables.verdict, iptables.by), (Verdict::Unknown, By::Cluster));
        // The probe loads no ip_tables, and the first pod of a node that names it does.
        partly.capabilities.backends.insert(BackendKind::IptablesLegacy, findings(&Finding::NotLoaded));
        let legacy = node_backend(BackendSetting::Only(BackendKind::IptablesLegacy), None, Some(&partly));
        assert_eq!(legacy.verdict, Verdict::Unknown);
    }
}
