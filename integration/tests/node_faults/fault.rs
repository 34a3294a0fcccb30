//! A fault: how it is planted, and what the commands must report.

use crate::fixture::HealthyNode;
use serde_json::Value;

/// The agent of a node on which a fault is planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AgentState {
    /// An agent runs. It repairs conf files and programs within milliseconds.
    Running,
    /// Gybe was installed by hand, and the plugin reads manifests.
    Absent,
}

/// A part of the node. Two faults of the same part cannot be planted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Agent,
    Conf,
    Plugin,
    ProgramDirectory,
    ConfDirectory,
    ProbeReport,
    Rules,
    Proxy,
    Annotations,
    Runtime,
    Cache,
}

/// A finding of `gybe doctor`: these words in `says` and in `remedy`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) state: &'static str,
    pub(crate) about: &'static str,
    /// The section of docs/TROUBLESHOOTING.md; empty for none.
    pub(crate) id: &'static str,
    pub(crate) says: &'static str,
    pub(crate) remedy: &'static str,
}

pub(crate) struct Fault {
    pub(crate) name: &'static str,
    /// The node that it needs; none for any.
    pub(crate) agent: Option<AgentState>,
    pub(crate) parts: &'static [Part],
    pub(crate) plant: fn(&mut HealthyNode),
    pub(crate) doctor: &'static [Expected],
    /// The verdict on the pod, empty for any, and a part of what is reported of the pod.
    pub(crate) verify: Option<(&'static str, &'static str)>,
}

impl Expected {
    pub(crate) fn is(&self, finding: &Value) -> bool {
        let text = |key: &str| finding[key].as_str().unwrap_or_default();
        text("state") == self.state
            && text("about") == self.about
            && text("id") == self.id
            && text("says").contains(self.says)
            && text("remedy").contains(self.remedy)
    }
}

impl Fault {
    /// Returns what the commands do not report of this fault. `instead`: what doctor reports of a hidden one.
    pub(crate) fn unreported(
        &self,
        instead: Option<&'static [Expected]>,
        doctor: &Value,
        verify: &Value,
    ) -> Vec<String> {
        let findings = doctor["findings"].as_array().unwrap();
        let is_missing = |expected: &&Expected| !findings.iter().any(|finding| expected.is(finding));
        let expected = instead.unwrap_or(self.doctor).iter();
        let missing = expected.filter(is_missing).map(|expected| format!("doctor: {expected:?}"));
        let unverified = self.verify.filter(|(verdict, words)| {
            let sandboxes = verify["sandboxes"].as_array().unwrap();
            !sandboxes.iter().any(|one| {
                (verdict.is_empty() || one["verdict"] == *verdict) && one.to_string().contains(words)
            })
        });
        let unverified = unverified.filter(|_| instead.is_none());
        missing.chain(unverified.map(|expected| format!("verify: {expected:?}"))).collect()
    }
}
