//! Who most likely rewrites a chain, told from its plugins, or a program, told from its name and what
//! became of it; and the setting that stops it.

use super::Loss;
use crate::host::image::OTHER_NAMES;
use crate::host::install::conflist::ISTIO;
use crate::host::install::seen::FileName;

/// Somebody else who writes into a node's directories.
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

// istio-cni's agent copies what its image has, and takes its plugin away when it ends
// (docs/ISTIO.md, section 5).
const ISTIO_PROGRAMS: Rival =
    Rival { name: "istio-cni's container install-cni", setting: "remove the DaemonSet istio-cni-node" };
const ISTIO_OTHER_PROGRAMS: Rival = Rival {
    name: "istio-cni's container install-cni",
    setting: "remove the DaemonSet istio-cni-node, or take the name out of also_as (--also-as)",
};
// Nobody else has programs of these names.
const ANOTHER_GYBE: Rival = Rival {
    name: "another agent of Gybe, of another version",
    setting: "one DaemonSet of Gybe for a node: remove one of the two",
};
const TIDY: Rival = Rival {
    name: "a node's configuration management or malware scanner that keeps the directory tidy",
    setting: "let it leave gybe and gybe-cni there",
};
const MODES: Rival = Rival {
    name: "whoever sets modes and owners in that directory, if its file system keeps them",
    setting: "let programs there stay root's, with mode 0755",
};

/// By the program that keeps going, and what becomes of it.
#[must_use]
pub fn at_program(name: &FileName, loss: Loss) -> Rival {
    match (name.as_os_str().to_str(), loss) {
        (Some(ISTIO), _) => ISTIO_PROGRAMS,
        (Some(name), _) if OTHER_NAMES.contains(&name) => ISTIO_OTHER_PROGRAMS,
        (_, Loss::Replaced) => ANOTHER_GYBE,
        (_, Loss::Removed) => TIDY,
        (_, Loss::Changed) => MODES,
    }
}
