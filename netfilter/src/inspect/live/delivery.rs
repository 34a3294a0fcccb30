//! What keeps redirected packets from the proxy, apart from rules at netfilter's hooks: the loopback interface, routing
//! rules, the kernel's treatment of marks and sources, and a socket's interface.

use crate::inspect::live::NAMED;
use crate::inspect::live::rules::{Interface, NamespaceRules};
use crate::inspect::walk::{Outcome, WalkResult};
use crate::kernel::routes::has_ipv6_on_loopback;
use crate::model::packet::{Direction, Packet};
use crate::model::ruleset::Family;
use std::fs;
use std::net::IpAddr;

const LOOPBACK: &str = "lo";

/// The facts of a namespace that decide whether redirected packets are delivered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Delivery {
    /// Why no packet passes `lo`.
    lo_is_down: Option<String>,
    /// Why the loopback address (127.0.0.1, ::1) is not local, by family.
    missing_loopback: [Option<String>; 2],
    /// Addresses on interfaces without a route in table local, and why their connections get no answer.
    not_local: Vec<(IpAddr, String)>,
    /// Which routing rules precede the look-up in table local, by family.
    earlier_rules: [Option<String>; 2],
    /// The interfaces whose source check drops intercepted IPv4 packets, and why.
    failed_source_check: Option<(Vec<String>, String)>,
    /// An accepted socket takes the mark of the connection's first packet (sysctl `tcp_fwmark_accept`).
    sets_mark_on_accept: bool,
}

/// An obstacle for a connection: its outcome, and the reason as a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Obstacle<'d> {
    pub(crate) outcome: Outcome,
    pub(crate) why: &'d str,
}

const ACCEPTED_MARK: &str = "tcp_fwmark_accept is set: the proxy's answers to intercepted connections take the mark \
    of TPROXY, by which routing delivers them to the pod itself; set net.ipv4.tcp_fwmark_accept to 0 in the pod's \
    namespace";
const MARK_NOT_DELIVERED: &str = "no routing rule delivers packets with the mark of TPROXY to the pod itself, or \
    another rule precedes it: the application's answers pass the proxy by; run gybe apply";
const BOUND: &str = "the socket is bound to its interface (SO_BINDTODEVICE, or a link-local destination): the kernel \
    sends the redirected packets to the loopback address by that interface, where no host answers; with Istio's rules, \
    too";

impl Delivery {
    /// Derives the facts of the calling thread's namespace from `ns`, and reads its sysctls.
    pub(super) fn read(ns: &NamespaceRules) -> Self {
        let lo = ns.interfaces.iter().find(|interface| interface.name == LOOPBACK);
        let earlier = |family| {
            let routing = ns.routing.as_ref()?;
            let before = routing.before_local.iter().filter(|(of, _)| *of == family);
            let named: Vec<&str> = before.map(|(_, rule)| rule.as_str()).take(NAMED).collect();
            let rules = named.join("; ");
            let sentence = || {
                format!(
                    "routing rules precede the look-up of the pod's own {family} addresses (ip rule): {rules}"
                )
            };
            (!rules.is_empty()).then(sentence)
        };
        Self {
            lo_is_down: lo.is_none_or(|lo| !lo.is_raised).then(|| {
                "lo is down: no connection of the application reaches the proxy, and the proxy reaches no application; \
                 run ip link set lo up in the pod's namespace"
                    .to_owned()
            }),
            missing_loopback: [("127.0.0.1", 8), ("::1", 128)].map(|(address, length)| {
                let ip: IpAddr = address.parse().ok()?;
                // While IPv6 is off, ip fails to set ::1; once it is on, the kernel sets it.
                let is_off = || ip.is_ipv6() && has_ipv6_on_loopback().is_ok_and(|is_on| !is_on);
                (!ns.is_local(ip)).then(|| match is_off() {
                    true => "IPv6 is off on lo: no IPv6 connection of the application reaches the proxy; run sysctl -w \
                             net.ipv6.conf.lo.disable_ipv6=0 in the pod's namespace"
                        .to_owned(),
                    false => format!(
                        "lo has lost {address}, or its route in table local: no connection of the application to an \
                         address of that family reaches the proxy; run ip address replace {address}/{length} dev lo in \
                         the pod's namespace"
                    ),
                })
            }),
            not_local: not_local(ns),
            earlier_rules: Family::ALL.map(earlier),
            failed_source_check: failed_source_check(&ns.interfaces),
            sets_mark_on_accept: fs::read_to_string("/proc/sys/net/ipv4/tcp_fwmark_accept")
                .is_ok_and(|value| value.trim() != "0"),
        }
    }

    /// Returns what keeps a connection's packets from the socket to which the rules, by `walked`, redirect them.
    pub(super) fn obstacle(
        &self,
        ns: &NamespaceRules,
        packet: &Packet,
        walked: &WalkResult,
    ) -> Option<Obstacle<'_>> {
        let family = packet.family();
        let to_loopback = matches!(walked.outcome, Outcome::Translated(to) if to.ip().is_loopback());
        let is_intercepted = matches!(walked.outcome, Outcome::Intercepted(_));
        let is_redirected = is_intercepted || matches!(walked.outcome, Outcome::Redirected(_));
        if !is_redirected && !to_loopback {
            return None;
        }
        let replies_lost = |why| Some(Obstacle { outcome: Outcome::RepliesLost, why });
        if let Some(why) = &self.lo_is_down {
            return replies_lost(why);
        }
        if let Some(why) = for_family(&self.missing_loopback, family).filter(|_| to_loopback) {
            return replies_lost(why);
        }
        if let Some(why) = for_family(&self.earlier_rules, family) {
            return Some(Obstacle { outcome: Outcome::Unknown, why });
        }
        let pod_address = match &packet.direction {
            Direction::Leaves { .. } => packet.source.ip(),
            Direction::Arrives { .. } => packet.destination.ip(),
        };
        if let Some((_, why)) = self.not_local.iter().find(|(address, _)| *address == pod_address) {
            return replies_lost(why);
        }
        match &packet.direction {
            Direction::Leaves { by } if packet.is_bound && by.as_str() != LOOPBACK => replies_lost(BOUND),
            Direction::Arrives { by } if is_intercepted => {
                let drops = self.failed_source_check.as_ref().filter(|(names, _)| {
                    family == Family::V4 && names.iter().any(|name| name == by.as_str())
                });
                if let Some((_, why)) = drops {
                    return Some(Obstacle { outcome: Outcome::Dropped, why });
                }
                if self.sets_mark_on_accept && walked.mark != 0 {
                    return replies_lost(ACCEPTED_MARK);
                }
                let is_delivered =
                    ns.routing.as_ref().is_none_or(|routing| routing.delivers_mark(family, walked.mark));
                if is_delivered { None } else { replies_lost(MARK_NOT_DELIVERED) }
            }
            _ => None,
        }
    }
}

/// The addresses on interfaces that are up without a route in table local, each with the reason.
fn not_local(ns: &NamespaceRules) -> Vec<(IpAddr, String)> {
    let up = ns.interfaces.iter().filter(|interface| interface.is_raised && interface.name != LOOPBACK);
    let own = up
        .flat_map(|interface| interface.addresses.iter().map(|address| (*address, interface.name.as_str())));
    let lost = own.filter(|(address, _)| !ns.is_local(*address));
    let with_reason = |(address, by): (IpAddr, &str)| {
        let why = format!(
            "table local has no route to {address}: packets to it are lost, the proxy's answers to the application \
             among them; add the address to {by} again"
        );
        (address, why)
    };
    lost.map(with_reason).collect()
}

fn for_family(by_family: &[Option<String>; 2], family: Family) -> Option<&str> {
    let [v4, v6] = by_family;
    if family == Family::V4 { v4.as_deref() } else { v6.as_deref() }
}

/// The interfaces whose source check drops intercepted IPv4 packets, and why.
fn failed_source_check(interfaces: &[Interface]) -> Option<(Vec<String>, String)> {
    let receives_ipv4 = |interface: &&Interface| {
        interface.name != LOOPBACK && interface.addresses.iter().any(IpAddr::is_ipv4)
    };
    let names = interfaces.iter().filter(receives_ipv4).map(|interface| interface.name.clone());
    let dropped: Vec<String> = names.filter(|name| SourceCheck::read(name).drops_intercepted()).collect();
    let why = format!(
        "the kernel drops intercepted IPv4 packets that arrive by {}: src_valid_mark is set, in net.ipv4.conf.all or \
         the interface's; set it to 0 in the pod's namespace, and on the node, from which new namespaces copy it",
        dropped.join(", ")
    );
    (!dropped.is_empty()).then_some((dropped, why))
}

/// The sysctls (net.ipv4.conf) of the kernel's check of an arriving IPv4 packet's source. IPv6 has no such check.
#[derive(Debug, Clone, Copy)]
struct SourceCheck {
    src_valid_mark: bool,
    accept_local: bool,
    rp_filter: i32,
}

impl SourceCheck {
    /// Reads the settings of an interface, each from its own value and that of `all`: whether one of them is not 0, or
    /// the larger one (include/linux/inetdevice.h, v6.18). The kernel stores any `int`.
    fn read(interface: &str) -> Self {
        let values = |key: &str| {
            ["all", interface].map(|name| {
                let value = fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{name}/{key}"));
                value.ok().and_then(|text| text.trim().parse::<i32>().ok()).unwrap_or_default()
            })
        };
        let [of_all, own] = values("rp_filter");
        Self {
            src_valid_mark: values("src_valid_mark") != [0; 2],
            accept_local: values("accept_local") != [0; 2],
            rp_filter: of_all.max(own),
        }
    }

    /// Reports whether intercepted packets are dropped. With `src_valid_mark` the kernel looks up their source by their
    /// mark and finds the local route of TPROXY. It accepts a local route only with `accept_local` and a `rp_filter`
    /// that is not strict (`__fib_validate_source`, net/ipv4/fib_frontend.c, v6.18).
    fn drops_intercepted(self) -> bool {
        const STRICT: i32 = 1;
        self.src_valid_mark && (!self.accept_local || self.rp_filter == STRICT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::routes::Routing;
    use crate::model::policy::{InterfaceName, Port};
    use crate::model::ruleset::Transport;

    #[test]
    fn a_source_that_is_looked_up_with_the_mark_must_be_accepted_as_local_and_not_strictly() {
        for (src_valid_mark, accept_local, rp_filter, is_dropped) in [
            (false, false, 0, false),
            (false, false, 1, false),
            (true, false, 0, true),
            (true, false, 2, true),
            (true, true, 0, false),
            (true, true, 1, true),
            (true, true, 2, false),
        ] {
            let check = SourceCheck { src_valid_mark, accept_local, rp_filter };
            assert_eq!(check.drops_intercepted(), is_dropped, "{check:?}");
        }
    }

    fn namespace(eth0_is_raised: bool) -> NamespaceRules {
        let interface = |index, name: &str, is_raised, address: &str| Interface {
            index,
            name: name.to_owned(),
            is_raised,
            addresses: vec![address.parse().unwrap()],
        };
        let interfaces =
            vec![interface(1, "lo", true, "127.0.0.1"), interface(2, "eth0", eth0_is_raised, "10.9.9.9")];
        NamespaceRules { interfaces, ..NamespaceRules::default() }
    }

    #[test]
    fn each_obstacle_concerns_only_the_packets_on_its_way() {
        let eth0 = || InterfaceName::parse("eth0").unwrap();
        let app = |[from, to]: [&str; 2]| {
            let ends = (from.parse().unwrap(), to.parse().unwrap());
            Packet::first(Direction::Leaves { by: eth0() }, Transport::Tcp, ends.0, ends.1)
        };
        let v4 = app(["10.9.9.9:40000", "198.51.100.1:80"]);
        let v6 = app(["[2001:db8::9]:40000", "[2001:db8::1]:80"]);
        let inbound = Packet { direction: Direction::Arrives { by: eth0() }, ..v4.clone() };
        let port = Port::new(15001).unwrap();
        let (redirected, intercepted) = (Outcome::Redirected(port), Outcome::Intercepted(port));
        let to_lo = Outcome::Translated("127.0.0.1:80".parse().unwrap());
        let why = || Some("why".to_owned());
        let down = || Delivery { lo_is_down: why(), ..Delivery::default() };
        let no_address = || Delivery { missing_loopback: [why(), None], ..Delivery::default() };
        let earlier_v6 = || Delivery { earlier_rules: [None, why()], ..Delivery::default() };
        let marks_accepted = || Delivery { sets_mark_on_accept: true, ..Delivery::default() };
        let lost = Some(Outcome::RepliesLost);
        for (delivery, packet, (outcome, mark), expected) in [
            (down(), &v4, (Outcome::Untouched, 0), None),
            (down(), &v4, (redirected, 0), lost),
            (down(), &v4, (to_lo, 0), lost),
            (no_address(), &v4, (to_lo, 0), lost),
            (no_address(), &v4, (redirected, 0), None),
            (no_address(), &v6, (redirected, 0), None),
            (earlier_v6(), &v4, (redirected, 0), None),
            (earlier_v6(), &v6, (redirected, 0), Some(Outcome::Unknown)),
            (marks_accepted(), &inbound, (intercepted, 1337), lost),
            (marks_accepted(), &inbound, (intercepted, 0), None),
            (marks_accepted(), &inbound, (redirected, 1337), None),
        ] {
            let walked = WalkResult {
                outcome,
                first: outcome,
                decided_by: None,
                steps: Vec::new(),
                mark,
                zone: None,
                order: None,
            };
            let ns = namespace(true);
            let found = delivery.obstacle(&ns, packet, &walked).map(|obstacle| obstacle.outcome);
            assert_eq!(found, expected, "{delivery:?} {outcome:?} of {packet:?}");
        }
    }

    #[test]
    fn an_address_without_a_local_route_is_lost_if_its_interface_is_up() {
        for (is_raised, lost) in [(true, 1), (false, 0)] {
            let routing = Some(Routing::default());
            let found = not_local(&NamespaceRules { routing, ..namespace(is_raised) });
            assert_eq!(found.len(), lost, "{found:?}");
        }
    }
}
