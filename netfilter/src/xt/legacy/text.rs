//! A table as `iptables-legacy-save -c` prints it (iptables/iptables-save.c and iptables.c, 1.8.9).

use super::{
    AddressTest, BuiltIn, Counters, HeaderTest, InterfaceTest, LegacyChain, LegacyRule, LegacyTable,
};
use crate::xt::XtTarget;
use crate::xt::fields::not;
use std::fmt;
use std::net::IpAddr;

impl fmt::Display for LegacyTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "*{}", self.name)?;
        self.chains.iter().try_for_each(|chain| writeln!(f, ":{chain}"))?;
        for chain in &self.chains {
            let name = &chain.name;
            chain.rules.iter().try_for_each(|rule| writeln!(f, "{} -A {name}{rule}", rule.counted))?;
        }
        f.write_str("COMMIT\n")
    }
}

impl fmt::Display for LegacyChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.built_in {
            Some(BuiltIn { policy, counted, .. }) => {
                let policy = if *policy == XtTarget::Drop { "DROP" } else { "ACCEPT" };
                write!(f, "{} {policy} {counted}", self.name)
            }
            None => write!(f, "{} - [0:0]", self.name),
        }
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}:{}]", self.packets, self.bytes)
    }
}

/// Each word with a space before it.
impl fmt::Display for LegacyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.header.fmt(f)?;
        self.matches.iter().try_for_each(|test| write!(f, " {test}"))?;
        self.target.iter().try_for_each(|target| write!(f, " {target}"))
    }
}

impl fmt::Display for HeaderTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (option, test) in [("-s", self.source), ("-d", self.destination)] {
            if let Some(AddressTest { is, address, mask }) = test {
                write!(f, " {}{option} {address}/{}", not(is), prefix(mask))?;
            }
        }
        for (option, test) in [("-i", &self.in_interface), ("-o", &self.out_interface)] {
            if let Some(InterfaceTest { is, name, is_prefix }) = test {
                write!(f, " {}{option} {name}{}", not(*is), if *is_prefix { "+" } else { "" })?;
            }
        }
        if let Some((is, number)) = self.protocol {
            write!(f, " {}-p {}", not(is), protocol(number))?;
        }
        match self.fragment {
            Some(is) => write!(f, " {}-f", not(is)),
            None => Ok(()),
        }
    }
}

/// A mask's length, or the mask itself when it has gaps.
fn prefix(mask: IpAddr) -> String {
    ipnet::ip_mask_to_prefix(mask).map_or_else(|_| mask.to_string(), |length| length.to_string())
}

/// By the names of /etc/protocols that iptables also knows without it.
fn protocol(number: u16) -> String {
    let name = match number {
        1 => "icmp",
        6 => "tcp",
        17 => "udp",
        50 => "esp",
        51 => "ah",
        58 => "ipv6-icmp",
        132 => "sctp",
        136 => "udplite",
        other => return other.to_string(),
    };
    name.to_owned()
}
