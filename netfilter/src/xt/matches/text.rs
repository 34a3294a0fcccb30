//! Matches as `iptables-save` prints them (extensions/libxt_*.c, iptables 1.8.9).

use super::{
    AddressTypes, IcmpTest, IdTest, IpRange, MarkTest, Multiport, OwnerTest, SocketTest, TcpFlags, TcpTest,
    TypeTest, UdpTest, XtMatch,
};
use crate::model::ruleset::{Family, Is};
use crate::xt::fields::{PortEnd, colon, not, quoted};
use std::fmt;
use std::net::IpAddr;

impl fmt::Display for XtMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = match self {
            Self::Tcp(test) => tcp(test),
            Self::Udp(test) => udp(test),
            Self::Multiport(test) => vec![multiport(test)],
            Self::Owner(test) => owner(test),
            Self::Mark(test) | Self::ConnectionMark(test) => vec![mark(*test)],
            Self::Conntrack(test) => return test.fmt(f),
            Self::Comment(text) => vec![format!("--comment {}", quoted(text))],
            Self::AddressType(test) => address_types(test),
            Self::PacketType { is, kind } => vec![packet_type(*is, *kind)],
            Self::Limit { period, burst } => limit(*period, *burst),
            Self::Icmp(test) => vec![icmp(test)],
            Self::IpRange(test) => ip_range(test),
            Self::Socket(test) => socket(*test),
            Self::Test(_) | Self::Unknown(_) => vec!["[unknown]".to_owned()],
        };
        write!(f, "-m {}", self.name())?;
        options.iter().try_for_each(|option| write!(f, " {option}"))
    }
}

impl XtMatch {
    /// The extension's name, as in `-m NAME`.
    pub fn name(&self) -> &str {
        match self {
            Self::Tcp(_) => "tcp",
            Self::Udp(_) => "udp",
            Self::Multiport(_) => "multiport",
            Self::Owner(_) => "owner",
            Self::Mark(_) => "mark",
            Self::ConnectionMark(_) => "connmark",
            Self::Conntrack(_) => "conntrack",
            Self::Comment(_) => "comment",
            Self::AddressType(_) => "addrtype",
            Self::PacketType { .. } => "pkttype",
            Self::Limit { .. } => "limit",
            Self::Icmp(IcmpTest { family: Family::V4, .. }) => "icmp",
            Self::Icmp(IcmpTest { family: Family::V6, .. }) => "icmp6",
            Self::IpRange(_) => "iprange",
            Self::Socket(_) => "socket",
            Self::Test(name) | Self::Unknown(name) => name,
        }
    }
}

fn tcp(test: &TcpTest) -> Vec<String> {
    let option = test.option().map(|(is, number)| format!("{}--tcp-option {number}", not(is)));
    let flags = test.flags.map(|TcpFlags { is, mask, set }| {
        format!("{}--tcp-flags {} {}", not(is), flag_names(mask), flag_names(set))
    });
    let ports = [test.source.option("--sport"), test.destination.option("--dport")];
    ports.into_iter().chain([option, flags]).flatten().collect()
}

fn flag_names(flags: u8) -> String {
    let names = ["FIN", "SYN", "RST", "PSH", "ACK", "URG"];
    let set = names.iter().enumerate().filter(|(bit, _)| flags & (1 << bit) != 0);
    let set: Vec<_> = set.map(|(_, name)| *name).collect();
    if set.is_empty() { "NONE".to_owned() } else { set.join(",") }
}

fn udp(test: &UdpTest) -> Vec<String> {
    [test.source.option("--sport"), test.destination.option("--dport")].into_iter().flatten().collect()
}

fn multiport(test: &Multiport) -> String {
    let option = match test.end {
        PortEnd::Source => "--sports",
        PortEnd::Destination => "--dports",
        PortEnd::Either => "--ports",
    };
    let ports: Vec<_> = test.ports.iter().copied().map(colon).collect();
    format!("{}{option} {}", not(test.is), ports.join(","))
}

fn owner(test: &OwnerTest) -> Vec<String> {
    let socket = test.socket.map(|is| format!("{}--socket-exists", not(is)));
    let ids = |option: &str, ids: Option<IdTest>| {
        ids.map(|IdTest { is, first, last }| match first == last {
            true => format!("{}{option} {first}", not(is)),
            false => format!("{}{option} {first}-{last}", not(is)),
        })
    };
    let groups = test.supplementary_groups.then(|| "--suppl-groups".to_owned());
    let options = [socket, ids("--uid-owner", test.uid), ids("--gid-owner", test.gid), groups];
    options.into_iter().flatten().collect()
}

fn mark(test: MarkTest) -> String {
    let MarkTest { is, value, mask } = test;
    match mask {
        u32::MAX => format!("{}--mark {value:#x}", not(is)),
        _ => format!("{}--mark {value:#x}/{mask:#x}", not(is)),
    }
}

fn address_types(test: &AddressTypes) -> Vec<String> {
    let option = |option: &str, types: Option<TypeTest>| {
        types.map(|TypeTest { is, types }| format!("{}{option} {}", not(is), type_names(types)))
    };
    let limits = [(test.limit_in, "--limit-iface-in"), (test.limit_out, "--limit-iface-out")];
    let limits = limits.into_iter().map(|(limited, option)| limited.then(|| option.to_owned()));
    let types = [option("--src-type", test.source), option("--dst-type", test.destination)];
    types.into_iter().chain(limits).flatten().collect()
}

/// By the number of the type (`RTN_*`).
const TYPES: [&str; 12] = [
    "UNSPEC",
    "UNICAST",
    "LOCAL",
    "BROADCAST",
    "ANYCAST",
    "MULTICAST",
    "BLACKHOLE",
    "UNREACHABLE",
    "PROHIBIT",
    "THROW",
    "NAT",
    "XRESOLVE",
];

fn type_names(types: u16) -> String {
    let names = TYPES.iter().enumerate().filter(|(bit, _)| types & (1 << bit) != 0);
    names.map(|(_, name)| *name).collect::<Vec<_>>().join(",")
}

fn packet_type(is: Is, kind: u32) -> String {
    let name = match kind {
        0 => "unicast".to_owned(),
        1 => "broadcast".to_owned(),
        2 => "multicast".to_owned(),
        other => other.to_string(),
    };
    format!("{}--pkt-type {name}", not(is))
}

/// `print_rate` of extensions/libxt_limit.c: the greatest unit that loses little.
fn limit(period: u32, burst: u32) -> Vec<String> {
    let units = [("day", 86_400u32), ("hour", 3600), ("min", 60), ("sec", 1)];
    let mut rate = String::new();
    for (name, seconds) in units {
        let unit = seconds * 10_000;
        let (Some(count), Some(rest)) = (unit.checked_div(period), unit.checked_rem(period)) else {
            break;
        };
        if !rate.is_empty() && (period > unit || count < rest) {
            break;
        }
        rate = format!("--limit {count}/{name}");
    }
    let burst = (burst != 5).then(|| format!("--limit-burst {burst}"));
    [Some(rate), burst].into_iter().flatten().collect()
}

fn icmp(test: &IcmpTest) -> String {
    let IcmpTest { family, is, kind, codes } = *test;
    let option = match family {
        Family::V4 => "--icmp-type",
        Family::V6 => "--icmpv6-type",
    };
    match (family, kind, codes) {
        (Family::V4, u8::MAX, _) => format!("{}{option} any", not(is)),
        (_, _, [0, u8::MAX]) => format!("{}{option} {kind}", not(is)),
        (_, _, [code, _]) => format!("{}{option} {kind}/{code}", not(is)),
    }
}

fn ip_range(test: &IpRange) -> Vec<String> {
    let range = |option: &str, range: Option<(Is, [IpAddr; 2])>| {
        range.map(|(is, [first, last])| format!("{}{option} {first}-{last}", not(is)))
    };
    [range("--src-range", test.source), range("--dst-range", test.destination)]
        .into_iter()
        .flatten()
        .collect()
}

fn socket(test: SocketTest) -> Vec<String> {
    let options = [
        (test.transparent, "--transparent"),
        (test.wildcard, "--nowildcard"),
        (test.restores_mark, "--restore-skmark"),
    ];
    options.into_iter().filter(|(set, _)| *set).map(|(_, option)| option.to_owned()).collect()
}
