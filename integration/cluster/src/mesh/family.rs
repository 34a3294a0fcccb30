//! The address families of pods, sidecars and services.

use gybe_integration::failure::Failure;
use gybe_netfilter::model::ruleset::Family;
use serde_json::{Value, json};

use super::application::{self, Name, PORT, service};
use super::workstation::Workstation;

pub(super) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Returns the families that the sidecar of a pod serves: that of its first address, and with `ISTIO_DUAL_STACK` all
/// that it has.
pub(super) fn served_by(pod: &Value) -> Vec<Family> {
    let mut addresses = addresses(pod);
    if !is_dual_stack(pod) {
        addresses.truncate(1);
    }
    let is_served = |family: &Family| addresses.iter().any(|address| *family == family_of(address));
    FAMILIES.into_iter().filter(is_served).collect()
}

/// Returns the family of an address or range.
pub(super) fn family_of(address: &str) -> Family {
    if address.contains(':') { Family::V6 } else { Family::V4 }
}

/// Returns the address from which Envoy connects to the application, unless it keeps the client's
/// (`InboundPassthroughBindIpv4`, pilot/pkg/networking/core/listener_address.go of Istio).
pub(super) fn proxy(family: Family) -> &'static str {
    match family {
        Family::V4 => "127.0.0.6",
        Family::V6 => "::6",
    }
}

/// Returns the address of a host that only istiod knows, of a range in which no host exists (RFC 2544, RFC 5180).
pub(super) fn of_no_host(family: Family) -> &'static str {
    match family {
        Family::V4 => "198.18.0.10",
        Family::V6 => "2001:2::10",
    }
}

/// Reports whether a pod has addresses of this family, and of no other.
pub(super) fn is_only_one_of(family: Family, pod: &Value) -> bool {
    let addresses = addresses(pod);
    !addresses.is_empty() && addresses.iter().all(|address| family_of(address) == family)
}

/// Returns a pod's address of this family; empty if it has none.
pub(super) fn address_of(family: Family, pod: &Value) -> String {
    addresses(pod).into_iter().find(|address| family_of(address) == family).unwrap_or_default()
}

/// Creates a service of this family alone for a server, unless it exists, and returns its host and port.
pub(super) fn service_of(
    family: Family,
    workstation: &Workstation,
    (namespace, server): Name<'_>,
) -> Result<String, Failure> {
    let name = format!("{server}-{family}").to_lowercase();
    let services = format!("/api/v1/namespaces/{namespace}/services");
    if workstation.api.get(&format!("{services}/{name}"))?.is_none() {
        let spec = json!({
            "selector": { "app": server },
            "ipFamilies": [family.to_string()],
            "ports": [{ "name": "http", "port": PORT }],
        });
        workstation.api.create(&services, &json!({ "metadata": { "name": name }, "spec": spec }))?;
    }
    Ok(service((namespace, &name)))
}

/// Reports whether istiod has given a pod's sidecar `ISTIO_DUAL_STACK`.
fn is_dual_stack(pod: &Value) -> bool {
    let containers =
        ["/spec/initContainers", "/spec/containers"].map(|kind| pod.pointer(kind).and_then(Value::as_array));
    let variables = containers.into_iter().flatten().flatten().filter_map(|it| it.get("env")?.as_array());
    let set = json!({ "name": "ISTIO_DUAL_STACK", "value": "true" });
    variables.flatten().any(|variable| *variable == set)
}

/// Returns the ranges of a pod's addresses and of its service's, each of one address. A node may replace a service's
/// address by a pod's before the packet reaches the rules of the client's pod.
pub(super) fn ranges(workstation: &Workstation, pod: Name<'_>) -> Result<Vec<String>, Failure> {
    let service = workstation.api.get(&format!("/api/v1/namespaces/{}/services/{}", pod.0, pod.1))?;
    let of_service = service.unwrap_or_default().pointer("/spec/clusterIPs").cloned().unwrap_or_default();
    let of_service: Vec<String> = serde_json::from_value(of_service)?;
    let of_pod = addresses(&application::get(workstation, pod)?.unwrap_or_default());
    let range = |address: String| match family_of(&address) {
        Family::V4 => address + "/32",
        Family::V6 => address + "/128",
    };
    Ok(of_pod.into_iter().chain(of_service).map(range).collect())
}

/// Returns a pod's addresses.
fn addresses(pod: &Value) -> Vec<String> {
    let addresses = pod.pointer("/status/podIPs").and_then(Value::as_array);
    let addresses = addresses.into_iter().flatten().filter_map(|it| it.get("ip")?.as_str());
    addresses.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sidecar_without_dual_stack_serves_the_family_of_the_first_address() {
        let pod = |value: &str| {
            json!({
                "spec": { "initContainers": [
                    { "name": "istio-validation" },
                    { "name": "istio-proxy", "env": [{ "name": "ISTIO_DUAL_STACK", "value": value }] },
                ] },
                "status": { "podIPs": [{ "ip": "fd00::1" }, { "ip": "10.0.0.1" }] },
            })
        };
        assert_eq!(served_by(&pod("true")), FAMILIES);
        assert_eq!(served_by(&pod("false")), [Family::V6]);
        assert_eq!(served_by(&json!({ "status": { "podIPs": [{ "ip": "10.0.0.1" }] } })), [Family::V4]);
    }
}
