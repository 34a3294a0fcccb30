//! What `trace` says of a recorded flow, held against what became of it. No packet is sent here.

use crate::vectors::{Flow, Place};
use gybe_installer::demo::fate::Fate;
use gybe_netfilter::policy::{InterfaceName, InterfaceNameError};
use gybe_netfilter::ruleset::Ruleset;
use gybe_netfilter::trace::{self, Direction, Packet, trace};
use ipnet::IpNet;
use std::net::SocketAddr;

impl Flow {
    /// Its first packet, as the pod's rules see it.
    ///
    /// # Errors
    /// Never, as long as this file names real interfaces.
    pub fn packet(&self) -> Result<Packet, InterfaceNameError> {
        let (name, [v4, v6]) = match self.from {
            Place::Pod => self.leaves_by(),
            Place::Peer => ("eth0", ["10.244.0.1", "fd00:10::1"]),
            Place::Vm => ("eth1", ["192.168.77.2", "fd00:77::2"]),
            Place::Sec => ("net1", ["172.30.0.1", "fd00:30::1"]),
        };
        let by = InterfaceName::parse(name)?;
        let text = if self.to.is_ipv4() { v4 } else { v6 };
        // An address bound first stays; to itself the pod speaks from the address it asks for.
        let chosen = self.source.or_else(|| text.parse().ok()).unwrap_or(self.to.ip());
        let source = SocketAddr::new(chosen, self.source_port.unwrap_or(40000));
        let mark = self.mark.unwrap_or(0);
        Ok(match self.from {
            Place::Pod => Packet::first(Direction::Leaves { by }, self.transport, source, self.to)
                .owned_by(self.owner)
                .marked(mark),
            _ => Packet::first(Direction::Arrives { by }, self.transport, source, self.to),
        })
    }

    /// The interface routing chooses in the pod, and the addresses it gives a packet there.
    fn leaves_by(&self) -> (&'static str, [&'static str; 2]) {
        let to = self.to.ip();
        let inside = |nets: [&str; 2]| {
            nets.iter().filter_map(|net| net.parse::<IpNet>().ok()).any(|net| net.contains(&to))
        };
        if to.is_loopback() {
            ("lo", ["127.0.0.1", "::1"])
        } else if OWN.iter().any(|own| own.parse() == Ok(to)) {
            ("lo", ["", ""])
        } else if inside(["172.30.0.0/24", "fd00:30::/64"]) {
            ("net1", ["172.30.0.10", "fd00:30::10"])
        } else if inside(["192.168.77.0/24", "fd00:77::/64"]) {
            ("eth1", ["192.168.77.1", "fd00:77::1"])
        } else {
            ("eth0", ["10.244.0.10", "fd00:10::10"])
        }
    }
}

/// The pod's own addresses beside loopback.
const OWN: [&str; 6] =
    ["10.244.0.10", "fd00:10::10", "192.168.77.1", "fd00:77::1", "172.30.0.10", "fd00:30::10"];

/// Does `found` follow from what `trace` says of the flow's first packet?
///
/// `trace` knows rules, not routes or listeners: a connection that nobody answers it cannot
/// foretell, and one that the rules leave alone ends where it ends without them. Only a marked
/// connection may be left alone and be answered all the same where it was not before: its answers
/// are what the rules bring back.
pub fn foretells(foretold: trace::Fate, flow: &Flow, found: &Fate) -> bool {
    let Fate::Answered(answer) = found else { return true };
    match foretold {
        trace::Fate::Redirected(port) | trace::Fate::Intercepted(port) => {
            let turned = answer.by == format!("envoy:{port}");
            turned && answer.original.is_none_or(|original| original == flow.to)
        }
        trace::Fate::Untouched => match &flow.without_rules {
            Fate::Answered(before) => answer.by == before.by,
            _ => answer.by == format!("app:{}", flow.to.port()),
        },
        trace::Fate::Dropped => false,
    }
}

/// What `trace` says of the flow under these rules.
///
/// # Errors
/// Never, as long as this file names real interfaces.
pub fn foretell(rules: &Ruleset, flow: &Flow) -> Result<trace::Trace, InterfaceNameError> {
    Ok(trace(rules, &flow.packet()?))
}
