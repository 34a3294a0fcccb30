//! The addresses and ports of a translation: `struct nf_nat_range` and its variants
//! (include/uapi/linux/netfilter/nf_nat.h).

use super::fields::Fields;
use crate::model::policy::PortRange;
use crate::model::ruleset::Family;
use std::net::IpAddr;

/// The addresses and ports of a translation, and how the kernel chooses from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatRange {
    /// First and last address; `None` leaves the choice to the target.
    pub addresses: Option<[IpAddr; 2]>,
    /// The ports; `None` leaves the port as it is.
    pub ports: Option<PortRange>,
    /// The original port that becomes the first of `ports`, where ports are shifted.
    pub base: Option<u16>,
    /// `NF_NAT_RANGE_*`.
    flags: u32,
}

const MAP_IPS: u32 = 1;
const PROTO_SPECIFIED: u32 = 1 << 1;
const PROTO_RANDOM: u32 = 1 << 2;
const PERSISTENT: u32 = 1 << 3;
const PROTO_RANDOM_FULLY: u32 = 1 << 4;
const PROTO_OFFSET: u32 = 1 << 5;

impl NatRange {
    /// `struct nf_nat_ipv4_multi_range_compat`: a count that is 1, and one range.
    pub(super) fn v4_compat(fields: Fields<'_>) -> Option<Self> {
        let range = Fields(fields.0.get(4..)?);
        let one = fields.u32(0)? == 1;
        let layout = NatLayout { min_address: 4, max_address: 8, min_port: 12, base: None };
        Self::read(range, Family::V4, &layout).filter(|_| one)
    }

    /// `struct nf_nat_range`, and `struct nf_nat_range2` when it `has_base`.
    pub(super) fn inet(fields: Fields<'_>, family: Family, has_base: bool) -> Option<Self> {
        let base = has_base.then_some(40);
        Self::read(fields, family, &NatLayout { min_address: 4, max_address: 20, min_port: 36, base })
    }

    fn read(fields: Fields<'_>, family: Family, layout: &NatLayout) -> Option<Self> {
        let flags = fields.u32(0)?;
        let addresses =
            [fields.address(layout.min_address, family)?, fields.address(layout.max_address, family)?];
        let ports = [fields.be16(layout.min_port)?, fields.be16(layout.min_port + 2)?];
        let base = match layout.base {
            Some(at) => Some(fields.be16(at)?),
            None => None,
        };
        let ports = match flags & PROTO_SPECIFIED {
            0 => None,
            _ => Some(PortRange::new(ports[0], ports[1])?),
        };
        let addresses = (flags & MAP_IPS != 0).then_some(addresses);
        Some(Self { addresses, ports, base: base.filter(|_| flags & PROTO_OFFSET != 0), flags })
    }

    /// `10.0.0.1-10.0.0.9:80-90`, as `--to-destination` prints it.
    pub(super) fn target(&self) -> String {
        let mut text = String::new();
        if let Some([first, last]) = self.addresses {
            text = if first == last { first.to_string() } else { format!("{first}-{last}") };
            if first.is_ipv6() && self.ports.is_some() {
                text = format!("[{text}]");
            }
        }
        match self.port_text() {
            Some(ports) => format!("{text}:{ports}"),
            None => text,
        }
    }

    /// `80-90`, as `--to-ports` prints it.
    pub(super) fn port_text(&self) -> Option<String> {
        let ports = self.ports?;
        Some(self.base.map_or_else(|| ports.to_string(), |base| format!("{ports}/{base}")))
    }

    /// ` --random`, ` --persistent`.
    pub(super) fn flag_text(&self) -> String {
        let options = [
            (PROTO_RANDOM, " --random"),
            (PROTO_RANDOM_FULLY, " --random-fully"),
            (PERSISTENT, " --persistent"),
        ];
        options.into_iter().filter(|(flag, _)| self.flags & flag != 0).map(|(_, option)| option).collect()
    }
}

/// Where the fields of one of the structures are.
struct NatLayout {
    min_address: usize,
    max_address: usize,
    min_port: usize,
    base: Option<usize>,
}
