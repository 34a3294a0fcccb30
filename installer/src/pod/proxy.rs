//! Whether a pod's proxy accepts redirected connections, and whether its own connections are redirected. Best effort: only
//! notes use the result. Whether ztunnel listens in a pod also decides about its repair, and is certain.

use super::own_namespace;
use super::validation::{Listeners, processes_with};
use gybe_netfilter::apply::istio_ambient::IstioAmbient;
use gybe_netfilter::inspect::probe_sets::{families_not_exempt, set_name};
use gybe_netfilter::iptables::is_in_owning_user_namespace;
use gybe_netfilter::kernel::listeners::has_udp_socket;
use gybe_netfilter::kernel::netns::Netns;
use gybe_netfilter::kernel::routes::{RoutesError, Rtnetlink};
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::policy::istio::{AGENT_DNS_PORT, INBOUND_PORT, OUTBOUND_PORT, TUNNEL_PORT};
use gybe_netfilter::model::policy::{Dns, Families, Groups, Mode, RedirectPolicy};
use gybe_netfilter::model::ruleset::Family;
use gybe_plugin::families::is_usable;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, fs, thread};

/// How long connections may wait for a busy proxy: longer than the period of its processor limit (`cpu.max`), 100 ms.
const ACCEPT_TIME: Duration = Duration::from_millis(150);

const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// The ports on which ztunnel listens in an ambient pod.
pub(crate) const ZTUNNEL_PORTS: [u16; 3] = [OUTBOUND_PORT.get(), INBOUND_PORT.get(), TUNNEL_PORT.get()];

/// A fault of the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyFault {
    /// No process listens on these ports.
    Silent(Vec<u16>),
    /// DNS is captured, and the resolver in Istio's agent does not listen.
    ResolverSilent,
    /// A process listens on the port, and not at the address at which redirected connections arrive.
    Elsewhere { listens: SocketAddr, arrive: SocketAddr },
    /// Connections to the port wait, and the process that listens on it has accepted none for 150 ms.
    DoesNotAccept { port: u16, waiting: u32 },
    /// The process that listens on these ports has an owner whose connections the rules redirect.
    ConnectsToItself { ports: Vec<u16>, owner: Owner },
    /// ztunnel does not listen on these ports of an ambient pod.
    NotServed(Vec<u16>),
    /// istio-cni's sets of these families lack the ambient pod.
    ProbesNotExempt(Vec<Family>),
}

impl fmt::Display for ProxyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |ports: &[u16]| ports.iter().map(u16::to_string).collect::<Vec<_>>().join(" and ");
        match self {
            Self::Silent(ports) => {
                write!(f, "no process listens on {}, where the proxy should", list(ports))
            }
            Self::ResolverSilent => {
                write!(f, "the proxy's DNS resolver does not listen on {AGENT_DNS_PORT} of both UDP and TCP")
            }
            Self::Elsewhere { listens, arrive } => {
                write!(f, "the proxy listens at {listens}, and redirected connections arrive at {arrive}")
            }
            Self::DoesNotAccept { port, waiting } => {
                let (s, es) = if *waiting == 1 { ("", "s") } else { ("s", "") };
                let time = ACCEPT_TIME.as_millis();
                write!(
                    f,
                    "{waiting} connection{s} to port {port} wait{es}: the proxy has accepted none for {time} ms"
                )
            }
            Self::ConnectsToItself { ports, owner: Owner { uid, gid } } => {
                write!(f, "the process that listens on {} has uid {uid} and gid {gid}: ", list(ports))?;
                f.write_str("its own connections are redirected, too, and arrive at itself")
            }
            Self::NotServed(ports) => {
                write!(f, "no process listens on {}, where ztunnel should", list(ports))
            }
            Self::ProbesNotExempt(families) => {
                let sets: Vec<&str> = families.iter().map(|family| set_name(*family)).collect();
                write!(f, "the pod's address is not in the node's set {}: ", sets.join(" and "))?;
                f.write_str(
                    "ztunnel takes the kubelet's probes, and refuses them where mutual TLS is required",
                )
            }
        }
    }
}

impl ProxyFault {
    /// What a user can do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::ResolverSilent => {
                "look at the log of the pod's container istio-proxy, unless it has not started yet or has ended: the pod \
                 resolves no names until it listens"
            }
            Self::Silent(_) => {
                "look at the log of the pod's container istio-proxy, unless it has not started yet or has ended: \
                 connections are refused until it listens"
            }
            Self::Elsewhere { .. } => {
                "let the proxy listen at every address: 0.0.0.0, and :: in a pod with IPv6; a socket at :: with IPV6_V6ONLY \
                 (v6only:1 in ss -lnte) receives no IPv4"
            }
            Self::DoesNotAccept { .. } => {
                "if the number stays or grows, the proxy is stopped, frozen or hangs: look at its processes (STAT in ps) and \
                 the log of the pod's container istio-proxy"
            }
            Self::ConnectsToItself { .. } => {
                "set runAsUser and runAsGroup of the pod's container istio-proxy to the ids that its proxy runs as, and \
                 create the pod again; if another program listens there, let it use another port"
            }
            Self::NotServed(_) => {
                "check the node's ztunnel: the pod's connections are refused until it listens; with the setting \
                 repair: repair, and while a ztunnel is connected, the container repair lets it listen again within a minute"
            }
            Self::ProbesNotExempt(_) => {
                "read the log of istio-cni's agent on the node, and start the agent again: it writes the set at its start"
            }
        }
    }
}

/// Returns the faults of the proxy in `netns`; none if the namespace cannot be entered. `processes`: the directories in
/// `/proc` of the pod's processes.
pub fn proxy_faults(netns: &Netns, policy: &RedirectPolicy, processes: &[PathBuf]) -> Vec<ProxyFault> {
    netns.run(|| faults(policy, processes)).unwrap_or_default()
}

/// Returns the ports of ztunnel on which no process listens in `netns`, which has the rules of an ambient pod; none
/// while that is not known.
pub(crate) fn silent_ports_of_ztunnel(netns: &Netns) -> Vec<u16> {
    let silent = |ports: Vec<u16>| {
        let Ok(Ok(listeners)) = netns.run(Listeners::read) else { return Vec::new() };
        let is_silent = |port: &u16| LOOPBACK.iter().all(|ip| listeners.of((*ip, *port).into()).is_none());
        ports.into_iter().filter(is_silent).collect()
    };
    let first = silent(ZTUNNEL_PORTS.to_vec());
    // The kernel may leave a socket out of a list while others are closed.
    if first.is_empty() { first } else { silent(first) }
}

/// Returns the faults of ztunnel in `netns`, which has the rules of an ambient pod; none while they are not known.
pub(crate) fn ztunnel_faults(netns: &Netns) -> Vec<ProxyFault> {
    let silent = Some(silent_ports_of_ztunnel(netns)).filter(|ports| !ports.is_empty());
    silent.map(ProxyFault::NotServed).into_iter().collect()
}

/// Returns the faults of an ambient pod of istio-cni on the node with the namespace `node`; none if `netns` does not
/// have such rules. `assigned`: the addresses that the plugins assigned to the pod.
pub(crate) fn faults_of_istio_ambient(netns: &Netns, node: &Netns, assigned: &[IpAddr]) -> Vec<ProxyFault> {
    if !matches!(netns.run(IstioAmbient::look), Ok(Ok(Some(_)))) {
        return Vec::new();
    }
    let mut own = netns.run(addresses_of_eth0).ok().and_then(Result::ok).unwrap_or_default();
    own.retain(|address| assigned.contains(address));
    let lacking = node.run(|| families_not_exempt(&own)).unwrap_or_default();
    let lacking = Some(lacking).filter(|families| !families.is_empty());
    ztunnel_faults(netns).into_iter().chain(lacking.map(ProxyFault::ProbesNotExempt)).collect()
}

/// The runtimes report the addresses of this interface alone as the pod's, and the kubelet probes there.
fn addresses_of_eth0() -> Result<Vec<IpAddr>, RoutesError> {
    let mut rtnetlink = Rtnetlink::open()?;
    let eth0 = rtnetlink.links()?.into_iter().find(|link| link.name == "eth0").map(|link| link.index);
    let addresses = rtnetlink.addresses()?.into_iter();
    Ok(addresses.filter(|address| Some(address.index) == eth0).map(|address| address.ip).collect())
}

fn faults(policy: &RedirectPolicy, processes: &[PathBuf]) -> Vec<ProxyFault> {
    let Ok(listeners) = Listeners::read() else { return Vec::new() };
    let (mut silent, mut faults, mut found) = (BTreeSet::new(), Vec::new(), BTreeMap::new());
    for arrive in arrivals(policy) {
        let listener = listeners.of(arrive).or_else(|| {
            let elsewhere = listeners.of(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), arrive.port()))?;
            faults.push(ProxyFault::Elsewhere { listens: elsewhere.address, arrive });
            Some(elsewhere)
        });
        match listener {
            Some(listener) => drop(found.insert(arrive.port(), listener)),
            None => drop(silent.insert(arrive.port())),
        }
    }
    let waiting = found.keys().map(|port| (*port, listeners.waiting_on(*port)));
    let waiting: Vec<(u16, u32)> = waiting.filter(|(_, before)| *before > 0).collect();
    if !waiting.is_empty() {
        thread::sleep(ACCEPT_TIME);
        let Ok(later) = Listeners::read() else { return Vec::new() };
        let still = waiting.into_iter().map(|(port, before)| (port, before, later.waiting_on(port)));
        let faulty = still.filter(|(_, before, now)| now >= before);
        faults.extend(faulty.map(|(port, _, waiting)| ProxyFault::DoesNotAccept { port, waiting }));
    }
    let is_owned_here = is_in_owning_user_namespace().unwrap_or(false);
    let mut by_owner: BTreeMap<(u32, u32), Vec<u16>> = BTreeMap::new();
    for (port, listener) in found {
        // Without a user namespace of the pod's own this is the uid that rules compare.
        if policy.proxy_uids.contains(listener.uid) {
            continue;
        }
        let processes = processes_with(&listener, processes.iter().cloned());
        let owners: Vec<Owner> = processes.flat_map(|process| owners(&process, is_owned_here)).collect();
        if let Some(Owner { uid, gid }) = owners.last()
            && owners.iter().all(|owner| is_redirected(policy, *owner))
        {
            by_owner.entry((*uid, *gid)).or_default().push(port);
        }
    }
    let itself = |((uid, gid), ports)| ProxyFault::ConnectsToItself { ports, owner: Owner { uid, gid } };
    faults.extend(by_owner.into_iter().map(itself));
    // The kernel may leave a socket out of a list while others are closed.
    if policy.dns != Dns::Off && !has_resolver() && !has_resolver() {
        faults.push(ProxyFault::ResolverSilent);
    }
    if !silent.is_empty() {
        faults.insert(0, ProxyFault::Silent(silent.into_iter().collect()));
    }
    faults
}

/// Returns where redirected connections arrive, of each family that the policy redirects and the namespace has.
///
/// REDIRECT sends a connection that this host makes to 127.0.0.1 or ::1, and another one to the first address of the
/// interface by which it comes (`nf_nat_redirect_ipv4` and `_ipv6`, net/netfilter/nf_nat_redirect.c, v6.18); TPROXY sends
/// it there, too (`nf_tproxy_laddr4`, net/ipv4/netfilter/nf_tproxy_ipv4.c, and `nf_tproxy_laddr6`). Only REDIRECT sends
/// connections of the pod to itself to the inbound port.
fn arrivals(policy: &RedirectPolicy) -> Vec<SocketAddr> {
    let own: Vec<IpAddr> = own_namespace::addresses().unwrap_or_default();
    let is_captured = |loopback: &IpAddr| loopback.is_ipv4() || policy.families == Families::V4AndV6;
    let mut arrivals = Vec::new();
    for loopback in LOOPBACK.into_iter().filter(is_captured) {
        let is_of_family = |own: &&IpAddr| is_usable(own) && own.is_ipv4() == loopback.is_ipv4();
        let Some(own) = own.iter().find(is_of_family) else { continue };
        if policy.captures_outbound() {
            arrivals.push(SocketAddr::new(loopback, policy.outbound_port.get()));
        }
        if policy.captures_inbound() {
            let of_itself = (policy.mode == Mode::Redirect).then_some(loopback);
            let ips = [Some(*own), of_itself].into_iter().flatten();
            arrivals.extend(ips.map(|ip| SocketAddr::new(ip, policy.inbound_port.get())));
        }
    }
    arrivals
}

/// Reports whether sockets for DNS over UDP and TCP have the resolver's port, at any address.
fn has_resolver() -> bool {
    let port = AGENT_DNS_PORT.get();
    let at = (Ipv4Addr::UNSPECIFIED, port).into();
    has_udp_socket(port) && Listeners::read().is_ok_and(|listeners| listeners.of(at).is_some())
}

fn is_redirected(policy: &RedirectPolicy, owner: Owner) -> bool {
    let is_of_group = match &policy.outbound.groups {
        Groups::AllBut(ids) => !ids.contains(&owner.gid),
        Groups::Only(ids) => ids.contains(&owner.gid),
    };
    let is_of_proxy = policy.proxy_uids.contains(owner.uid) || policy.proxy_gids.contains(owner.gid);
    policy.captures_outbound() && is_of_group && !is_of_proxy
}

/// Returns the owner of sockets that the process creates now, with the ids of this user namespace; where that does not own
/// the network namespace, also with those of the process's, which may. Empty if the process has ended.
fn owners(process: &Path, is_owned_here: bool) -> Vec<Owner> {
    let read = |name: &str| fs::read_to_string(process.join(name)).unwrap_or_default();
    let (status, uid_map, gid_map) = (read("status"), read("uid_map"), read("gid_map"));
    // The last of the four ids is that of the file system (proc_pid_status(5)); a new socket has it.
    let id = |key: &str| {
        let ids = status.lines().find_map(|line| line.strip_prefix(key))?;
        ids.split_whitespace().nth(3)?.parse::<u32>().ok()
    };
    let Some((uid, gid)) = id("Uid:").zip(id("Gid:")) else { return Vec::new() };
    let there = mapped(uid, &uid_map).zip(mapped(gid, &gid_map));
    let there = there.filter(|_| !is_owned_here).map(|(uid, gid)| Owner { uid, gid });
    [Some(Owner { uid, gid }), there].into_iter().flatten().collect()
}

/// Translates an id of this user namespace to that of a child (user_namespaces(7): id there, id here, number of ids).
fn mapped(id: u32, map: &str) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map_while(|number| number.parse::<u32>().ok());
        let (there, here, count) = (numbers.next()?, numbers.next()?, numbers.next()?);
        let offset = id.checked_sub(here).filter(|offset| *offset < count)?;
        there.checked_add(offset)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_netfilter::kernel::sockets::act_as;

    #[test]
    fn ids_are_those_of_the_process_user_namespace() {
        let map = "         0     100000       1000\n      1337    2001337          1\n";
        assert_eq!(mapped(100_999, map), Some(999));
        assert_eq!(mapped(2_001_337, map), Some(1337));
        assert_eq!(mapped(101_000, map), None);
        assert_eq!(mapped(99_999, map), None);
    }

    #[test]
    fn the_owner_is_that_of_the_sockets_that_a_process_creates_now() {
        let read = |status: &str, is_owned_here| {
            let directory = gybe_test_support::TestDir::new("proxy-owner");
            directory.write("status", status);
            directory.write("uid_map", "0 65536 65536");
            directory.write("gid_map", "0 131072 65536");
            owners(&directory, is_owned_here)
        };
        let status = "Name:\tenvoy\nUid:\t0\t0\t0\t66873\nGid:\t0\t0\t0\t132409\n";
        let here = Owner { uid: 66873, gid: 132_409 };
        assert_eq!(read(status, false), [here, Owner { uid: 1337, gid: 1337 }]);
        assert_eq!(read(status, true), [here], "rules compare these alone");
        assert_eq!(read("Name:\tenvoy\n", false), []);
        let own = Owner { uid: nix::unistd::geteuid().as_raw(), gid: nix::unistd::getegid().as_raw() };
        act_as(own).unwrap();
        assert_eq!(owners(Path::new("/proc/thread-self"), true).first(), Some(&own));
    }
}
