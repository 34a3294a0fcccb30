//! Where a connection in the recorded network ends when no rule touches it: who listens where.

use crate::vectors::{Flow, Location};
use gybe_installer::testnet::outcome::{ConnectionOutcome, Reply};
use gybe_netfilter::trace::Transport;
use std::net::{IpAddr, SocketAddr};

impl Flow {
    /// Where it ends when no rule touches it.
    pub fn untouched(&self) -> ConnectionOutcome {
        let to = self.to;
        let is_one_of = |addresses: [&str; 2]| addresses.contains(&to.ip().to_string().as_str());
        if is_own(to.ip()) {
            self.in_the_pod(to)
        } else if self.is_forwarded() && is_one_of(VM) {
            ConnectionOutcome::Refused
        } else {
            let by = if self.from == Location::Pod && is_one_of(SEC) { "ext-sec" } else { "ext-peer" };
            self.answered_by(by.into(), None)
        }
    }

    /// Who in the pod answers at `to`, if anybody listens there.
    pub fn in_the_pod(&self, to: SocketAddr) -> ConnectionOutcome {
        let port = to.port();
        let agent = port == 15053 && ["127.0.0.1", "::1"].contains(&to.ip().to_string().as_str());
        let by = match self.transport {
            Transport::Tcp if PROXY_PORTS.contains(&port) || agent => "envoy",
            Transport::Tcp if APP_PORTS.contains(&port) => "app",
            Transport::Udp if agent => "envoy",
            Transport::Udp if [53, 8080].contains(&port) => "app",
            _ => return ConnectionOutcome::Refused,
        };
        let original = (self.transport == Transport::Tcp).then_some(self.to);
        self.answered_by(format!("{by}:{port}"), original)
    }

    fn answered_by(&self, by: String, original: Option<SocketAddr>) -> ConnectionOutcome {
        let source = self.packet().map_or(self.to.ip(), |packet| packet.source.ip());
        ConnectionOutcome::Answered(Reply { by, original, source })
    }

    /// Does it only pass through the pod?
    pub fn is_forwarded(&self) -> bool {
        self.from != Location::Pod && !is_own(self.to.ip())
    }
}

const VM: [&str; 2] = ["192.168.77.2", "fd00:77::2"];
const SEC: [&str; 2] = ["172.30.0.1", "fd00:30::1"];
const PROXY_PORTS: [u16; 7] = [15000, 15001, 15006, 15008, 15020, 15021, 15090];
const APP_PORTS: [u16; 6] = [22, 53, 4000, 5000, 8080, 9000];

/// Ports of the pod at which a transparent socket listens.
pub const TRANSPARENT: [u16; 2] = [15001, 15006];

/// Is it an address of the pod's own?
pub(crate) fn is_own(ip: IpAddr) -> bool {
    const OWN: [&str; 6] =
        ["10.244.0.10", "192.168.77.1", "172.30.0.10", "fd00:10::10", "fd00:77::1", "fd00:30::10"];
    ip.is_loopback() || OWN.contains(&ip.to_string().as_str())
}
