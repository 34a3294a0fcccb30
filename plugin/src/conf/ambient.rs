//! The keys in `ambient`: how ambient pods are redirected. Which pods are ambient, the node agent decides.

use super::reader::ConfReader;
use gybe_netfilter::model::policy::Families;
use gybe_netfilter::model::policy::ambient::{AmbientDns, ProbeAddressError, ProbeAddresses};
use serde_json::{Value, json};
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
        let has_dns = !keys.contains("dns_capture") || keys.boolean("dns_capture");
        let has_ipv6 = !keys.contains("ipv6") || keys.boolean("ipv6");
        let dns = if has_dns { AmbientDns::Captured } else { AmbientDns::Off };
        let families = if has_ipv6 { Families::V4AndV6 } else { Families::V4Only };
        let mut probes = ProbeAddresses::default();
        match with_address(probes, &keys.string("probe_ipv4"), ProbeAddresses::with_v4) {
            Some(changed) => probes = changed,
            None => keys.refuse("probe_ipv4", PROBE),
        }
        match with_address(probes, &keys.string("probe_ipv6"), ProbeAddresses::with_v6) {
            Some(changed) => probes = changed,
            None => keys.refuse("probe_ipv6", PROBE),
        }
        Self { dns, families, probes }
    }

    /// Returns the value of `ambient`.
    pub(super) fn to_json(self) -> Value {
        json!({
            "dns_capture": self.dns == AmbientDns::Captured, "ipv6": self.families == Families::V4AndV6,
            "probe_ipv4": self.probes.v4().to_string(), "probe_ipv6": self.probes.v6().to_string(),
        })
    }
}

/// Returns `probes` with the address of a text, unchanged with an empty one; none if the address cannot be that of probes.
fn with_address<A: FromStr>(
    probes: ProbeAddresses,
    text: &str,
    with: impl FnOnce(ProbeAddresses, A) -> Result<ProbeAddresses, ProbeAddressError>,
) -> Option<ProbeAddresses> {
    if text.is_empty() { Some(probes) } else { with(probes, text.parse().ok()?).ok() }
}
