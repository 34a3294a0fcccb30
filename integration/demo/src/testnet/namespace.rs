//! A network namespace with a loopback interface that is up. The kernel frees it with this value. Links and
//! sockets inside it are made in `link` and `listener`.

use gybe_netfilter::kernel::netns::{CreateError, Netns, NetnsError};
pub use gybe_netfilter::kernel::routes::NextHop;
use gybe_netfilter::kernel::routes::{RoutesError, Rtnetlink, VethEnd};
use gybe_netfilter::kernel::sockets;
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::policy::{Families, InterfaceName};
use ipnet::IpNet;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv};
use std::borrow::Cow;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A network namespace without a name or a bind mount: the kernel frees it with its last file descriptor, also
/// when the process is killed.
#[derive(Debug)]
pub struct Namespace {
    netns: Netns,
}

/// Why there is no namespace to work in.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    #[error("cannot create a network namespace")]
    Create(#[from] CreateError),
    #[error("cannot use a network namespace")]
    Netns(#[from] NetnsError),
    #[error("cannot bring up the loopback interface of a new network namespace")]
    Loopback(#[source] RoutesError),
}

impl Hint for NamespaceError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Create(error) => error.hint(),
            Self::Netns(error) => error.hint(),
            Self::Loopback(_) => None,
        }
    }
}

impl Namespace {
    /// Creates a namespace and brings up its loopback interface.
    pub fn new() -> Result<Self, NamespaceError> {
        let created = Self { netns: Netns::create()? };
        let raised = created.run(|| Rtnetlink::open()?.raise_loopback())?;
        raised.map_err(NamespaceError::Loopback)?;
        Ok(created)
    }

    /// Opens an existing namespace by the path of its file.
    pub fn open(path: &Path) -> Result<Self, NamespaceError> {
        Ok(Self { netns: Netns::open(path)? })
    }

    /// A path by which another process can open it as long as this value lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.as_fd().as_raw_fd()))
    }

    /// Runs `work` inside it, on a thread of its own.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
        Ok(self.netns.run(work)?)
    }

    /// Moves the calling thread into it for the rest of its life.
    pub(super) fn enter(&self) -> Result<(), NamespaceError> {
        Ok(self.netns.enter()?)
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netns.as_fd()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("cannot {step}")]
    Step { step: String, source: RoutesError },
    #[error("cannot wait for {what}")]
    Wait { what: String, source: io::Error },
    #[error("{what} was not ready within {seconds} s")]
    NotReady { what: String, seconds: u64 },
    #[error("cannot add a link to a network namespace")]
    Namespace(#[from] NamespaceError),
    #[error("cannot write {value} to {path}")]
    Sysctl { path: String, value: &'static str, source: io::Error },
}

impl Hint for LinkError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        let Self::Step { source: RoutesError::Refused(source), .. } = self else { return None };
        match source {
            Errno::EOPNOTSUPP => Some("this kernel has no veth pairs: load module veth (CONFIG_VETH)".into()),
            Errno::EACCES | Errno::EAFNOSUPPORT => {
                Some("IPv6 is disabled in this kernel: sysctl net.ipv6.conf.default.disable_ipv6, or ipv6.disable=1 on its command line".into())
            }
            _ => None,
        }
    }
}

/// One end of a veth pair.
#[derive(Debug)]
pub struct LinkEnd<'a> {
    pub namespace: &'a Namespace,
    pub name: InterfaceName,
    pub addresses: Vec<IpNet>,
}

/// The time limit for the kernel's last steps; a millisecond is usual.
const WITHIN: Duration = Duration::from_secs(5);

/// Creates a veth pair, adds the addresses of each end, and returns when packets can pass.
pub fn join(left: &LinkEnd<'_>, right: &LinkEnd<'_>) -> Result<(), LinkError> {
    // The kernel's link watcher takes two ends with the same index for one device, and may need a second to
    // notice that both are up (net/core/link_watch.c, linkwatch_urgent_event).
    static NEXT: AtomicU32 = AtomicU32::new(1000);
    let index = NEXT.fetch_add(2, Ordering::Relaxed);
    let ends = [(left, index), (right, index + 1)];
    left.namespace.run(|| create_pair(ends))??;
    for (end, index) in ends {
        let step = || format!("bring up {}", end.name.as_str());
        end.namespace.run(|| change(step, |rtnetlink| rtnetlink.raise(index)))??;
    }
    for (end, index) in ends {
        end.namespace.run(|| wait_until_up(end, index).and_then(|()| add_addresses(end, index)))??;
    }
    Ok(())
}

/// Adds a route to `network` in `namespace`.
pub fn route(namespace: &Namespace, network: IpNet, next_hop: NextHop) -> Result<(), LinkError> {
    let step = || format!("route {network} {next_hop:?}");
    namespace.run(|| change(step, |rtnetlink| rtnetlink.add_route(network, next_hop)))?
}

/// Makes `namespace` a router for these families: it forwards packets for other addresses, from every interface.
pub fn forward(namespace: &Namespace, families: Families) -> Result<(), LinkError> {
    let set = |path: &str, value: &'static str| {
        // /proc/sys/net shows the namespace of the calling thread (net/sysctl_net.c, net_ctl_header_lookup).
        let path = format!("/proc/sys/net/{path}");
        std::fs::write(&path, value).map_err(|source| LinkError::Sysctl { path, value, source })
    };
    namespace.run(|| {
        set("ipv4/ip_forward", "1")?;
        if families == Families::V4AndV6 {
            set("ipv6/conf/all/forwarding", "1")?;
        }
        // A new namespace may inherit the machine's setting (net.core.devconf_inherit_init_net), and tests of a
        // router use asymmetric paths.
        set("ipv4/conf/all/rp_filter", "0")?;
        set("ipv4/conf/default/rp_filter", "0")
    })?
}

fn create_pair([(left, index), (right, right_index)]: [(&LinkEnd<'_>, u32); 2]) -> Result<(), LinkError> {
    let (near, far) = (left.name.as_str(), right.name.as_str());
    change(
        || format!("create the veth pair {near} - {far}"),
        |rtnetlink| {
            let (near, far) = (VethEnd { index, name: near }, VethEnd { index: right_index, name: far });
            rtnetlink.create_veth(near, far, right.namespace.as_fd())
        },
    )
}

fn add_addresses(end: &LinkEnd<'_>, index: u32) -> Result<(), LinkError> {
    for address in &end.addresses {
        let step = || format!("add to {} the address {address}", end.name.as_str());
        change(step, |rtnetlink| rtnetlink.add_address(index, *address))?;
        if let IpAddr::V6(address) = address.addr() {
            wait_until_multicast_joined(address, index)?;
        }
    }
    Ok(())
}

/// Makes a change in the calling thread's namespace; `step` names it in the error.
fn change<T>(
    step: impl FnOnce() -> String,
    make: impl FnOnce(&mut Rtnetlink) -> Result<T, RoutesError>,
) -> Result<T, LinkError> {
    Rtnetlink::open()
        .and_then(|mut rtnetlink| make(&mut rtnetlink))
        .map_err(|source| LinkError::Step { step: step(), source })
}

/// Waits until the kernel's link watcher reports the end as up: until then packets are lost.
fn wait_until_up(end: &LinkEnd<'_>, index: u32) -> Result<(), LinkError> {
    let what = || format!("interface {}", end.name.as_str());
    wait(Group::Links, what, || {
        let links = change(|| format!("query {}", what()), Rtnetlink::links)?;
        Ok(links.iter().any(|link| link.index == index && link.is_up))
    })
}

/// Waits until the kernel has joined the multicast group in which neighbours solicit the address. It joins in a work
/// item of its own (net/ipv6/addrconf.c, `addrconf_dad_work`, v6.18). A solicitation before that is repeated only
/// after a second (RFC 4861, RetransTimer).
fn wait_until_multicast_joined(address: Ipv6Addr, index: u32) -> Result<(), LinkError> {
    let [.., a, b, c] = address.octets();
    let group = format!("ff0200000000000000000001ff{a:02x}{b:02x}{c:02x}");
    let what = || format!("address {address}");
    wait(Group::Ipv6Addresses, what, || {
        // Of this thread's namespace; /proc/net shows the process's.
        let groups = std::fs::read_to_string("/proc/thread-self/net/igmp6")
            .map_err(|source| LinkError::Wait { what: what(), source })?;
        let joined = |line: &str| {
            let mut words = line.split_whitespace();
            words.next().is_some_and(|word| word == index.to_string()) && words.nth(1) == Some(&group)
        };
        Ok(groups.lines().any(joined))
    })
}

/// The multicast groups in which the kernel announces changes (`RTMGRP_LINK`, `RTMGRP_IPV6_IFADDR`,
/// include/uapi/linux/rtnetlink.h).
#[derive(Debug, Clone, Copy)]
enum Group {
    Links = 0x1,
    Ipv6Addresses = 0x100,
}

/// Checks `is_ready` at once and after each change that the kernel announces in `group`.
fn wait(
    group: Group,
    what: impl Fn() -> String,
    is_ready: impl Fn() -> Result<bool, LinkError>,
) -> Result<(), LinkError> {
    let failed = |errno: Errno| LinkError::Wait { what: what(), source: errno.into() };
    let deadline = Instant::now() + WITHIN;
    let (family, flags) = (AddressFamily::Netlink, SockFlag::SOCK_CLOEXEC);
    let announcements =
        nix::sys::socket::socket(family, SockType::Raw, flags, SockProtocol::NetlinkRoute).map_err(failed)?;
    bind(announcements.as_raw_fd(), &NetlinkAddr::new(0, group as u32)).map_err(failed)?;
    while !is_ready()? {
        match sockets::wait_readable(&announcements, deadline) {
            // Only the arrival counts; the rest of a longer datagram is discarded.
            Ok(()) => recv(announcements.as_raw_fd(), &mut [0], MsgFlags::empty()).map_err(failed)?,
            Err(Errno::ETIMEDOUT) => {
                return Err(LinkError::NotReady { what: what(), seconds: WITHIN.as_secs() });
            }
            Err(errno) => return Err(failed(errno)),
        };
    }
    Ok(())
}
