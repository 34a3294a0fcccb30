//! A connection the probe makes, and where `trace` says that it arrives. Pure.

use super::arrival::Arrival;
use crate::policy::InterfaceName;
use crate::policy::istio::PROXY_ID;
use crate::ruleset::Ruleset;
use crate::trace::{Direction, Owner, Packet, PacketOutcome, Transport, trace};
use std::fmt;
use std::net::SocketAddr;

/// A connection to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) transport: Transport,
    pub(super) to: SocketAddr,
    pub(super) by: Caller,
}

/// Whose socket makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    /// Whoever runs the probe: anybody but the proxy.
    Application,
    /// The proxy's user.
    Proxy,
    /// Whoever runs the probe, with this mark on its packets.
    Marked(u32),
}

impl Call {
    /// The port where it should arrive.
    pub(super) fn port(&self, rules: &Ruleset) -> u16 {
        let by = InterfaceName::loopback();
        let packet = Packet::first(Direction::Leaves { by }, self.transport, self.to, self.to);
        let owned = |uid| packet.clone().owned_by(Owner { uid, gid: 0 });
        let packet = match self.by {
            Caller::Application => owned(0),
            Caller::Proxy => owned(PROXY_ID),
            Caller::Marked(mark) => owned(0).marked(mark),
        };
        match trace(rules, &packet).outcome {
            PacketOutcome::Redirected(port) | PacketOutcome::Intercepted(port) => port.get(),
            PacketOutcome::Untouched | PacketOutcome::Dropped => self.to.port(),
        }
    }

    /// Where it should arrive, and for whom the one who takes it should think that it was meant.
    pub(super) fn expected(&self, rules: &Ruleset) -> Arrival {
        Arrival::At { port: self.port(rules), meant_for: self.to }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = if self.transport == Transport::Tcp { "TCP" } else { "UDP" };
        let by = match self.by {
            Caller::Application => "the application",
            Caller::Proxy => "the proxy",
            Caller::Marked(_) => "a marked socket",
        };
        write!(f, "{transport} to {} by {by}", self.to)
    }
}
