//! Targets as `iptables-save` prints them (extensions/libxt_*.c, iptables 1.8.9).

use super::{
    ConnectionMarkChange, NOTRACK_ALIAS, Tracking, XtTarget, ZONE_DIR_ORIG, ZONE_DIR_REPL, ZONE_MARK,
};
use crate::xt::fields::quoted;
use crate::xt::nat::NatRange;
use std::fmt;

impl fmt::Display for XtTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str("-j ACCEPT"),
            Self::Drop => f.write_str("-j DROP"),
            Self::Return => f.write_str("-j RETURN"),
            Self::Queue => f.write_str("-j QUEUE"),
            Self::Jump(chain) => write!(f, "-j {chain}"),
            Self::Goto(chain) => write!(f, "-g {chain}"),
            Self::Redirect(nat) => write!(f, "-j REDIRECT{}", to_ports(nat)),
            Self::Masquerade(nat) => write!(f, "-j MASQUERADE{}", to_ports(nat)),
            Self::Dnat(nat) => write!(f, "-j DNAT --to-destination {}{}", nat.target(), nat.flag_text()),
            Self::Snat(nat) => write!(f, "-j SNAT --to-source {}{}", nat.target(), nat.flag_text()),
            Self::Tproxy { address, port, value, mask } => {
                write!(f, "-j TPROXY --on-port {port} --on-ip {address} --tproxy-mark {value:#x}/{mask:#x}")
            }
            Self::SetMark { value, mask } => write!(f, "-j MARK --set-xmark {value:#x}/{mask:#x}"),
            Self::ConnectionMark(change) => write!(f, "-j CONNMARK {change}"),
            Self::Tracking(tracking) => tracking.fmt(f),
            Self::Log { prefix, level, flags } => write!(f, "-j LOG{}", log(prefix, *level, *flags)),
            Self::NfLog { prefix, group } => {
                f.write_str("-j NFLOG")?;
                if !prefix.is_empty() {
                    write!(f, " --nflog-prefix {}", quoted(prefix))?;
                }
                if *group != 0 { write!(f, " --nflog-group {group}") } else { Ok(()) }
            }
            Self::Reject { with } => write!(f, "-j REJECT --reject-with {with}"),
            Self::NfQueue { queue, queues, bypass } => {
                match queues {
                    0 | 1 => write!(f, "-j NFQUEUE --queue-num {queue}")?,
                    more => {
                        let last = queue.saturating_add(more - 1);
                        write!(f, "-j NFQUEUE --queue-balance {queue}:{last}")?;
                    }
                }
                f.write_str(if *bypass { " --queue-bypass" } else { "" })
            }
            Self::Nothing(name) | Self::Unknown(name) => write!(f, "-j {name} [unknown]"),
        }
    }
}

fn to_ports(nat: &NatRange) -> String {
    let ports = nat.port_text().map(|ports| format!(" --to-ports {ports}"));
    format!("{}{}", ports.unwrap_or_default(), nat.flag_text())
}

impl fmt::Display for ConnectionMarkChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set { value, mask } => write!(f, "--set-xmark {value:#x}/{mask:#x}"),
            Self::Save { packet, connection } => {
                write!(f, "--save-mark --nfmask {packet:#x} --ctmask {connection:#x}")
            }
            Self::Restore { packet, connection } => {
                write!(f, "--restore-mark --nfmask {packet:#x} --ctmask {connection:#x}")
            }
        }
    }
}

impl fmt::Display for Tracking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.flags & NOTRACK_ALIAS != 0 {
            return f.write_str("-j NOTRACK");
        }
        f.write_str("-j CT")?;
        if self.is_untracked() {
            f.write_str(" --notrack")?;
        }
        for (option, name) in [("--helper", &self.helper), ("--timeout", &self.timeout)] {
            if !name.is_empty() {
                write!(f, " {option} {name}")?;
            }
        }
        let option = match self.flags {
            flags if flags & ZONE_DIR_ORIG != 0 => "--zone-orig",
            flags if flags & ZONE_DIR_REPL != 0 => "--zone-reply",
            _ => "--zone",
        };
        match (self.flags & ZONE_MARK, self.zone) {
            (0, 0) => Ok(()),
            (0, zone) => write!(f, " {option} {zone}"),
            _ => write!(f, " {option} mark"),
        }
    }
}

fn log(prefix: &str, level: u8, flags: u8) -> String {
    let mut text = String::new();
    if !prefix.is_empty() {
        text.push_str(&format!(" --log-prefix {}", quoted(prefix)));
    }
    if level != 4 {
        text.push_str(&format!(" --log-level {level}"));
    }
    let options = [
        (0x01, " --log-tcp-sequence"),
        (0x02, " --log-tcp-options"),
        (0x04, " --log-ip-options"),
        (0x08, " --log-uid"),
        (0x20, " --log-macdecode"),
    ];
    options.iter().filter(|(bit, _)| flags & bit != 0).for_each(|(_, option)| text.push_str(option));
    text
}
