//! The CNI configuration: bridge, host-local and portmap as on a cluster's node, then the plugins under test.

use serde_json::{Value, json};

use crate::{Generation, agent, manifest, recorder};

/// The network's name.
pub const NETWORK: &str = "gybe-test";
/// The member with the revision of the file: a count of the primary plugin's writes. Runtimes ignore it.
pub const REVISION: &str = "revision";

/// A conflist.
#[derive(Debug, Clone)]
pub struct Conflist {
    name: &'static str,
    version: &'static str,
    plugins: Vec<Value>,
}

impl Conflist {
    /// A bridge with addresses of both families and masquerading, and host ports.
    pub fn reference_plugins(generation: Generation) -> Conflist {
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
        Conflist { name: NETWORK, version: generation.cni_version(), plugins: vec![bridge, portmap] }
    }

    /// The same as another network, with this bridge.
    pub fn named(mut self, name: &'static str, bridge: &str) -> Conflist {
        self.name = name;
        if let Some(plugin) = self.plugins.first_mut().and_then(Value::as_object_mut) {
            plugin.insert("bridge".to_owned(), json!(bridge));
        }
        self
    }

    /// The same for a node of a cluster: pods get addresses of these ranges, which other nodes route to it, so that
    /// nothing has to replace the address of a pod.
    pub fn routed(mut self, ranges: &[String; 2]) -> Conflist {
        if let Some(bridge) = self.plugins.first_mut().and_then(Value::as_object_mut) {
            bridge.insert("ipMasq".to_owned(), json!(false));
        }
        if let Some(ipam) = self.plugins.first_mut().and_then(|bridge| bridge.pointer_mut("/ipam/ranges")) {
            *ipam = ranges.iter().map(|range| json!([{ "subnet": range }])).collect();
        }
        self
    }

    /// Appends a plugin.
    pub fn with_plugin(mut self, plugin: Value) -> Conflist {
        self.plugins.push(plugin);
        self
    }

    /// The file's text as the primary plugin writes that revision.
    pub fn text(&self, revision: u64) -> String {
        let Conflist { name, version, plugins } = self;
        let list = json!({ REVISION: revision, "cniVersion": version, "name": name, "plugins": plugins });
        format!("{list:#}\n")
    }
}

/// Gybe's entry, with a directory of manifests as its source of facts.
pub fn gybe() -> Value {
    gybe_with_facts(&json!({ "directory": manifest::DIRECTORY }))
}

/// Gybe's entry, with the node agent as its source of facts.
pub fn gybe_with_agent() -> Value {
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

/// The recorder's entry. It requests the same runtime capabilities as Gybe's.
pub fn recorder() -> Value {
    json!({
        "type": recorder::PLUGIN,
        "calls": recorder::DIRECTORY,
        "capabilities": { "io.kubernetes.cri.pod-annotations": true },
    })
}
