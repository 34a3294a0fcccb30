//! The keys in `ambient`: how ambient pods are redirected. Which pods are ambient, the node agent decides.

use super::reader::ConfReader;
use gybe_netfilter::model::policy::Families;
use gybe_netfilter::model::policy::ambient::{AmbientDns, ProbeAddresses};
use serde_json::{Value, json};
use std::fmt::Display;
use std::str::FromStr;

/// The values of all ambient pods of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AmbientConf {
    /// Whether DNS queries go to ztunnel, unless the pod has an annotation.
    pub dns: AmbientDns,
    /// The redirected families.
    pub families: Families,
    /// The source addresses of probes.
    pub probes: ProbeAddresses,
}

/// istio-cni's defaults.
impl Default for AmbientConf {
    fn default() -> Self {
        Self { dns: AmbientDns::Captured, families: Families::V4AndV6, probes: ProbeAddresses::default() }
    }
}

/// The value of an address that cannot be that of probes.
const PROBE: &str = "the address of one host, neither unspecified nor a loopback or multicast address";

impl AmbientConf {
    pub(super) fn read(keys: &mut ConfReader<'_>) -> Self {
        let has = |keys: &mut ConfReader<'_>, key| !keys.contains(key) || keys.boolean(key);
        let dns = if has(keys, "dns_capture") { AmbientDns::Captured } else { AmbientDns::Off };
        let families = if has(keys, "ipv6") { Families::V4AndV6 } else { Families::V4Only };
        let probes = ProbeAddresses::default();
        let probes = address(keys, "probe_ipv4", probes, |v4| probes.with_v4(v4).ok());
        let probes = address(keys, "probe_ipv6", probes, |v6| probes.with_v6(v6).ok());
        Self { dns, families, probes }
    }

    /// Returns the value of `ambient`.
    pub(super) fn to_json(self) -> Value {
        json!({
            "dns_capture": self.dns == AmbientDns::Captured, "ipv6": self.families == Families::V4AndV6,
            "probe_ipv4": text(&self.probes.v4()), "probe_ipv6": text(&self.probes.v6()),
        })
    }
}

fn text(address: &impl Display) -> String {
    address.to_string()
}

/// Returns `probes` with the address of a key; unchanged when the key is missing.
fn address<A: FromStr>(
    keys: &mut ConfReader<'_>,
    key: &str,
    probes: ProbeAddresses,
    with: impl FnOnce(A) -> Option<ProbeAddresses>,
) -> ProbeAddresses {
    if !keys.contains(key) {
        return probes;
    }
    let changed = keys.string(key).parse().ok().and_then(with);
    if changed.is_none() {
        keys.refuse(key, PROBE);
    }
    changed.unwrap_or(probes)
}
