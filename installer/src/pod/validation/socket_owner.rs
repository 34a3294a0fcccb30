//! The process that listens on an address, from the kernel's lists. Messages use it, the proxy faults of verdicts
//! (`pod::proxy`), and the repair of ambient pods, which needs complete lists.

use crate::pod::cgroups::processes;
use crate::pod::manifest::printable;
use gybe_netfilter::kernel::listeners::{ListeningSocket, listening_sockets};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The owner of a listening socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketOwner {
    /// The address that the socket is bound to.
    pub address: SocketAddr,
    pub uid: u32,
    /// `PID (NAME)`; `None` for a process that is not visible here, such as one of another container.
    pub process: Option<String>,
}

impl SocketOwner {
    /// Returns the owner of the socket that receives connections to `address`; for an unspecified address, of any
    /// socket on its port: each usually prevents bind(2) to that address. Reads the descriptors of all visible
    /// processes.
    pub fn of(address: SocketAddr) -> Option<Self> {
        let listener = Listeners::read().ok()?.of(address)?;
        let process = processes_with(&listener, processes(Path::new("/proc"))).next();
        let process = process.map(|process| {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            let pid = process.file_name().unwrap_or_default().display();
            format!("{pid} ({})", printable(name.trim_end()))
        });
        Some(Self { address: listener.address, uid: listener.uid, process })
    }
}

/// The listening sockets of the calling thread's network namespace.
pub(in crate::pod) struct Listeners(Vec<ListeningSocket>);

impl Listeners {
    /// Reads them all.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub(in crate::pod) fn read() -> io::Result<Self> {
        listening_sockets().map(Self)
    }

    /// Returns how many connections to the port no process has accepted yet. Envoy has a socket for each of its threads.
    pub(in crate::pod) fn waiting_on(&self, port: u16) -> u32 {
        let on_port = self.0.iter().filter(|listener| listener.address.port() == port);
        on_port.fold(0, |sum, listener| sum.saturating_add(listener.waiting))
    }

    /// Returns the socket that receives connections to `address`; for an unspecified address, any socket on its port.
    pub(in crate::pod) fn of(&self, address: SocketAddr) -> Option<ListeningSocket> {
        let exact = self.0.iter().find(|listener| listener.address == address);
        let wildcard = || self.0.iter().find(|listener| is_wildcard_for(listener, address));
        let is_on_port =
            |it: &&ListeningSocket| address.ip().is_unspecified() && it.address.port() == address.port();
        exact.or_else(wildcard).or_else(|| self.0.iter().find(is_on_port)).cloned()
    }
}

/// Returns the processes, as directories in `/proc`, that have a descriptor of the socket.
pub(in crate::pod) fn processes_with(
    socket: &ListeningSocket,
    all: impl Iterator<Item = PathBuf>,
) -> impl Iterator<Item = PathBuf> {
    let link = format!("socket:[{}]", socket.inode);
    all.filter(move |process| {
        let fds = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let mut links = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
        links.any(|target| target.as_os_str() == link.as_str())
    })
}

/// Reports whether the socket is on the unspecified address and receives connections to `address`.
fn is_wildcard_for(socket: &ListeningSocket, address: SocketAddr) -> bool {
    let families_fit =
        socket.address.is_ipv6() == address.is_ipv6() || socket.address.is_ipv6() && !socket.is_v6_only;
    socket.address.port() == address.port() && socket.address.ip().is_unspecified() && families_fit
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_test_support::wait_for;
    use nix::sys::socket::sockopt::Ipv6V6Only;
    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, listen, setsockopt, socket};
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

    #[test]
    fn a_socket_for_ipv6_alone_receives_no_ipv4() {
        for is_v6_only in [true, false] {
            let socket =
                socket(AddressFamily::Inet6, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
            setsockopt(&socket, Ipv6V6Only, &is_v6_only).unwrap();
            listen(&socket, Backlog::new(1).unwrap()).unwrap();
            let listener = TcpListener::from(socket);
            let bound = listener.local_addr().unwrap();
            // The kernel may leave a socket out of a list while others are closed.
            let found = wait_for("the socket", || {
                Listeners::read().unwrap().0.into_iter().find(|it| it.address == bound)
            });
            assert_eq!(is_wildcard_for(&found, (Ipv4Addr::LOCALHOST, bound.port()).into()), !is_v6_only);
            assert!(is_wildcard_for(&found, (Ipv6Addr::LOCALHOST, bound.port()).into()));
        }
    }

    #[test]
    fn a_listening_process_is_found_by_its_address() {
        for (here, everywhere) in
            [("127.0.0.1:0", "[::]"), ("[::1]:0", "[::]"), ("0.0.0.0:0", "[::]"), ("127.0.0.1:0", "0.0.0.0")]
        {
            let listener = TcpListener::bind(here).unwrap();
            let bound = listener.local_addr().unwrap();
            let queried = if bound.ip().is_unspecified() {
                SocketAddr::new(Ipv4Addr::new(127, 0, 0, 6).into(), bound.port())
            } else {
                bound
            };
            let owner = SocketOwner::of(queried).unwrap();
            assert_eq!(owner.address, bound);
            let everywhere = format!("{everywhere}:{}", bound.port()).parse().unwrap();
            assert_eq!(SocketOwner::of(everywhere).as_ref(), Some(&owner));
            let process = owner.process.unwrap();
            assert!(process.starts_with(&format!("{} (", std::process::id())), "{process}");
        }
        assert_eq!(SocketOwner::of("127.0.0.1:1".parse().unwrap()), None);
    }
}
