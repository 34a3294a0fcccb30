//! The kinds of pods that a kubelet starts, and the call that its runtime makes for each.

use crate::site::{Site, meshed, uid};
use serde_json::{Value, json};

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

/// Shorter than the default, because most faults last until the deadline.
pub(crate) const DEADLINE_MS: u64 = 2000;

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
    pub(crate) fn call(self, site: &Site, name: &str) -> Call {
        if self == Self::New {
            site.server.put_pod(meshed(name));
        }
        let mut add: Value = serde_json::from_str(include_str!("../../../examples/add.json")).unwrap();
        let (namespace, name) = match self {
            Self::Excluded => ("kube-system", name.to_owned()),
            Self::Own => ("gybe-system", format!("gybe-node-{name}")),
            _ => ("shop", name.to_owned()),
        };
        let entry = &mut add["stdin"];
        entry["pod_namespace"] = json!("gybe-system");
        entry["facts"] = json!({ "socket": site.place.run().join("facts.sock"), "deadline_ms": DEADLINE_MS });
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
