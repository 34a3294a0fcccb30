//! A policy file: the policy as an operator writes it, in JSON. Contains nothing of pods and annotations.
//!
//! The key `kind` distinguishes the policies of a sidecar, which a file without it has, from those of ambient pods.
//! The keys are those of the recorded flow vectors. An absent key has the value that Istio's injector sets
//! (docs/ISTIO.md, section 2.8). All faults of a file are reported together.

mod read;
mod write;

pub use gybe_netfilter::model::policy::Families;
pub use gybe_plugin::families::Stack;
pub use read::{PolicyFault, PolicyFileError};

use gybe_netfilter::model::policy::ambient::{AmbientDns, AmbientInbound, ProbeAddresses};
use gybe_netfilter::model::policy::istio::{
    INBOUND_PORT, OUTBOUND_PORT, PROXY_ID, PROXY_PORTS, TPROXY_MARK, TPROXY_TABLE, TUNNEL_PORT,
};
use gybe_netfilter::model::policy::{
    AmbientPolicy, CidrSet, Destinations, Dns, Groups, Inbound, InvalidPackets, Mode, Outbound, Owners, Port,
    PortSet, RedirectPolicy, network,
};
use gybe_plugin::conf::Ipv6Setting;
use gybe_plugin::families;
use read::{ListOrAll, PolicyReader};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The number of groups that Istio writes into its one rule (docs/ISTIO.md, section 2.6).
const MOST_GROUPS: usize = 64;

/// A valid policy file of either kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnyPolicyFile {
    /// Of a sidecar.
    Sidecar(Box<PolicyFile>),
    /// Of an ambient pod.
    Ambient(AmbientPolicy),
}

impl AnyPolicyFile {
    /// Parses the text of a policy file.
    ///
    /// # Errors
    /// As [`PolicyFile::parse`].
    pub fn parse(text: &str) -> Result<Self, PolicyFileError> {
        Self::from_entries(&read::object(text)?)
    }

    /// Reads a parsed object.
    ///
    /// # Errors
    /// All faults of the object.
    pub fn from_entries(entries: &Map<String, Value>) -> Result<Self, PolicyFileError> {
        match entries.get(read::KIND).and_then(Value::as_str) {
            Some(read::AMBIENT) => ambient_policy(entries).map(Self::Ambient),
            _ => PolicyFile::from_entries(entries).map(Box::new).map(Self::Sidecar),
        }
    }
}

/// A valid policy file of a sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyFile {
    /// Its families are not set: they may depend on the namespace.
    policy: RedirectPolicy,
    families: FamilyChoice,
}

/// How a policy file chooses the families.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FamilyChoice {
    /// The file names them.
    Fixed(Families),
    /// By the namespace's addresses (docs/ISTIO.md, section 2.5).
    ByAddresses(Stack),
}

/// The families depend on the namespace's addresses, and it has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the namespace has no address but loopback and link-local ones, so its families cannot be determined"
)]
pub struct NoAddress;

impl FamilyChoice {
    /// Returns the families of a namespace with these addresses, in the kernel's order.
    ///
    /// # Errors
    /// When the addresses decide and none is usable: loopback and link-local ones do not count.
    pub fn decide(self, addresses: &[IpAddr]) -> Result<Families, NoAddress> {
        match self {
            Self::Fixed(families) => Ok(families),
            // With `auto` there is only one reason for an error.
            Self::ByAddresses(stack) => {
                families::choose(Ipv6Setting::Auto, stack, addresses).map_err(|_| NoAddress)
            }
        }
    }
}

impl PolicyFile {
    /// Parses the text of a policy file.
    ///
    /// # Errors
    /// When the text is not one JSON object; else all faults of the object.
    pub fn parse(text: &str) -> Result<Self, PolicyFileError> {
        Self::from_entries(&read::object(text)?)
    }

    /// Reads a parsed object, such as the `options` of a flow vector.
    ///
    /// # Errors
    /// All faults of the object.
    pub fn from_entries(entries: &Map<String, Value>) -> Result<Self, PolicyFileError> {
        let mut reader = PolicyReader::new(entries);
        reader.text(read::KIND, read::is_sidecar);
        let file = Self { policy: policy(&mut reader), families: family_choice(&mut reader) };
        reader.finish()?;
        Ok(file)
    }

    /// Returns the policy for a namespace with these addresses, in the kernel's order.
    ///
    /// # Errors
    /// When the addresses decide about the families and none is usable.
    pub fn policy(&self, addresses: &[IpAddr]) -> Result<RedirectPolicy, NoAddress> {
        Ok(self.with_families(self.families.decide(addresses)?))
    }

    /// Returns the policy with the caller's families.
    pub fn with_families(&self, families: Families) -> RedirectPolicy {
        RedirectPolicy { families, ..self.policy.clone() }
    }

    /// Returns the policy file of a policy: every key, and families that no address changes.
    pub fn entries(policy: &RedirectPolicy) -> Map<String, Value> {
        write::entries(policy)
    }

    pub fn families(&self) -> FamilyChoice {
        self.families
    }
}

fn policy(reader: &mut PolicyReader<'_>) -> RedirectPolicy {
    let uids = reader.list("proxy_uids", read::id);
    let gids = reader.list("proxy_gids", read::id);
    let proxy_uids = owners(uids).unwrap_or_else(|| Owners::new(PROXY_ID, []));
    RedirectPolicy {
        mode: mode(reader),
        outbound_port: port(reader, "proxy_port", OUTBOUND_PORT),
        inbound_port: port(reader, "inbound_capture_port", INBOUND_PORT),
        tunnel_port: port(reader, "inbound_tunnel_port", TUNNEL_PORT),
        proxy_gids: owners(gids).unwrap_or_else(|| proxy_uids.clone()),
        proxy_uids,
        inbound: inbound(reader),
        outbound: outbound(reader),
        excluded_interfaces: reader.list("exclude_interfaces", read::interface).into_iter().collect(),
        virtual_interfaces: reader.list("reroute_virtual_interfaces", read::interface).into_iter().collect(),
        dns: dns(reader),
        invalid: match reader.flag("drop_invalid") {
            Some(true) => InvalidPackets::Drop,
            _ => InvalidPackets::Pass,
        },
        loopback: reader.text("loopback_cidr_v4", read::loopback).unwrap_or_default(),
        families: Families::V4Only,
    }
}

fn family_choice(reader: &mut PolicyReader<'_>) -> FamilyChoice {
    let dual_stack = reader.flag("dual_stack").unwrap_or(false);
    match reader.flag("enable_ipv6") {
        Some(true) => FamilyChoice::Fixed(Families::V4AndV6),
        Some(false) => FamilyChoice::Fixed(Families::V4Only),
        None if dual_stack => FamilyChoice::ByAddresses(Stack::Dual),
        None => FamilyChoice::ByAddresses(Stack::Single),
    }
}

fn mode(reader: &mut PolicyReader<'_>) -> Mode {
    let mark = reader.text("tproxy_mark", read::mark).unwrap_or(TPROXY_MARK);
    let route_table = reader.text("tproxy_route_table", read::route_table).unwrap_or(TPROXY_TABLE);
    match reader.text("mode", read::mode) {
        Some(read::ModeName::Tproxy) => Mode::Tproxy { mark, route_table },
        Some(read::ModeName::Redirect) | None => Mode::Redirect,
    }
}

fn port(reader: &mut PolicyReader<'_>, key: &'static str, default: Port) -> Port {
    reader.text(key, read::listener).unwrap_or(default)
}

fn owners(ids: Vec<u32>) -> Option<Owners> {
    let mut ids = ids.into_iter();
    ids.next().map(|first| Owners::new(first, ids))
}

fn inbound(reader: &mut PolicyReader<'_>) -> Inbound {
    let is_given = reader.is_given("inbound_ports_exclude");
    let excluded = ports(reader, "inbound_ports_exclude");
    let excluded = if is_given { excluded } else { PROXY_PORTS.into_iter().collect() };
    match reader.list_or_all("inbound_ports_include", read::ports) {
        ListOrAll::All => Inbound::AllBut(excluded),
        ListOrAll::Only(included) => Inbound::Only(included.into_iter().collect()),
    }
}

fn ports(reader: &mut PolicyReader<'_>, key: &'static str) -> PortSet {
    reader.list(key, read::ports).into_iter().collect()
}

fn outbound(reader: &mut PolicyReader<'_>) -> Outbound {
    Outbound {
        excluded_ports: ports(reader, "outbound_ports_exclude"),
        excluded_to: reader.list("outbound_cidrs_exclude", network).into_iter().collect(),
        included_ports: ports(reader, "outbound_ports_include"),
        included_to: match reader.list_or_all("outbound_cidrs_include", network) {
            ListOrAll::All => Destinations::All,
            ListOrAll::Only(nets) => Destinations::Only(nets.into_iter().collect()),
        },
        groups: groups(reader),
    }
}

fn groups(reader: &mut PolicyReader<'_>) -> Groups {
    let excluded: BTreeSet<u32> = reader.list("owner_groups_exclude", read::id).into_iter().collect();
    match reader.list_or_all("owner_groups_include", read::id) {
        ListOrAll::All => Groups::AllBut(excluded),
        ListOrAll::Only(ids) => {
            if ids.len() > MOST_GROUPS {
                let why = format!("has {} groups, and at most {MOST_GROUPS} are allowed", ids.len());
                reader.fault("owner_groups_include", why);
            }
            Groups::Only(ids.into_iter().collect())
        }
    }
}

fn dns(reader: &mut PolicyReader<'_>) -> Dns {
    let mut servers: Vec<IpAddr> = reader.list("dns_servers_v4", read::server_v4);
    servers.extend(reader.list("dns_servers_v6", read::server_v6));
    let every_query = reader.flag("capture_all_dns").unwrap_or(false);
    match reader.flag("redirect_dns") {
        Some(true) if every_query => Dns::All,
        Some(true) if !servers.is_empty() => Dns::Servers(servers.into_iter().collect::<CidrSet>()),
        _ => Dns::Off,
    }
}

/// Reads the keys of an ambient policy. An absent key has istio-cni's default.
fn ambient_policy(entries: &Map<String, Value>) -> Result<AmbientPolicy, PolicyFileError> {
    let mut reader = PolicyReader::new(entries);
    reader.text(read::KIND, |_| Ok::<_, &str>(()));
    let policy = AmbientPolicy {
        inbound: match reader.flag("bypass_inbound_capture") {
            Some(true) => AmbientInbound::Bypassed,
            _ => AmbientInbound::Captured,
        },
        dns: match reader.flag("redirect_dns") {
            Some(false) => AmbientDns::Off,
            _ => AmbientDns::Captured,
        },
        virtual_interfaces: reader.list("reroute_virtual_interfaces", read::interface).into_iter().collect(),
        probes: probe_addresses(&mut reader),
        families: match reader.flag("enable_ipv6") {
            Some(false) => Families::V4Only,
            _ => Families::V4AndV6,
        },
    };
    reader.finish()?;
    Ok(policy)
}

fn probe_addresses(reader: &mut PolicyReader<'_>) -> ProbeAddresses {
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
