//! The arguments of an iptables rule. All of them are rendered here from typed values, so no external text can become
//! an option.
//!
//! Spelling and order are those of `iptables-save` (1.8.9, equal for both variants), so that a rule reads back exactly
//! as it was written.

use crate::model::policy::{InterfaceName, MaskedMark, Port, PortRange};
use crate::model::ruleset::{ConnectionState, Family, Is, RuleId, Transport};
use crate::xt::colon;
use ipnet::IpNet;

/// The port of a packet that a match tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PortSide {
    Source,
    Destination,
}

/// One match of an iptables rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    Source(Is, IpNet),
    Destination(Is, IpNet),
    InInterface(InterfaceName),
    OutInterface(InterfaceName),
    Protocol(Transport),
    Port(Transport, PortSide, Is, PortRange),
    /// The multiport match: at most 15 slots, of which a range takes two.
    Ports(PortSide, Is, Vec<PortRange>),
    Uid(u32),
    Gid(u32),
    Mark(Is, MaskedMark),
    ConnectionMark(MaskedMark),
    State(ConnectionState),
    Comment(RuleId),
}

/// The target of an iptables rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RuleTarget {
    Return,
    Accept,
    Drop,
    Redirect(Port),
    Tproxy {
        family: Family,
        port: Port,
        mark: u32,
    },
    SetMark(u32),
    SetConnectionMark(MaskedMark),
    SaveMark,
    RestoreMark,
    Zone(u16),
    /// `-j`: a `RETURN` in that chain continues after this rule.
    Jump(String),
    /// `-g`: a `RETURN` in that chain continues in the chain that jumped to this one.
    Goto(String),
}

type Words = Vec<String>;

fn push(words: &mut Words, more: &[&str]) {
    words.extend(more.iter().map(|word| (*word).to_owned()));
}

fn invert(words: &mut Words, is: Is) {
    if is == Is::NotIn {
        push(words, &["!"]);
    }
}

fn flag(end: PortSide) -> &'static str {
    match end {
        PortSide::Source => "--sport",
        PortSide::Destination => "--dport",
    }
}

impl Token {
    pub(super) fn write(&self, words: &mut Words) {
        match self {
            Self::Source(is, net) => basic(words, *is, "-s", &net.to_string()),
            Self::Destination(is, net) => basic(words, *is, "-d", &net.to_string()),
            Self::InInterface(name) => basic(words, Is::In, "-i", name.as_str()),
            Self::OutInterface(name) => basic(words, Is::In, "-o", name.as_str()),
            Self::Protocol(protocol) => basic(words, Is::In, "-p", protocol.name()),
            Self::Port(protocol, end, is, range) => {
                test(words, protocol.name(), *is, [flag(*end), &colon(*range)]);
            }
            Self::Ports(end, is, ranges) => {
                let list = ranges.iter().copied().map(colon).collect::<Vec<_>>().join(",");
                test(words, "multiport", *is, [&format!("{}s", flag(*end)), &list]);
            }
            Self::Uid(id) => test(words, "owner", Is::In, ["--uid-owner", &id.to_string()]),
            Self::Gid(id) => test(words, "owner", Is::In, ["--gid-owner", &id.to_string()]),
            Self::Mark(is, mark) => test(words, "mark", *is, ["--mark", &mark.to_string()]),
            Self::ConnectionMark(mark) => test(words, "connmark", Is::In, ["--mark", &mark.to_string()]),
            Self::State(state) => test(words, "conntrack", Is::In, ["--ctstate", state_words(*state)]),
            Self::Comment(id) => test(words, "comment", Is::In, ["--comment", id.0]),
        }
    }

    /// The position in a rule: `iptables-save` prints the basic matches first, in this order.
    pub(super) fn rank(&self) -> u8 {
        match self {
            Self::Source(..) => 0,
            Self::Destination(..) => 1,
            Self::InInterface(_) => 2,
            Self::OutInterface(_) => 3,
            Self::Protocol(_) => 4,
            Self::Comment(_) => 6,
            _ => 5,
        }
    }
}

fn basic(words: &mut Words, is: Is, option: &str, value: &str) {
    invert(words, is);
    push(words, &[option, value]);
}

fn test(words: &mut Words, module: &str, is: Is, [option, value]: [&str; 2]) {
    push(words, &["-m", module]);
    invert(words, is);
    push(words, &[option, value]);
}

fn state_words(state: ConnectionState) -> &'static str {
    match state {
        ConnectionState::EstablishedOrRelated => "RELATED,ESTABLISHED",
        ConnectionState::Invalid => "INVALID",
    }
}

impl RuleTarget {
    pub(super) fn write(&self, words: &mut Words) {
        match self {
            Self::Return => push(words, &["-j", "RETURN"]),
            Self::Accept => push(words, &["-j", "ACCEPT"]),
            Self::Drop => push(words, &["-j", "DROP"]),
            Self::Redirect(port) => push(words, &["-j", "REDIRECT", "--to-ports", &port.to_string()]),
            Self::Tproxy { family, port, mark } => {
                let anywhere = match family {
                    Family::V4 => "0.0.0.0",
                    Family::V6 => "::",
                };
                push(words, &["-j", "TPROXY", "--on-port", &port.to_string(), "--on-ip", anywhere]);
                push(words, &["--tproxy-mark", &format!("{mark:#x}/0xffffffff")]);
            }
            Self::SetMark(mark) => {
                push(words, &["-j", "MARK", "--set-xmark", &format!("{mark:#x}/0xffffffff")]);
            }
            Self::SetConnectionMark(mark) => {
                let mark = format!("{:#x}/{:#x}", mark.value(), mark.mask());
                push(words, &["-j", "CONNMARK", "--set-xmark", &mark]);
            }
            Self::SaveMark => connmark(words, "--save-mark"),
            Self::RestoreMark => connmark(words, "--restore-mark"),
            Self::Zone(zone) => push(words, &["-j", "CT", "--zone", &zone.to_string()]),
            Self::Jump(chain) => push(words, &["-j", chain]),
            Self::Goto(chain) => push(words, &["-g", chain]),
        }
    }
}

fn connmark(words: &mut Words, what: &str) {
    push(words, &["-j", "CONNMARK", what, "--nfmask", "0xffffffff", "--ctmask", "0xffffffff"]);
}
