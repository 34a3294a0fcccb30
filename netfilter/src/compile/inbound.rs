//! NAT of inbound connections: which of them are redirected to the proxy.
//!
//! ```text
//! arrives ─► nat-prerouting ─ from a virtual machine ─► 15001
//!                           ─ excluded, tunnel       ─► unchanged
//!                           ─ captured               ─► 15006
//! ```

use super::{TCP, dport, only, to};
use crate::model::policy::{Destinations, Inbound, Mode, PortSet, RedirectPolicy};
use crate::model::ruleset::{Chain, ChainName, Match, Verdict};

pub(super) fn prerouting(p: &RedirectPolicy) -> Chain {
    let from_machines = || Match::InInterface(p.virtual_interfaces.clone());
    let has_machines = !p.virtual_interfaces.is_empty();
    let mut chain = Chain::new(ChainName::NatPrerouting);
    // The outbound traffic of a virtual machine arrives here. Before the excluded interfaces: an interface in both
    // lists counts as virtual (quirk E4).
    if has_machines {
        chain = machines_to_proxy(chain, p, &from_machines());
    }
    // Traffic of a virtual machine that is not redirected returns here, so that no inbound rule matches it.
    chain = chain.rule_if(has_machines, "virtual-interface", [from_machines()], Verdict::Return);
    // In TPROXY mode, rules in mangle intercept inbound traffic; NAT has no inbound rules.
    if p.mode != Mode::Redirect {
        return chain;
    }
    let excluded = !p.excluded_interfaces.is_empty() && p.captures_inbound();
    let from_excluded = Match::InInterface(p.excluded_interfaces.clone());
    chain = chain.rule_if(excluded, "excluded-interface-in", [from_excluded], Verdict::Return);
    inbound_to_proxy(chain, p)
}

fn machines_to_proxy(chain: Chain, p: &RedirectPolicy, from_machines: &Match) -> Chain {
    let redirect = Verdict::Redirect(p.outbound_port);
    match &p.outbound.included_to {
        Destinations::All => chain.rule("virtual-interface-to-proxy", [from_machines.clone(), TCP], redirect),
        Destinations::Only(nets) => chain.rule_per_family(
            p.per_family(["virtual-interface-to-proxy-v4", "virtual-interface-to-proxy-v6"], nets),
            |nets| vec![from_machines.clone(), to(nets), TCP],
            redirect,
        ),
    }
}

fn inbound_to_proxy(chain: Chain, p: &RedirectPolicy) -> Chain {
    let redirect = Verdict::Redirect(p.inbound_port);
    let to_ports = |ports: &PortSet| [TCP, dport(ports.clone())];
    match &p.inbound {
        Inbound::AllBut(excluded) => chain
            // The proxy itself listens on the tunnel port.
            .rule("tunnel-port", to_ports(&only(p.tunnel_port.get())), Verdict::Return)
            .rule_if(!excluded.is_empty(), "inbound-excluded-port", to_ports(excluded), Verdict::Return)
            .rule("inbound-to-proxy", [TCP], redirect),
        Inbound::Only(ports) => {
            let ports = ports.without(p.tunnel_port);
            chain.rule_if(!ports.is_empty(), "inbound-to-proxy", to_ports(&ports), redirect)
        }
    }
}
