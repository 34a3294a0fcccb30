//! What doctor reports when faults are planted together: some hide others, and some findings depend on the moment.

use crate::fault::{Expected, Fault};
use crate::table::{NOT_READY, wrong};

/// A fault that another one hides on a node with both.
pub(crate) struct Hidden {
    pub(crate) fault: &'static str,
    /// The beginnings of the names of the faults that hide it.
    pub(crate) behind: &'static [&'static str],
    /// What is reported instead.
    pub(crate) instead: &'static [Expected],
}

impl Hidden {
    pub(crate) fn applies(&self, fault: &Fault, others: &[&Fault]) -> bool {
        let hides = |other: &&Fault| self.behind.iter().any(|name| other.name.starts_with(name));
        self.fault == fault.name && others.iter().any(hides)
    }
}

/// What is reported of a fault at some moments.
pub(crate) const SOMETIMES: &[(&str, Expected)] = &[
    // The agent limits its writes.
    (
        "another program keeps rewriting the conf file",
        wrong("chain", NOT_READY, "gybe-cni is not in 10-pods", "the agent"),
    ),
    (
        "another program keeps rewriting the conf file",
        wrong("agent", NOT_READY, "10-pods.conflist", "docs/AGENT.md"),
    ),
];

/// Without the agent, and without the entry that names the source of pods, a pod's policy is not known, and its rules
/// alone are judged.
const WITHOUT_POLICY: &[&str] = &[
    "the agent is dead",
    "the primary rewrote the conf file",
    "the conf file is",
    "a value of the entry is invalid",
];

pub(crate) const HIDDEN: &[Hidden] = &[
    Hidden {
        fault: "the pod's rules were deleted",
        behind: WITHOUT_POLICY,
        instead: &[wrong("pods", "GybePodsNotRedirected", "there are no rules of Gybe", "gybe verify --all")],
    },
    Hidden {
        fault: "IPv6 is off in the pod, and a rule is missing",
        behind: WITHOUT_POLICY,
        instead: &[wrong(
            "pods",
            "GybePodsNotRedirected",
            "NOT REDIRECTED: chain nat-prerouting of table inet gybe has no rule",
            "gybe verify --pod shop/cart-1",
        )],
    },
    Hidden { fault: "IPv6 was switched off in the pod", behind: WITHOUT_POLICY, instead: &[] },
    Hidden { fault: "the proxy does not listen", behind: WITHOUT_POLICY, instead: &[] },
    Hidden { fault: "the proxy listens on 127.0.0.1 only", behind: WITHOUT_POLICY, instead: &[] },
    Hidden { fault: "the proxy runs as another user", behind: WITHOUT_POLICY, instead: &[] },
    Hidden {
        fault: "a backend is configured whose programs are missing",
        behind: &["no backend works"],
        instead: &[],
    },
];
