//! A policy file: the wish as an operator writes it, in JSON. Knows no pod and no annotation.
//!
//! The names are those of the recorded flow vectors. A name that is absent has the value Istio's
//! injector gives it (docs/ISTIO.md, section 2.8). Everything wrong is reported at once.

mod faults;
mod read;
mod values;

pub use faults::{Fault, PolicyFileError};

use crate::pod::families::{Families, FamilyChoice, NoAddress, Stack};
use gybe_netfilter::policy::istio::{
    INBOUND_PORT, OUTBOUND_PORT, PROXY_ID, PROXY_PORTS, TPROXY_MARK, TPROXY_TABLE, TUNNEL_PORT,
};
use gybe_netfilter::policy::{
    CidrSet, Destinations, Dns, Groups, Inbound, InvalidPackets, Mode, Outbound, Owners, Port, PortSet,
    RedirectPolicy,
};
use read::{Reader, Scope};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// As many groups as Istio writes into its one rule (docs/ISTIO.md, section 2.6).
const MOST_GROUPS: usize = 64;

/// A policy file, read and found free of fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyFile {
    /// Complete but for its families, which a namespace may still have to decide.
    wish: RedirectPolicy,
    families: FamilyChoice,
}

impl PolicyFile {
    /// Reads the text of a policy file.
    ///
    /// # Errors
    /// When the text is not one JSON object, or with every fault found in it.
    pub fn parse(text: &str) -> Result<Self, PolicyFileError> {
        Self::from_entries(&read::object(text)?)
    }

    /// Reads an object that is already parsed, like the `options` of a flow vector.
    ///
    /// # Errors
    /// With every fault found in it.
    pub fn from_entries(entries: &Map<String, Value>) -> Result<Self, PolicyFileError> {
        let mut reader = Reader::new(entries);
        let file = Self { wish: wish(&mut reader), families: families(&mut reader) };
        reader.finish()?;
        Ok(file)
    }

    /// The policy for a namespace with these addresses, given in the kernel's order.
    ///
    /// # Errors
    /// When the file leaves the families to the addresses and there is none to go by.
    pub fn policy(&self, addresses: &[IpAddr]) -> Result<RedirectPolicy, NoAddress> {
        Ok(self.with_families(self.families.decide(addresses)?))
    }

    /// The policy with its families decided by the caller.
    pub fn with_families(&self, families: Families) -> RedirectPolicy {
        RedirectPolicy { families, ..self.wish.clone() }
    }

    /// What the file says about families.
    pub fn families(&self) -> FamilyChoice {
        self.families
    }
}

fn wish(reader: &mut Reader<'_>) -> RedirectPolicy {
    let uids = reader.list("proxy_uids", values::id);
    let gids = reader.list("proxy_gids", values::id);
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
        excluded_interfaces: reader.list("exclude_interfaces", values::interface).into_iter().collect(),
        virtual_interfaces: reader
            .list("reroute_virtual_interfaces", values::interface)
            .into_iter()
            .collect(),
        dns: dns(reader),
        invalid: match reader.flag("drop_invalid") {
            Some(true) => InvalidPackets::Drop,
            _ => InvalidPackets::Pass,
        },
        loopback: reader.text("loopback_cidr_v4", values::loopback).unwrap_or_default(),
        families: Families::V4Only,
    }
}

fn families(reader: &mut Reader<'_>) -> FamilyChoice {
    let dual_stack = reader.flag("dual_stack").unwrap_or(false);
    match reader.flag("enable_ipv6") {
        Some(true) => FamilyChoice::Fixed(Families::V4AndV6),
        Some(false) => FamilyChoice::Fixed(Families::V4Only),
        None if dual_stack => FamilyChoice::ByAddresses(Stack::Dual),
        None => FamilyChoice::ByAddresses(Stack::Single),
    }
}

fn mode(reader: &mut Reader<'_>) -> Mode {
    let mark = reader.text("tproxy_mark", values::mark).unwrap_or(TPROXY_MARK);
    let route_table = reader.text("tproxy_route_table", values::route_table).unwrap_or(TPROXY_TABLE);
    match reader.text("mode", values::mode) {
        Some(values::ModeName::Tproxy) => Mode::Tproxy { mark, route_table },
        Some(values::ModeName::Redirect) | None => Mode::Redirect,
    }
}

fn port(reader: &mut Reader<'_>, key: &'static str, default: Port) -> Port {
    reader.text(key, values::listener).unwrap_or(default)
}

fn owners(ids: Vec<u32>) -> Option<Owners> {
    let mut ids = ids.into_iter();
    ids.next().map(|first| Owners::new(first, ids))
}

fn inbound(reader: &mut Reader<'_>) -> Inbound {
    let given = reader.given("inbound_ports_exclude");
    let excluded = ports(reader, "inbound_ports_exclude");
    let excluded = if given { excluded } else { PROXY_PORTS.into_iter().collect() };
    match reader.scope("inbound_ports_include", values::ports) {
        Scope::All => Inbound::AllBut(excluded),
        Scope::Only(included) => Inbound::Only(included.into_iter().collect()),
    }
}

fn ports(reader: &mut Reader<'_>, key: &'static str) -> PortSet {
    reader.list(key, values::ports).into_iter().collect()
}

fn outbound(reader: &mut Reader<'_>) -> Outbound {
    Outbound {
        excluded_ports: ports(reader, "outbound_ports_exclude"),
        excluded_to: reader.list("outbound_cidrs_exclude", values::cidr).into_iter().collect(),
        included_ports: ports(reader, "outbound_ports_include"),
        included_to: match reader.scope("outbound_cidrs_include", values::cidr) {
            Scope::All => Destinations::All,
            Scope::Only(nets) => Destinations::Only(nets.into_iter().collect()),
        },
        groups: groups(reader),
    }
}

fn groups(reader: &mut Reader<'_>) -> Groups {
    let excluded: BTreeSet<u32> = reader.list("owner_groups_exclude", values::id).into_iter().collect();
    match reader.scope("owner_groups_include", values::id) {
        Scope::All => Groups::AllBut(excluded),
        Scope::Only(ids) => {
            if ids.len() > MOST_GROUPS {
                let why = format!("has {} groups, and at most {MOST_GROUPS} are allowed", ids.len());
                reader.fault("owner_groups_include", why);
            }
            Groups::Only(ids.into_iter().collect())
        }
    }
}

fn dns(reader: &mut Reader<'_>) -> Dns {
    let mut servers: Vec<IpAddr> = reader.list("dns_servers_v4", values::server_v4);
    servers.extend(reader.list("dns_servers_v6", values::server_v6));
    let every_query = reader.flag("capture_all_dns").unwrap_or(false);
    match reader.flag("redirect_dns") {
        Some(true) if every_query => Dns::All,
        Some(true) if !servers.is_empty() => Dns::Servers(servers.into_iter().collect::<CidrSet>()),
        _ => Dns::Off,
    }
}
