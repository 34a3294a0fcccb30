//! The listen addresses of health and metrics.

use super::reader::{RawSetting, SettingsReader};
use gybe_netfilter::model::policy::{decimal, port};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A listen address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    /// None for every address of the host.
    pub address: Option<IpAddr>,
    /// A TCP port.
    pub port: u16,
}

impl Listen {
    /// The addresses to bind, in order, until one works: `[::]` accepts IPv4 too, and a host without IPv6 does
    /// not have it.
    pub fn addresses(self) -> impl Iterator<Item = SocketAddr> {
        let every = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
        let all = self.address.map_or(every.to_vec(), |address| vec![address]);
        all.into_iter().map(move |address| SocketAddr::new(address, self.port))
    }
}

/// Returns none if the port is 0 or less, as for the incumbent.
pub(super) fn read(
    reader: &mut SettingsReader<'_>,
    (address, port): (&'static str, &'static str),
    default: u16,
) -> Option<Listen> {
    let setting = reader.variable(address);
    let (address, own_port) = setting.map_or((None, None), |setting| parse_address(reader, setting));
    let port = match reader.variable(port) {
        Some(setting) => parse_port(reader, setting),
        None => Some(default),
    };
    own_port.or(port).map(|port| Listen { address, port })
}

/// Parses `10.0.0.1`, `::1`, and with a port `10.0.0.1:8000`, `[::1]:8000`, `:8000`.
fn parse_address(reader: &mut SettingsReader<'_>, setting: RawSetting<'_>) -> (Option<IpAddr>, Option<u16>) {
    let alone =
        setting.text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(setting.text);
    if let Ok(address) = alone.parse() {
        return (Some(address), None);
    }
    if let Ok(both) = setting.text.parse::<SocketAddr>() {
        return (Some(both.ip()), Some(both.port()));
    }
    if let Some(Ok(port)) = setting.text.strip_prefix(':').map(port) {
        return (None, Some(port));
    }
    reader.refuse(setting, "must be an IP address, with or without a port");
    (None, None)
}

fn parse_port(reader: &mut SettingsReader<'_>, setting: RawSetting<'_>) -> Option<u16> {
    let is_negative = setting.text.strip_prefix('-').is_some_and(|text| decimal(text).is_some());
    match port(setting.text) {
        Ok(0) => None,
        Ok(port) => Some(port),
        Err(_) if is_negative => None,
        Err(_) => {
            reader.refuse(setting, "must be a port, or 0 for none");
            None
        }
    }
}
