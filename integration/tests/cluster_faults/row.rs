//! A row of the table: the results of the ADDs of one kind of pod during one fault, and assertions about them; and the
//! kinds of pods that a kubelet starts, with the call that its runtime makes for each.

use crate::node::{TestNode, meshed, uid};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// Of a query: `facts.deadline_ms`. Shorter than the default, because most faults last until the deadline.
pub(crate) const DEADLINE_MS: u64 = 2000;

/// The deadline of a query, and what process start, writing the rules and a busy machine add.
const BUDGET: Duration = Duration::from_millis(DEADLINE_MS);
const SLACK: Duration = Duration::from_secs(1);

/// An ADD that takes longer hangs.
const HANGS: Duration = Duration::from_secs(10);

/// One ADD.
#[derive(Debug, Clone)]
pub(crate) struct Added {
    pub(crate) took: Duration,
    /// The CNI error's code and message, if the ADD was refused.
    pub(crate) refused: Option<(Option<u64>, String)>,
}

pub(crate) struct Row {
    fault: &'static str,
    kind: Kind,
    added: Vec<Added>,
}

impl Row {
    /// Creates a row and prints it.
    pub(crate) fn of(fault: &'static str, kind: Kind, added: Vec<Added>) -> Self {
        let row = Self { fault, kind, added };
        row.print();
        row
    }

    fn print(&self) {
        let [half, most, all] = [50, 99, 100].map(|percent| self.within(percent).as_secs_f64() * 1e3);
        let (fault, kind, failed, count) = (self.fault, self.kind.words(), self.failed(), self.added.len());
        println!(
            "{fault:<50} | {kind:<25} | {failed:>4} of {count:>4} | {half:>7.1} | {most:>7.1} | {all:>7.1}"
        );
        for message in self.refusals() {
            println!("{:<50} | {message}", "");
        }
    }

    /// Returns the distinct messages of refused ADDs.
    fn refusals(&self) -> BTreeSet<&str> {
        let refused = self.added.iter().filter_map(|added| added.refused.as_ref());
        refused.map(|(_, message)| message.as_str()).collect()
    }

    fn failed(&self) -> usize {
        self.added.iter().filter(|added| added.refused.is_some()).count()
    }

    /// Returns the time within which this percentage of the ADDs ended.
    fn within(&self, percent: usize) -> Duration {
        let mut times: Vec<Duration> = self.added.iter().map(|added| added.took).collect();
        times.sort_unstable();
        times[(times.len() * percent).div_ceil(100).saturating_sub(1)]
    }

    /// Asserts that no ADD was refused or late.
    pub(crate) fn assert_none_fails(&self) {
        self.assert_none_late();
        let refused = self.added.iter().find(|added| added.refused.is_some());
        assert!(refused.is_none(), "{}, {}: {refused:?}", self.fault, self.kind.words());
    }

    /// Asserts that all ADDs were refused, each with a message that names the cause and the remedy.
    pub(crate) fn assert_all_refused(&self) {
        self.assert_refusals_are_clear();
        assert_eq!(self.failed(), self.added.len(), "{}, {}", self.fault, self.kind.words());
    }

    /// Asserts that every refusal has code 11 (try again later) and names the node agent.
    fn assert_refusals_are_clear(&self) {
        self.assert_none_late();
        for (code, message) in self.added.iter().filter_map(|added| added.refused.as_ref()) {
            assert_eq!(*code, Some(11), "{message}");
            let named = message.starts_with("gybe-cni cmdAdd GYBE-ADD-") && message.contains("node agent at");
            assert!(named, "{}: {message}", self.fault);
        }
    }

    fn assert_none_late(&self) {
        let (most, all) = (self.within(99), self.within(100));
        let (fault, kind) = (self.fault, self.kind.words());
        assert!(most < BUDGET + SLACK && all < HANGS, "{fault}, {kind}: {most:?}, {all:?}");
    }
}

/// A kind of pod, by the source of its facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Unmeshed, by the annotations that the runtime passes.
    Unmeshed,
    /// In a namespace that the operator excluded; the runtime passes no annotations.
    Excluded,
    /// The agent's own pod; the runtime passes no annotations.
    Own,
    /// Meshed, and in the agent's list.
    Known,
    /// Meshed, and created just before its sandbox.
    New,
}

/// One call of the plugin, without its network namespace.
pub(crate) struct Call {
    pub(crate) env: Vec<(String, String)>,
    pub(crate) stdin: Value,
}

const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

impl Kind {
    pub(crate) const ALL: [Self; 5] = [Self::Unmeshed, Self::Excluded, Self::Own, Self::Known, Self::New];

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Unmeshed => "unmeshed, by annotations",
            Self::Excluded => "excluded namespace",
            Self::Own => "the agent's own pod",
            Self::Known => "meshed, seen by the agent",
            Self::New => "meshed, new",
        }
    }

    pub(crate) fn is_meshed(self) -> bool {
        matches!(self, Self::Known | Self::New)
    }

    /// Creates the pod if it does not exist yet, and returns the call for it.
    pub(crate) fn call(self, node: &TestNode, name: &str) -> Call {
        if self == Self::New {
            node.server.put_pod(meshed(name));
        }
        let mut add: Value = serde_json::from_str(include_str!("../../../examples/add.json")).unwrap();
        let (namespace, name) = match self {
            Self::Excluded => ("kube-system", name.to_owned()),
            Self::Own => ("gybe-system", format!("gybe-node-{name}")),
            _ => ("shop", name.to_owned()),
        };
        let entry = &mut add["stdin"];
        entry["pod_namespace"] = json!("gybe-system");
        entry["facts"] =
            json!({ "socket": node.directory.run().join("facts.sock"), "deadline_ms": DEADLINE_MS });
        let handed = entry["runtimeConfig"].as_object_mut().unwrap();
        match self {
            Self::Unmeshed => drop(handed.insert(ANNOTATIONS.into(), json!({ "example.com/colour": "red" }))),
            Self::Excluded | Self::Own => drop(handed.remove(ANNOTATIONS)),
            Self::Known | Self::New => {}
        }
        let id = format!(
            "{:064x}",
            uid(&name).bytes().fold(7u128, |id, byte| id.wrapping_mul(257) + u128::from(byte))
        );
        let uid = uid(&name);
        let args = format!(
            "K8S_POD_UID={uid};IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={id}"
        );
        let own = [("CNI_COMMAND", "ADD".to_owned()), ("CNI_CONTAINERID", id), ("CNI_ARGS", args)];
        let rest = [("CNI_IFNAME", "eth0".to_owned()), ("CNI_PATH", "/opt/cni/bin".to_owned())];
        let env = own.into_iter().chain(rest).map(|(name, value)| (name.to_owned(), value)).collect();
        Call { env, stdin: add["stdin"].take() }
    }
}
