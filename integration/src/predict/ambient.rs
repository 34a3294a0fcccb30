//! Predicts the outcome of a connection of an ambient pod in the recorded network from istio-cni's rules. Those of nat
//! are written here row by row as istio-cni writes them (docs/RULES.md, section 7.1). Uses no rule of Gybe and sends no
//! packet.

use crate::predict::is_own;
use crate::vectors::{Flow, Location};
use gybe_demo::testnet::outcome::ConnectionOutcome;
use gybe_netfilter::model::policy::ambient::{AmbientDns, AmbientInbound, AmbientPolicy};
use gybe_netfilter::model::policy::{Families, Port};
use gybe_netfilter::model::ruleset::Transport;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where istio-cni's rules lead a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// It keeps its destination.
    Own,
    /// It goes to this port of ztunnel.
    Ztunnel(Port),
}

impl Flow {
    /// Returns where istio-cni's rules lead it.
    pub fn ambient_destination(&self, policy: &AmbientPolicy) -> Destination {
        let ztunnel = |port| Port::new(port).map_or(Destination::Own, Destination::Ztunnel);
        let has_ipv6 = policy.families == Families::V4AndV6;
        if self.to.is_ipv6() && !has_ipv6 {
            return Destination::Own;
        }
        match self.from {
            Location::Pod => self.row_of_output(policy).map_or(Destination::Own, ztunnel),
            _ => self.row_of_prerouting(policy).map_or(Destination::Own, ztunnel),
        }
    }

    /// nat PREROUTING, for a packet that arrives from outside and so without a mark.
    fn row_of_prerouting(&self, policy: &AmbientPolicy) -> Option<u16> {
        let (tcp, to) = (self.transport == Transport::Tcp, self.to);
        let interface = match self.from {
            Location::Vm => "eth1",
            Location::Sec => "net1",
            Location::Peer | Location::Pod => "eth0",
        };
        // -i IF -p tcp -j REDIRECT --to-ports 15001
        if policy.virtual_interfaces.iter().any(|name| name.as_str() == interface) && tcp {
            return Some(15001);
        }
        if policy.inbound == AmbientInbound::Bypassed {
            return None;
        }
        // -s SNATIP -p tcp -j ACCEPT
        if self.source.is_some_and(|source| is_probe(policy, source)) && tcp {
            return None;
        }
        // ! -d 127.0.0.1/32 -p tcp ! --dport 15008 -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15006
        (!is_localhost(to.ip()) && tcp && to.port() != 15008).then_some(15006)
    }

    /// nat OUTPUT.
    fn row_of_output(&self, policy: &AmbientPolicy) -> Option<u16> {
        let (tcp, to) = (self.transport == Transport::Tcp, self.to);
        let (udp, over_lo) = (!tcp, is_own(to.ip()));
        let mark = self.mark.unwrap_or_default() & 0xfff;
        // -d SNATIP -p tcp -j ACCEPT
        if is_probe(policy, to.ip()) && tcp {
            return None;
        }
        if policy.dns == AmbientDns::Captured {
            // ! -o lo -p udp -m mark ! --mark 0x539/0xfff --dport 53 -j REDIRECT --to-port 15053
            if !over_lo && udp && mark != 0x539 && to.port() == 53 {
                return Some(15053);
            }
            // ! -d 127.0.0.1/32 -p tcp --dport 53 -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15053
            if !is_localhost(to.ip()) && tcp && to.port() == 53 && mark != 0x539 {
                return Some(15053);
            }
        }
        // -p tcp -m mark --mark 0x111/0xfff -j ACCEPT
        if tcp && mark == 0x111 {
            return None;
        }
        // ! -d 127.0.0.1/32 -o lo -j ACCEPT
        if !is_localhost(to.ip()) && over_lo {
            return None;
        }
        // ! -d 127.0.0.1/32 -p tcp -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15001
        (!is_localhost(to.ip()) && tcp && mark != 0x539).then_some(15001)
    }

    /// Returns its outcome under `policy`.
    pub fn ambient_outcome(&self, policy: &AmbientPolicy) -> ConnectionOutcome {
        let is_redirected_family = self.to.is_ipv4() || policy.families == Families::V4AndV6;
        match self.ambient_destination(policy) {
            Destination::Ztunnel(port) => self.redirected_to(port),
            // mangle: what ztunnel sends (0x539) marks the connection (0x111); what the application sends in it takes
            // that mark, and `ip rule fwmark 0x111/0xfff lookup 100` delivers it to the pod itself.
            Destination::Own
                if self.has_the_clients_address() && self.has_ztunnels_mark() && is_redirected_family =>
            {
                self.in_the_pod(self.to)
            }
            Destination::Own if self.has_the_clients_address() => ConnectionOutcome::Timeout,
            Destination::Own => self.outcome_without_rules(),
        }
    }

    /// Reports whether a socket of the pod uses an address of another host.
    fn has_the_clients_address(&self) -> bool {
        self.from == Location::Pod && self.source.is_some_and(|source| !is_own(source))
    }

    fn has_ztunnels_mark(&self) -> bool {
        self.mark.is_some_and(|mark| mark & 0xfff == 0x539)
    }
}

fn is_probe(policy: &AmbientPolicy, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address == policy.probes.v4(),
        IpAddr::V6(address) => address == policy.probes.v6(),
    }
}

/// 127.0.0.1/32, ::1/128.
fn is_localhost(address: IpAddr) -> bool {
    address == Ipv4Addr::LOCALHOST || address == Ipv6Addr::LOCALHOST
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::{in_the_pod, trace_flow};
    use crate::vectors::ambient::recorded;
    use gybe_netfilter::compile::compile_ambient;
    use gybe_netfilter::inspect::live::Outcome;

    #[test]
    fn istio_cnis_rules_predict_every_recorded_flow() {
        for vector in recorded().unwrap() {
            for flow in &vector.flows {
                let predicted = flow.ambient_outcome(&vector.policy);
                let recorded = &flow.with_rules;
                assert!(
                    flow.agrees(&predicted, recorded),
                    "{} {}: recorded {recorded}, predicted {predicted}",
                    vector.name,
                    flow.id
                );
            }
        }
    }

    #[test]
    fn trace_leads_every_flow_where_istio_cnis_rules_lead_it() {
        for vector in recorded().unwrap() {
            let rules = in_the_pod(&compile_ambient(&vector.policy)).unwrap();
            for flow in &vector.flows {
                let first = match flow.ambient_destination(&vector.policy) {
                    Destination::Own => Outcome::Untouched,
                    Destination::Ztunnel(port) => Outcome::Redirected(port),
                };
                let outcome = match flow.ambient_outcome(&vector.policy) {
                    ConnectionOutcome::Timeout if flow.has_the_clients_address() => Outcome::RepliesLost,
                    _ => first,
                };
                let trace = trace_flow(&rules, flow).unwrap();
                assert_eq!(
                    (trace.first, trace.outcome),
                    (first, outcome),
                    "{} {} by {:?}",
                    vector.name,
                    flow.id,
                    trace.decided_by
                );
            }
        }
    }
}
