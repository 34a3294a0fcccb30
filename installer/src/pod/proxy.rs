//! Whether a pod's proxy accepts the connections that the rules send to it, and makes its own without them. Best effort:
//! only notes tell it.

use super::own_namespace;
use super::validation::Listener;
use gybe_netfilter::kernel::netns::Netns;
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::policy::{Inbound, Mode, PortSet, RedirectPolicy};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Why redirected connections fail at the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyFault {
    /// No process listens on these ports.
    Silent(Vec<u16>),
    /// A process listens on the port, and not at the address at which redirected connections arrive.
    Elsewhere { listens: SocketAddr, arrive: SocketAddr },
    /// The process that listens has an owner whose connections the rules redirect: they would arrive at itself again.
    Redirected { port: u16, owner: Owner },
}

impl fmt::Display for ProxyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(ports) => {
                let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
                write!(f, "no process listens on {}, where the proxy should", ports.join(" and "))
            }
            Self::Elsewhere { listens, arrive } => {
                write!(f, "the proxy listens at {listens}, and redirected connections arrive at {arrive}")
            }
            Self::Redirected { port, owner: Owner { uid, gid } } => {
                write!(f, "the process that listens on {port} has uid {uid} and gid {gid}: ")?;
                f.write_str("its own connections are redirected, too, and arrive at itself")
            }
        }
    }
}

impl ProxyFault {
    /// What a user can do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Silent(_) => {
                "look at the log of the pod's container istio-proxy: connections are refused until it listens"
            }
            Self::Elsewhere { .. } => {
                "let the proxy listen at every address: 0.0.0.0, or :: in a pod with IPv6"
            }
            Self::Redirected { .. } => {
                "set runAsUser of the pod's container istio-proxy to the uid as which its proxy runs"
            }
        }
    }
}

/// Returns the faults of the proxy in `netns`; none if the namespace cannot be entered. `processes`: the directories in
/// `/proc` of the pod's processes.
pub fn proxy_faults(netns: &Netns, policy: &RedirectPolicy, processes: &[PathBuf]) -> Vec<ProxyFault> {
    netns.run(|| faults(policy, processes)).unwrap_or_default()
}

fn faults(policy: &RedirectPolicy, processes: &[PathBuf]) -> Vec<ProxyFault> {
    let own = own_namespace::addresses().unwrap_or_default();
    let own = own.into_iter().find(|address| !address.is_loopback());
    let loopback: IpAddr = match own {
        Some(IpAddr::V6(_)) => Ipv6Addr::LOCALHOST.into(),
        _ => Ipv4Addr::LOCALHOST.into(),
    };
    // REDIRECT sends a connection that this host makes to 127.0.0.1 or ::1, and another one to the first address of the
    // interface by which it comes (`nf_nat_redirect_ipv4` and `_ipv6`, net/netfilter/nf_nat_redirect.c, v6.18); TPROXY
    // sends it there, too (`nf_tproxy_laddr4`, net/ipv4/netfilter/nf_tproxy_ipv4.c). Connections of the pod to itself
    // are redirected to the inbound port by REDIRECT only.
    let mut arrive = vec![(policy.outbound_port.get(), loopback)];
    if policy.inbound != Inbound::Only(PortSet::default()) {
        let of_itself = (policy.mode == Mode::Redirect).then_some(loopback);
        arrive.extend(own.into_iter().chain(of_itself).map(|ip| (policy.inbound_port.get(), ip)));
    }
    let (mut silent, mut faults, mut found) = (Vec::new(), Vec::new(), BTreeMap::new());
    for (port, ip) in arrive {
        let arrive = SocketAddr::new(ip, port);
        let of_port = || Listener::of(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port));
        match Listener::of(arrive).or_else(of_port) {
            None if silent.contains(&port) => {}
            None => silent.push(port),
            Some(listener) => {
                if !listener.receives(arrive) {
                    faults.push(ProxyFault::Elsewhere { listens: listener.address, arrive });
                }
                found.entry(port).or_insert(listener);
            }
        }
    }
    for (port, listener) in found {
        let owners = listener.processes(processes.iter().cloned()).filter_map(|process| owner(&process));
        // A socket may have several processes: the proxy is the one whose connections pass.
        let owners: Vec<Owner> = owners.collect();
        if let Some(owner) = owners.first()
            && owners.iter().all(|owner| is_redirected(policy, *owner))
        {
            faults.push(ProxyFault::Redirected { port, owner: *owner });
        }
    }
    if !silent.is_empty() {
        faults.insert(0, ProxyFault::Silent(silent));
    }
    faults
}

fn is_redirected(policy: &RedirectPolicy, owner: Owner) -> bool {
    !policy.proxy_uids.all().contains(&owner.uid) && !policy.proxy_gids.all().contains(&owner.gid)
}

/// Returns the owner of sockets that the process creates now, as rules of its pod compare it: with the ids of its user
/// namespace (`owner_mt`, net/netfilter/xt_owner.c, v6.18). `None` if the process has ended.
fn owner(process: &Path) -> Option<Owner> {
    let read = |name: &str| fs::read_to_string(process.join(name)).ok();
    let status = read("status")?;
    let user_namespace = |process: &Path| fs::read_link(process.join("ns/user")).ok();
    let is_own = user_namespace(process) == user_namespace(Path::new("/proc/self"));
    // The last of the four ids is that of the file system (proc_pid_status(5)); a new socket has it.
    let id = |key: &str, map: &str| {
        let ids = status.lines().find_map(|line| line.strip_prefix(key))?;
        let id = ids.split_whitespace().nth(3)?.parse().ok()?;
        if is_own { Some(id) } else { mapped(id, &read(map)?) }
    };
    Some(Owner { uid: id("Uid:", "uid_map")?, gid: id("Gid:", "gid_map")? })
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
        let read = |status: &str| {
            let directory = gybe_test_support::TestDir::new("proxy-owner");
            directory.write("status", status);
            directory.write("uid_map", "0 65536 65536");
            directory.write("gid_map", "0 131072 65536");
            owner(&directory)
        };
        let status = "Name:\tenvoy\nUid:\t0\t0\t0\t66873\nGid:\t0\t0\t0\t132409\n";
        assert_eq!(read(status), Some(Owner { uid: 1337, gid: 1337 }));
        assert_eq!(read("Name:\tenvoy\n"), None);
        let own = Owner { uid: nix::unistd::geteuid().as_raw(), gid: nix::unistd::getegid().as_raw() };
        act_as(own).unwrap();
        assert_eq!(owner(Path::new("/proc/thread-self")), Some(own));
    }
}
