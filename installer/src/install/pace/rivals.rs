//! Who most likely rewrites a chain, told from its plugins, and the setting that stops it.

/// Another agent that writes conf files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rival {
    /// Who.
    pub name: &'static str,
    /// What to set there.
    pub setting: &'static str,
}

// In the order of likelihood: who insists on being alone first.
const KNOWN: [(&str, Rival); 5] = [
    ("cilium-cni", Rival { name: "the Cilium agent", setting: "Helm value cni.exclusive=false" }),
    (
        "istio-cni",
        Rival {
            name: "istio-cni's agent",
            setting: "remove the DaemonSet istio-cni-node, or set take_over: now (--take-over now)",
        },
    ),
    (
        "linkerd-cni",
        Rival { name: "linkerd-cni's agent", setting: "one mesh per node: remove one of the two" },
    ),
    (
        "multus",
        Rival {
            name: "Multus",
            setting: "standalone mode, or a fixed file instead of --multus-conf-file=auto",
        },
    ),
    (
        "multus-shim",
        Rival { name: "the Multus daemon", setting: "standalone mode, or multusConfigFile other than auto" },
    ),
];

/// By the plugins of the chain that keeps coming back.
#[must_use]
pub fn likely(plugins: &[&str]) -> Option<Rival> {
    KNOWN.iter().find(|(plugin, _)| plugins.contains(plugin)).map(|(_, rival)| *rival)
}
