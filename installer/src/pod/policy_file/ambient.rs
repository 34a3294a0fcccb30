//! The keys of an ambient policy. An absent key has istio-cni's default.

use super::read::{PolicyFileError, PolicyReader};
use super::values;
use gybe_netfilter::model::policy::Families;
use gybe_netfilter::model::policy::ambient::{AmbientDns, AmbientInbound, AmbientPolicy, ProbeAddresses};
use serde_json::{Map, Value};
use std::net::{Ipv4Addr, Ipv6Addr};

pub(super) fn policy(entries: &Map<String, Value>) -> Result<AmbientPolicy, PolicyFileError> {
    let mut reader = PolicyReader::new(entries);
    reader.text(values::KIND, |_| Ok::<_, &str>(()));
    let policy = AmbientPolicy {
        inbound: match reader.flag("bypass_inbound_capture") {
            Some(true) => AmbientInbound::Bypassed,
            _ => AmbientInbound::Captured,
        },
        dns: match reader.flag("redirect_dns") {
            Some(false) => AmbientDns::Off,
            _ => AmbientDns::Captured,
        },
        virtual_interfaces: reader
            .list("reroute_virtual_interfaces", values::interface)
            .into_iter()
            .collect(),
        probes: probes(&mut reader),
        families: match reader.flag("enable_ipv6") {
            Some(false) => Families::V4Only,
            _ => Families::V4AndV6,
        },
    };
    reader.finish()?;
    Ok(policy)
}

fn probes(reader: &mut PolicyReader<'_>) -> ProbeAddresses {
    let default = ProbeAddresses::default();
    let with_v4 = |text: &str| {
        let v4 = text.parse::<Ipv4Addr>().map_err(|error| error.to_string())?;
        default.with_v4(v4).map_err(|error| error.to_string())
    };
    let probes = reader.text("probe_address_v4", with_v4).unwrap_or(default);
    let with_v6 = |text: &str| {
        let v6 = text.parse::<Ipv6Addr>().map_err(|error| error.to_string())?;
        probes.with_v6(v6).map_err(|error| error.to_string())
    };
    reader.text("probe_address_v6", with_v6).unwrap_or(probes)
}
