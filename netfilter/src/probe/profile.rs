//! The policies and connections of a probe. Pure.
//!
//! All connections leave by `lo`, the only interface of a temporary namespace. The policies therefore capture a
//! loopback network as a destination, which extends captures to connections inside the pod (quirk E9, docs/ISTIO.md,
//! section 6).

use super::connection::{ProbeConnection, Sender};
use crate::apply::redirection::{Redirection, RuleVariant};
use crate::model::policy::istio::{OWN_POD_MARK, PROXY_ID, TPROXY_MARK, TPROXY_TABLE, TUNNEL_PORT};
use crate::model::policy::{
    Destinations, Dns, Families, Groups, InvalidPackets, Mode, Owners, RedirectPolicy,
};
use crate::model::ruleset::Transport;
use ipnet::IpNet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A kind of policy that a probe tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Profile {
    /// IPv4.
    V4,
    /// IPv4 and IPv6.
    V4AndV6,
    /// DNS queries to the agent, with conntrack zones.
    Dns,
    /// [`Profile::Dns`] without zones; tried only where that does not work.
    DnsWithoutZones,
    /// Inbound by transparent sockets and marks.
    Tproxy,
    /// Long lists: ports, networks and groups.
    Lists,
}

/// Addresses for documentation (RFC 5737, RFC 3849), on `lo` of the probe's namespace.
pub(super) const HOME: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
pub(super) const HOME_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
/// Inside a network that [`Profile::Lists`] excludes.
pub(super) const EXCLUDED: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 65));

impl Profile {
    /// The profiles that a probe tries first.
    pub const ALL: [Self; 5] = [Self::V4, Self::V4AndV6, Self::Dns, Self::Tproxy, Self::Lists];

    /// All profiles.
    pub const EVERY: [Self; 6] =
        [Self::V4, Self::V4AndV6, Self::Dns, Self::DnsWithoutZones, Self::Tproxy, Self::Lists];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "v4",
            Self::V4AndV6 => "v4+v6",
            Self::Dns => "dns",
            Self::DnsWithoutZones => "dns-without-zones",
            Self::Tproxy => "tproxy",
            Self::Lists => "lists",
        }
    }

    /// The profile to try where this one does not work.
    pub(super) fn degraded(self) -> Option<Self> {
        (self == Self::Dns).then_some(Self::DnsWithoutZones)
    }

    /// The policy.
    pub fn policy(self) -> RedirectPolicy {
        let mut policy = plain();
        match self {
            Self::V4 => {}
            Self::V4AndV6 => policy.families = Families::V4AndV6,
            Self::Dns | Self::DnsWithoutZones => policy.dns = Dns::All,
            Self::Tproxy => {
                policy.mode = Mode::Tproxy { mark: TPROXY_MARK, route_table: TPROXY_TABLE };
                policy.outbound.included_to = Destinations::All;
                policy.invalid = InvalidPackets::Drop;
            }
            Self::Lists => add_lists(&mut policy),
        }
        policy
    }

    /// The rules and routes of the policy.
    pub fn redirection(self) -> Redirection {
        let variant = match self {
            Self::DnsWithoutZones => RuleVariant::WithoutZones,
            _ => RuleVariant::Complete,
        };
        Redirection::of(&self.policy()).with_variant(variant)
    }

    /// The connections that show whether the rules work.
    pub(super) fn connections(self) -> Vec<ProbeConnection> {
        let connection = |transport, to: (IpAddr, u16), by, port| {
            let to = to.into();
            ProbeConnection { transport, to, by, port }
        };
        let tcp = |to, by, port| connection(Transport::Tcp, to, by, port);
        let udp = |by, port| connection(Transport::Udp, (HOME, 53), by, port);
        let from_proxy = |to| {
            let tunnel = TUNNEL_PORT.get();
            [tcp((to, 80), Sender::Proxy, 15006), tcp((to, tunnel), Sender::Proxy, tunnel)]
        };
        let app = |to, port| tcp(to, Sender::Application, port);
        match self {
            Self::V4 => [vec![app((HOME, 80), 15001)], from_proxy(HOME).to_vec()].concat(),
            Self::V4AndV6 => {
                let app = [HOME, HOME_V6].map(|to| app((to, 80), 15001));
                [app.to_vec(), from_proxy(HOME_V6).to_vec()].concat()
            }
            // The agent's query has the five-tuple of the application's and another destination, which needs zones.
            Self::Dns => {
                let query = udp(Sender::Application, 15053);
                vec![app((HOME, 53), 15053), query, udp(Sender::Proxy, 53)]
            }
            Self::DnsWithoutZones => vec![app((HOME, 53), 15053), udp(Sender::Application, 15053)],
            Self::Tproxy => {
                vec![tcp((HOME, 80), Sender::Marked(OWN_POD_MARK), 15006), app((HOME, 80), 80)]
            }
            Self::Lists => {
                let untouched = [(HOME, 8050), (HOME, 9000), (EXCLUDED, 80)].map(|to| app(to, to.1));
                [vec![app((HOME, 80), 15001)], untouched.to_vec()].concat()
            }
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn plain() -> RedirectPolicy {
    let mut policy = RedirectPolicy::injected(Families::V4Only);
    let loopback_too = [IpAddr::V4(Ipv4Addr::LOCALHOST), HOME, HOME_V6].into_iter().collect();
    policy.outbound.included_to = Destinations::Only(loopback_too);
    policy
}

/// Adds separate and adjacent ranges, and prefixes of several lengths.
fn add_lists(policy: &mut RedirectPolicy) {
    let v4 = |a, b, c, d, length| {
        IpNet::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), length).unwrap_or_else(|_| IpNet::from(HOME))
    };
    let included =
        [v4(127, 0, 0, 1, 32), v4(192, 0, 2, 0, 24), v4(198, 51, 100, 0, 25), v4(203, 0, 113, 8, 29)];
    policy.outbound.included_to = Destinations::Only(included.into_iter().collect());
    policy.outbound.excluded_to = [v4(192, 0, 2, 64, 26), v4(10, 0, 0, 0, 8)].into_iter().collect();
    policy.outbound.excluded_ports = [22, 9000].into_iter().chain(8000..=8100).collect();
    // Ids that user namespaces of the usual size map.
    policy.outbound.groups = Groups::AllBut([7, 4000].into());
    policy.proxy_uids = Owners::new(PROXY_ID, [4001]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::live::{LiveRules, Outcome};
    use crate::model::packet::{Direction, Owner, Packet};
    use crate::model::policy::InterfaceName;

    /// A probe whose connections all stay untouched would show nothing.
    #[test]
    fn every_profiles_connections_arrive_where_its_rules_lead_them() {
        for profile in Profile::EVERY {
            let rules = LiveRules::of_ruleset(&profile.redirection().rules).unwrap();
            let rules = rules.with_interface("lo", &[HOME, HOME_V6, EXCLUDED]);
            let mut redirected = 0;
            for connection in profile.connections() {
                let ProbeConnection { transport, to, by, port } = connection;
                let leaves = Direction::Leaves { by: InterfaceName::loopback() };
                let packet = Packet::first(leaves, transport, (to.ip(), 40000).into(), to);
                let owned = |uid| packet.clone().owned_by(Owner { uid, gid: 0 });
                let packet = match by {
                    Sender::Application => owned(0),
                    Sender::Proxy => owned(PROXY_ID),
                    Sender::Marked(mark) => owned(0).marked(mark),
                };
                let arrives_at = match rules.trace(&packet).outcome {
                    Outcome::Redirected(port) | Outcome::Intercepted(port) => port.get(),
                    Outcome::Untouched => to.port(),
                    outcome => panic!("{profile} {connection}: {outcome:?}"),
                };
                assert_eq!(arrives_at, port, "{profile} {connection}");
                redirected += usize::from(port != to.port());
            }
            assert!(redirected > 0, "{profile}");
        }
    }

    #[test]
    fn without_zones_there_is_no_zone() {
        let zones = |profile: Profile| {
            let rules = profile.redirection().rules;
            rules
                .rules()
                .filter(|(_, rule)| matches!(rule.verdict, crate::model::ruleset::Verdict::Zone(_)))
                .count()
        };
        assert!(zones(Profile::Dns) > 0);
        assert_eq!(zones(Profile::DnsWithoutZones), 0);
    }
}
