//! Address families: the addresses of pods, and services of one family.

use std::fmt;

use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use super::application::{Name, PORT, service};
use crate::cluster::Cluster;

/// An address family, as Kubernetes names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    /// Reports whether this address or range is of the family.
    fn has(self, address: &str) -> bool {
        address.contains(':') == (self == Family::Ipv6)
    }

    /// Returns the address from which Envoy connects to the application, unless it keeps the client's
    /// (`InboundPassthroughBindIpv4`, pilot/pkg/networking/core/listener_address.go of Istio).
    pub(super) fn proxy(self) -> &'static str {
        match self {
            Family::Ipv4 => "127.0.0.6",
            Family::Ipv6 => "::6",
        }
    }

    /// Returns the address of a host that only istiod knows, of a range in which no host exists (RFC 2544, RFC 5180).
    pub(super) fn of_no_host(self) -> &'static str {
        match self {
            Family::Ipv4 => "198.18.0.10",
            Family::Ipv6 => "2001:2::10",
        }
    }

    /// Reports whether a pod has addresses of this family, and of no other.
    pub(super) fn is_only_one_of(self, pod: &Value) -> bool {
        let addresses = addresses(pod);
        !addresses.is_empty() && addresses.iter().all(|address| self.has(address))
    }

    /// Returns a pod's address of this family; empty if it has none.
    pub(super) fn address_of(self, pod: &Value) -> String {
        addresses(pod).into_iter().find(|address| self.has(address)).unwrap_or_default()
    }

    /// Creates a service of this family alone for a server, unless it exists, and returns its host and port.
    pub(super) fn service(self, cluster: &Cluster, (namespace, server): Name<'_>) -> Result<String, Failure> {
        let name = format!("{server}-{self}").to_lowercase();
        let services = format!("/api/v1/namespaces/{namespace}/services");
        if cluster.api.get(&format!("{services}/{name}"))?.is_none() {
            let spec = json!({
                "selector": { "app": server },
                "ipFamilies": [self.to_string()],
                "ports": [{ "name": "http", "port": PORT }],
            });
            cluster.api.create(&services, &json!({ "metadata": { "name": name }, "spec": spec }))?;
        }
        Ok(service((namespace, &name)))
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Ipv4 => "IPv4",
            Family::Ipv6 => "IPv6",
        })
    }
}

/// Returns a pod's addresses.
fn addresses(pod: &Value) -> Vec<String> {
    let addresses = pod.pointer("/status/podIPs").and_then(Value::as_array);
    let addresses = addresses.into_iter().flatten().filter_map(|it| it.get("ip")?.as_str());
    addresses.map(str::to_owned).collect()
}
