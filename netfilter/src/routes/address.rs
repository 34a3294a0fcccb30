//! The addresses of this namespace's interfaces, in the order in which the kernel lists them.
//!
//! The order matters: the first address that is neither loopback nor link-local decides which
//! families are redirected (spec `istio-cni-behaviour.md` 2.4). That decision is made elsewhere.

use super::entry::ADDRESS_HEADER;
use super::error::RoutesError;
use super::rtnetlink::Rtnetlink;
use super::uapi::*;
use crate::netlink::attr::Attributes;
use std::net::IpAddr;

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The interface's index.
    pub index: u32,
    /// The interface's name.
    pub interface: String,
    /// The address itself; its variant is its family.
    pub ip: IpAddr,
    /// How many of its bits name the network.
    pub prefix: u8,
    /// How far it is valid.
    pub scope: Scope,
    /// `IFA_F_*` of `include/uapi/linux/if_addr.h`.
    pub flags: u32,
}

/// How far an address is valid (`enum rt_scope_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Everywhere.
    Universe,
    /// On the link.
    Link,
    /// In this namespace.
    Host,
    /// What somebody else has defined.
    Other(u8),
}

/// The addresses of the calling thread's namespace.
///
/// # Errors
/// When the kernel does not list them.
pub fn addresses() -> Result<Vec<Address>, RoutesError> {
    Rtnetlink::open()?.addresses()
}

impl Rtnetlink {
    /// The addresses of all interfaces, both families, in the kernel's order.
    ///
    /// # Errors
    /// When the kernel does not list them.
    pub fn addresses(&mut self) -> Result<Vec<Address>, RoutesError> {
        let listed = self.ask("addresses", RTM_GETADDR, &[0; ADDRESS_HEADER])?;
        let found: Vec<(Address, Option<String>)> = listed.iter().filter_map(|entry| read(entry)).collect();
        // IPv4 addresses bear their interface's name, IPv6 ones do not. So the links are asked for
        // only when an interface has no IPv4 address.
        let mut names: Vec<(u32, String)> =
            found.iter().filter_map(|(address, label)| Some((address.index, label.clone()?))).collect();
        let is_named = |names: &[(u32, String)], index| names.iter().any(|(named, _)| *named == index);
        if !found.iter().all(|(address, _)| is_named(&names, address.index)) {
            names.extend(self.links()?);
        }
        let name = |index| names.iter().find(|(named, _)| *named == index).map(|(_, name)| name.clone());
        let named = |(address, _): (Address, _)| Address {
            interface: name(address.index).unwrap_or_default(),
            ..address
        };
        Ok(found.into_iter().map(named).collect())
    }

    fn links(&mut self) -> Result<Vec<(u32, String)>, RoutesError> {
        let listed = self.ask("interfaces", RTM_GETLINK, &[0; LINK_HEADER])?;
        Ok(listed.iter().filter_map(|entry| link(entry)).collect())
    }
}

/// `struct ifinfomsg`.
const LINK_HEADER: usize = 16;

fn link(entry: &[u8]) -> Option<(u32, String)> {
    let (&[_, _, _, _, a, b, c, d, ..], link) = entry.split_first_chunk::<LINK_HEADER>()?;
    let name = Attributes::of(link).get(IFLA_IFNAME)?;
    Some((u32::from_ne_bytes([a, b, c, d]), String::from_utf8_lossy(name.text()).into_owned()))
}

/// Reads `struct ifaddrmsg` and its attributes; the name it bears comes beside it.
fn read(entry: &[u8]) -> Option<(Address, Option<String>)> {
    let (&[_, prefix, flags, scope, index @ ..], rest) = entry.split_first_chunk::<ADDRESS_HEADER>()?;
    let attributes = Attributes::of(rest);
    // On a link between two hosts IFA_ADDRESS is the other end's.
    let own = attributes.get(IFA_LOCAL).or_else(|| attributes.get(IFA_ADDRESS))?.value;
    let ip = match own.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(own).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(own).ok()?),
    };
    let flags = attributes.get(IFA_FLAGS).and_then(|flags| flags.ne32()).unwrap_or(u32::from(flags));
    let scope = match scope {
        RT_SCOPE_UNIVERSE => Scope::Universe,
        RT_SCOPE_LINK => Scope::Link,
        RT_SCOPE_HOST => Scope::Host,
        other => Scope::Other(other),
    };
    // A label may go on behind a colon (`eth0:1`), an interface's name has none.
    let label = attributes.get(IFA_LABEL).map(|label| String::from_utf8_lossy(label.text()).into_owned());
    let name = label.map(|label| label.split(':').next().unwrap_or_default().to_owned());
    let index = u32::from_ne_bytes(index);
    Some((Address { index, interface: String::new(), ip, prefix, scope, flags }, name))
}
