//! The match `conntrack`, and `state`, which tests a part of the states of `conntrack`
//! (include/uapi/linux/netfilter/xt_conntrack.h, xt_state.h).

use super::fields::{Fields, colon, is, not};
use crate::model::policy::PortRange;
use crate::model::ruleset::{Family, Is};
use std::fmt;
use std::net::IpAddr;

/// Tests of a packet's connection; all of them must apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conntrack {
    /// In the order in which `iptables-save` prints them.
    pub tests: Vec<ConntrackTest>,
    /// Printed as `-m state`.
    is_state: bool,
}

/// One test of a packet's connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConntrackTest {
    /// The packet's state is one of these.
    State(Is, States),
    /// The connection's transport protocol.
    Protocol(Is, u16),
    /// An address of the connection, masked. The option names which: `--ctorigsrc`.
    Address {
        /// Which address.
        option: &'static str,
        /// Equal or not.
        is: Is,
        /// What it is compared with.
        address: IpAddr,
        /// The bits that are compared.
        mask: IpAddr,
    },
    /// A port of the connection. The option names which: `--ctorigsrcport`.
    Port {
        /// Which port.
        option: &'static str,
        /// Inside or outside.
        is: Is,
        /// The ports.
        range: PortRange,
    },
    /// The connection has any of these `IPS_*` bits, which is never so for zero (`conntrack_mt`,
    /// net/netfilter/xt_conntrack.c, v6.18).
    Status(Is, u16),
    /// The seconds until the connection's entry expires are in this inclusive range.
    Expires(Is, [u32; 2]),
    /// The packet travels in the connection's original direction.
    Original(Is),
}

/// A set of connection states: `XT_CONNTRACK_STATE_*` and `XT_CONNTRACK_STATE_BIT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct States(u16);

impl States {
    /// The packet belongs to no connection, and is not exempt from tracking.
    pub const INVALID: Self = Self(1);
    /// The packet belongs to a connection with packets in both directions.
    pub const ESTABLISHED: Self = Self(1 << 1);
    /// The packet begins a connection that another one expects, or is an ICMP error about one.
    pub const RELATED: Self = Self(1 << 2);
    /// The packet belongs to a connection without a reply so far.
    pub const NEW: Self = Self(1 << 3);
    /// The connection's source is translated.
    pub const SNAT: Self = Self(1 << 6);
    /// The connection's destination is translated.
    pub const DNAT: Self = Self(1 << 7);
    /// The packet is exempt from tracking.
    pub const UNTRACKED: Self = Self(1 << 8);

    /// In the order in which `iptables-save` prints them.
    const NAMES: [(Self, &'static str); 7] = [
        (Self::INVALID, "INVALID"),
        (Self::NEW, "NEW"),
        (Self::RELATED, "RELATED"),
        (Self::ESTABLISHED, "ESTABLISHED"),
        (Self::UNTRACKED, "UNTRACKED"),
        (Self::SNAT, "SNAT"),
        (Self::DNAT, "DNAT"),
    ];

    /// Reports whether any of `other` is in the set.
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl fmt::Display for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMES.iter().filter(|(state, _)| self.intersects(*state)).map(|(_, name)| *name);
        f.write_str(&names.collect::<Vec<_>>().join(","))
    }
}

/// `XT_STATE_INVALID` and `XT_STATE_BIT`: the states that have the same bits in `conntrack`.
const COMMON_STATES: u32 = 0xf;
/// `XT_STATE_UNTRACKED`, for which `conntrack` has another bit.
const STATE_UNTRACKED: u32 = 1 << 6;

/// `struct xt_state_info`.
pub(super) fn state(fields: Fields<'_>) -> Option<Conntrack> {
    let mask = fields.u32(0)?;
    let common = u16::try_from(mask & COMMON_STATES).ok()?;
    let untracked = if mask & STATE_UNTRACKED == 0 { 0 } else { States::UNTRACKED.0 };
    Some(Conntrack { tests: vec![ConntrackTest::State(Is::In, States(common | untracked))], is_state: true })
}

/// `struct xt_conntrack_mtinfo1` to `xt_conntrack_mtinfo3`, which have the same offsets up to the masks of state and
/// status. Revision 3 has ports in host byte order, and the upper bounds of ranges.
pub(super) fn conntrack(fields: Fields<'_>, revision: u8, family: Family) -> Option<Conntrack> {
    // `match_flags` and `invert_flags`.
    let (flags, inverted) = (u32::from(fields.u16(146)?), u32::from(fields.u16(148)?));
    let [states, status] = match revision {
        1 => [u16::from(fields.u8(150)?), u16::from(fields.u8(151)?)],
        2 | 3 => [fields.u16(150)?, fields.u16(152)?],
        _ => return None,
    };
    let mut tests = Vec::new();
    let mut add = |bit: u32, test: &dyn Fn(Is) -> Option<ConntrackTest>| -> Option<()> {
        if flags & bit != 0 {
            tests.push(test(is(inverted, bit))?);
        }
        Some(())
    };
    add(STATE, &|is| Some(ConntrackTest::State(is, States(states))))?;
    add(PROTO, &|is| Some(ConntrackTest::Protocol(is, fields.u16(136)?)))?;
    for (bit, option, at) in ADDRESSES {
        add(bit, &|is| {
            let (address, mask) = (fields.address(at, family)?, fields.address(at + 16, family)?);
            Some(ConntrackTest::Address { option, is, address, mask })
        })?;
    }
    for (bit, option, at, high) in PORTS {
        add(bit, &|is| {
            let range = match revision {
                3 => PortRange::new(fields.u16(at)?, fields.u16(high)?),
                _ => fields.be16(at).and_then(|port| PortRange::new(port, port)),
            };
            Some(ConntrackTest::Port { option, is, range: range? })
        })?;
    }
    add(STATUS, &|is| Some(ConntrackTest::Status(is, status)))?;
    add(EXPIRES, &|is| Some(ConntrackTest::Expires(is, [fields.u32(128)?, fields.u32(132)?])))?;
    add(DIRECTION, &|is| Some(ConntrackTest::Original(is)))?;
    Some(Conntrack { tests, is_state: flags & STATE_ALIAS != 0 })
}

// `XT_CONNTRACK_*`: the bits of `match_flags` and `invert_flags`.
const STATE: u32 = 1;
const PROTO: u32 = 1 << 1;
/// The bit, the option, and the offset of the address, which its mask of 16 bytes follows.
const ADDRESSES: [(u32, &str, usize); 4] = [
    (1 << 2, "--ctorigsrc", 0),
    (1 << 3, "--ctorigdst", 32),
    (1 << 4, "--ctreplsrc", 64),
    (1 << 5, "--ctrepldst", 96),
];
const STATUS: u32 = 1 << 6;
const EXPIRES: u32 = 1 << 7;
/// The bit, the option, the offset of the port, and that of the upper bound in revision 3.
const PORTS: [(u32, &str, usize, usize); 4] = [
    (1 << 8, "--ctorigsrcport", 138, 154),
    (1 << 9, "--ctorigdstport", 140, 156),
    (1 << 10, "--ctreplsrcport", 142, 158),
    (1 << 11, "--ctrepldstport", 144, 160),
];
const DIRECTION: u32 = 1 << 12;
const STATE_ALIAS: u32 = 1 << 13;

impl fmt::Display for Conntrack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_state { "-m state" } else { "-m conntrack" })?;
        for test in &self.tests {
            match test {
                ConntrackTest::State(is, states) => {
                    let option = if self.is_state { "--state" } else { "--ctstate" };
                    write!(f, " {}{option} {states}", not(*is))?;
                }
                other => write!(f, " {other}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for ConntrackTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State(is, states) => write!(f, "{}--ctstate {states}", not(*is)),
            Self::Protocol(is, number) => write!(f, "{}--ctproto {number}", not(*is)),
            Self::Address { option, is, address, mask } => {
                write!(f, "{}{option} {}", not(*is), masked(*address, *mask))
            }
            Self::Port { option, is, range } => write!(f, "{}{option} {}", not(*is), colon(*range)),
            Self::Status(is, status) => write!(f, "{}--ctstatus {}", not(*is), status_text(*status)),
            Self::Expires(is, [first, last]) if first == last => write!(f, "{}--ctexpire {first}", not(*is)),
            Self::Expires(is, [first, last]) => write!(f, "{}--ctexpire {first}:{last}", not(*is)),
            Self::Original(Is::In) => f.write_str("--ctdir ORIGINAL"),
            Self::Original(Is::NotIn) => f.write_str("--ctdir REPLY"),
        }
    }
}

/// The address alone if the mask has all bits, else with the prefix length, or with a mask that is no prefix.
fn masked(address: IpAddr, mask: IpAddr) -> String {
    let prefix = ipnet::ip_mask_to_prefix(mask);
    match prefix {
        Ok(length) if length == if address.is_ipv4() { 32 } else { 128 } => address.to_string(),
        Ok(length) => format!("{address}/{length}"),
        Err(_) => format!("{address}/{mask}"),
    }
}

/// The names of the `IPS_*` bits that iptables knows.
fn status_text(status: u16) -> String {
    let names = [(1, "EXPECTED"), (1 << 1, "SEEN_REPLY"), (1 << 2, "ASSURED"), (1 << 3, "CONFIRMED")];
    let names: Vec<_> = names.iter().filter(|(bit, _)| status & bit != 0).map(|(_, name)| *name).collect();
    if names.is_empty() { "NONE".to_owned() } else { names.join(",") }
}
