//! Parses the text of one value of a policy file. An error is a sentence about the value.

use gybe_netfilter::model::policy::istio::OWN_POD_MARK;
use gybe_netfilter::model::policy::{
    InterfaceName, InterfaceNameError, LoopbackCidr, Mark, Port, PortError, PortRange, decimal, port,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The key that names the kind of policy.
pub(super) const KIND: &str = "kind";
/// The kind of an ambient policy.
pub(super) const AMBIENT: &str = "ambient";

pub(super) fn is_sidecar(text: &str) -> Result<(), String> {
    match text {
        "sidecar" => Ok(()),
        _ => Err(format!("{:?} is neither sidecar nor {AMBIENT}", brief(text))),
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum ModeName {
    Redirect,
    Tproxy,
}

pub(super) fn mode(text: &str) -> Result<ModeName, String> {
    match text {
        "REDIRECT" => Ok(ModeName::Redirect),
        "TPROXY" => Ok(ModeName::Tproxy),
        _ => Err(format!("{:?} is neither REDIRECT nor TPROXY", brief(text))),
    }
}

pub(super) fn listener(text: &str) -> Result<Port, String> {
    let listener = port(text).ok().and_then(Port::new);
    listener.ok_or_else(|| is_not(text, "a port to listen on, 1 to 65535"))
}

pub(super) fn ports(text: &str) -> Result<PortRange, <PortRange as FromStr>::Err> {
    text.parse()
}

/// Parses a numeric user or group. A name would have to be looked up in the pod's own files or, as happened to
/// iptables, over the network: docs/ISTIO.md, section 2.7.
pub(super) fn id(text: &str) -> Result<u32, String> {
    match decimal(text) {
        Some(u32::MAX) => Err(format!("{text:?} is the kernel's value for no user at all")),
        Some(id) => Ok(id),
        None => Err(is_not(
            text,
            "a numeric id from 0 to 4294967294; ranges are not supported, and names are refused because they \
             have their meaning in the pod's files only",
        )),
    }
}

pub(super) fn interface(text: &str) -> Result<InterfaceName, InterfaceNameError> {
    InterfaceName::parse(text)
}

pub(super) fn server_v4(text: &str) -> Result<IpAddr, String> {
    let address = text.parse::<Ipv4Addr>().map(IpAddr::from);
    address.map_err(|_| format!("{:?} is not an IPv4 address", brief(text)))
}

pub(super) fn server_v6(text: &str) -> Result<IpAddr, String> {
    let address = text.parse::<Ipv6Addr>().map(IpAddr::from);
    address.map_err(|_| format!("{:?} is not an IPv6 address", brief(text)))
}

pub(super) fn loopback(text: &str) -> Result<LoopbackCidr, <LoopbackCidr as FromStr>::Err> {
    text.parse()
}

pub(super) fn mark(text: &str) -> Result<Mark, String> {
    match decimal(text) {
        Some(0) => Err("0 is the mark of every packet without a mark".to_owned()),
        Some(OWN_POD_MARK) => {
            Err(format!("{OWN_POD_MARK} already marks packets that the proxy sends to its own pod"))
        }
        Some(mark) => Ok(mark),
        None => Err(is_not(text, "a packet mark, 1 to 4294967295")),
    }
}

/// The tables 253, 254 and 255 are the kernel's `default`, `main` and `local`: a route that delivers
/// everything locally would cut the namespace off (rtnetlink(7), `RT_TABLE_*`).
pub(super) fn route_table(text: &str) -> Result<u32, String> {
    match decimal(text) {
        Some(kernels @ (0 | 253..=255)) => {
            Err(format!("routing table {kernels} is the kernel's own; choose another, like 133"))
        }
        Some(table) => Ok(table),
        None => Err(is_not(text, "a routing table, 1 to 4294967295")),
    }
}

fn is_not(text: &str, expected: &str) -> String {
    match port(text) {
        Err(PortError::LeadingZero(_)) => PortError::LeadingZero(brief(text)).to_string(),
        _ => format!("{:?} is not {expected}", brief(text)),
    }
}

fn brief(text: &str) -> String {
    text.chars().take(64).collect()
}
