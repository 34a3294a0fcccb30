//! The program that most likely rewrites a chain, derived from the chain's plugins, or a program, derived from its name
//! and from what happened to it; and the setting that stops it.

use super::Loss;
use crate::host::conflist::ISTIO;
use crate::host::image::OTHER_NAMES;
use crate::host::observe::FileName;

/// Another program that writes into a node's directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherOwner {
    pub name: &'static str,
    /// The setting of that program that ends the conflict.
    pub setting: &'static str,
}

// In the order of likelihood: agents that remove other plugins' files come first.
const KNOWN: [(&str, OtherOwner); 5] = [
    ("cilium-cni", OtherOwner { name: "the Cilium agent", setting: "Helm value cni.exclusive=false" }),
    (
        "istio-cni",
        OtherOwner {
            name: "istio-cni's agent",
            setting: "if istio-cni serves ambient pods, keep it and exclude this node from Gybe; otherwise remove the \
                      DaemonSet istio-cni-node, or set take_over: now (--take-over now)",
        },
    ),
    (
        "linkerd-cni",
        OtherOwner { name: "linkerd-cni's agent", setting: "one mesh per node: remove one of the two" },
    ),
    (
        "multus",
        OtherOwner {
            name: "Multus",
            setting: "standalone mode, or a fixed file instead of --multus-conf-file=auto",
        },
    ),
    (
        "multus-shim",
        OtherOwner {
            name: "the Multus daemon",
            setting: "standalone mode, or multusConfigFile other than auto",
        },
    ),
];

/// Returns the program that most likely restores a chain of these plugins.
#[must_use]
pub fn likely(plugins: &[&str]) -> Option<OtherOwner> {
    KNOWN.iter().find(|(plugin, _)| plugins.contains(plugin)).map(|(_, owner)| *owner)
}

// istio-cni's agent copies the programs of its image, and removes its plugin when it ends (docs/ISTIO.md, section 5).
const ISTIO_PROGRAMS: OtherOwner = OtherOwner {
    name: "istio-cni's container install-cni",
    setting: "if istio-cni serves ambient pods, keep it and exclude this node from Gybe; otherwise remove the DaemonSet \
              istio-cni-node",
};
const ISTIO_OTHER_PROGRAMS: OtherOwner = OtherOwner {
    name: "istio-cni's container install-cni",
    setting: "take the name out of also_as (--also-as); or, without ambient pods, remove the DaemonSet istio-cni-node",
};
// No other project has programs of these names.
const ANOTHER_GYBE: OtherOwner = OtherOwner {
    name: "an agent of another version of Gybe",
    setting: "one DaemonSet of Gybe for a node: remove one of the two",
};
const TIDY: OtherOwner = OtherOwner {
    name: "a node's configuration management or malware scanner that removes files unknown to it",
    setting: "let it leave gybe and gybe-cni there",
};
const MODES: OtherOwner = OtherOwner {
    name: "a program that sets modes and owners in that directory, or a file system that does not store them",
    setting: "let the programs there be owned by root and have mode 0755",
};

/// Returns the program that likely removes or changes the program `name`.
#[must_use]
pub fn likely_at_program(name: &FileName, loss: Loss) -> OtherOwner {
    match (name.as_os_str().to_str(), loss) {
        (Some(ISTIO), _) => ISTIO_PROGRAMS,
        (Some(name), _) if OTHER_NAMES.contains(&name) => ISTIO_OTHER_PROGRAMS,
        (_, Loss::Replaced) => ANOTHER_GYBE,
        (_, Loss::Removed) => TIDY,
        (_, Loss::Changed) => MODES,
    }
}
