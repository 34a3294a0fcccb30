//! The CNI configuration: bridge, host-local and portmap as a cluster would have them, and behind
//! them the plugins under test; not where it is written.

use serde_json::{Value, json};

use crate::{Generation, agent, calls, manifest};

/// The network's name.
pub const NETWORK: &str = "gybe-test";
/// The member that counts the primary's writings.
pub const NTH: &str = "nth";

/// A conflist in the making.
#[derive(Debug, Clone)]
pub struct Chain {
    version: &'static str,
    plugins: Vec<Value>,
}

impl Chain {
    /// Addresses of both families on a bridge, masquerading, and host ports.
    pub fn of_reference_plugins(generation: Generation) -> Chain {
        let bridge = json!({
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "ipMasq": true,
            "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "ranges": [[{ "subnet": "10.88.0.0/16" }], [{ "subnet": "fd00:88::/64" }]],
                "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
            },
        });
        let portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
        Chain { version: generation.cni_version(), plugins: vec![bridge, portmap] }
    }

    /// The same with one more plugin behind.
    pub fn then(mut self, plugin: Value) -> Chain {
        self.plugins.push(plugin);
        self
    }

    /// The conflist's text when the primary writes it for the `nth` time: runtimes pass over the number.
    pub fn written(&self, nth: u64) -> String {
        let Chain { version, plugins } = self;
        let list = json!({ NTH: nth, "cniVersion": version, "name": NETWORK, "plugins": plugins });
        format!("{list:#}\n")
    }
}

/// The entry of Gybe, as the installer would write it but for the source of facts.
pub fn gybe() -> Value {
    gybe_with_facts(&json!({ "directory": manifest::DIRECTORY }))
}

/// The same, asking the node agent instead.
pub fn gybe_asking_the_agent() -> Value {
    gybe_with_facts(&json!({ "socket": agent::SOCKET }))
}

fn gybe_with_facts(facts: &Value) -> Value {
    json!({
        "type": "gybe-cni",
        "log_level": "debug",
        "backend": "nft",
        "exclude_namespaces": ["kube-system"],
        "facts": facts,
        "capabilities": { "io.kubernetes.cri.pod-annotations": true },
    })
}

/// The entry of the recorder, asking for all a runtime would hand to Gybe.
pub fn recorder() -> Value {
    json!({
        "type": calls::RECORDER,
        "calls": calls::DIRECTORY,
        "capabilities": { "io.kubernetes.cri.pod-annotations": true },
    })
}
