//! Where health and metrics are served: an address, or every one of this host.

use super::reader::{RawSetting, SettingsReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A place to listen at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    /// None is every address of the host.
    pub address: Option<IpAddr>,
    /// TCP.
    pub port: u16,
}

impl Listen {
    /// What to bind, the next when the one before cannot be: `[::]` hears IPv4 too, and a host without
    /// IPv6 has none.
    pub fn addresses(self) -> impl Iterator<Item = SocketAddr> {
        let every = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
        let all = self.address.map_or(every.to_vec(), |address| vec![address]);
        all.into_iter().map(move |address| SocketAddr::new(address, self.port))
    }
}

/// None when the port is 0 or less, as the incumbent has it.
pub(super) fn read(
    reader: &mut SettingsReader<'_>,
    (address, port): (&'static str, &'static str),
    default: u16,
) -> Option<Listen> {
    let said = reader.variable(address);
    let (address, port_beside) = said.map_or((None, None), |said| parse_address(reader, said));
    let port = match reader.variable(port) {
        Some(said) => parse_port(reader, said),
        None => Some(default),
    };
    port_beside.or(port).map(|port| Listen { address, port })
}

/// `10.0.0.1`, `::1`, and with a port: `10.0.0.1:8000`, `[::1]:8000`, `:8000`.
fn parse_address(reader: &mut SettingsReader<'_>, said: RawSetting<'_>) -> (Option<IpAddr>, Option<u16>) {
    let alone = said.text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(said.text);
    if let Ok(address) = alone.parse() {
        return (Some(address), None);
    }
    if let Ok(both) = said.text.parse::<SocketAddr>() {
        return (Some(both.ip()), Some(both.port()));
    }
    if let Some(Ok(port)) = said.text.strip_prefix(':').map(str::parse) {
        return (None, Some(port));
    }
    reader.refuse(said, "must be an IP address, with or without a port");
    (None, None)
}

fn parse_port(reader: &mut SettingsReader<'_>, said: RawSetting<'_>) -> Option<u16> {
    match said.text.parse::<i64>() {
        Ok(off) if off <= 0 => None,
        Ok(port) if u16::try_from(port).is_ok() => u16::try_from(port).ok(),
        _ => {
            reader.refuse(said, "must be a port, or 0 for none");
            None
        }
    }
}
