//! The process that listens on an address, from the kernel's lists. Messages use it, the proxy faults of verdicts
//! (`pod::proxy`), and the repair of ambient pods, which needs complete lists.

use crate::pod::cgroups::processes;
use crate::pod::manifest::printable;
use gybe_netfilter::kernel::listeners::{ListeningSocket, listening_sockets};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// The owner of a listening socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketOwner {
    /// The address that the socket is bound to.
    pub address: SocketAddr,
    pub uid: u32,
    /// `PID (NAME)`; `None` for a process that is not visible here, such as one of another container.
    pub process: Option<String>,
}

/// The tables of TCP sockets of the calling thread's network namespace, for a kernel without sock_diag(7).
const TABLES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];

/// `TCP_LISTEN` of include/net/tcp_states.h, as the tables write it.
const LISTENING: &str = "0A";

impl SocketOwner {
    /// Returns the owner of the socket that receives connections to `address`; for an unspecified address, of any
    /// socket on its port: each prevents bind(2) to that address. Reads the descriptors of all visible processes.
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
    /// When a table cannot be read.
    pub(in crate::pod) fn read() -> io::Result<Self> {
        listening_sockets().map_or_else(of_tables, Ok).map(Self)
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

/// Reports whether the socket is on the unspecified address and receives connections to `address`. One on `::` receives
/// IPv4 too, unless IPV6_V6ONLY is set, which the tables do not show.
fn is_wildcard_for(socket: &ListeningSocket, address: SocketAddr) -> bool {
    let families_fit = socket.address.is_ipv6() || address.is_ipv4();
    socket.address.port() == address.port() && socket.address.ip().is_unspecified() && families_fit
}

/// Reports whether a UDP socket of the calling thread's network namespace has this port, at any address.
pub(in crate::pod) fn has_udp_socket(port: u16) -> bool {
    let tables = ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"].map(File::open);
    let mut lines = tables
        .into_iter()
        .flatten()
        .flat_map(|table| BufReader::new(table).lines().skip(1).map_while(Result::ok));
    lines.any(|line| line.split_whitespace().nth(1).and_then(address).is_some_and(|it| it.port() == port))
}

/// Reads both tables. A kernel without IPv6 has only the first one.
fn of_tables() -> io::Result<Vec<ListeningSocket>> {
    let [v4, v6] = TABLES.map(|table| listeners(BufReader::new(File::open(table)?)));
    let v6 = match v6 {
        Err(why) if why.kind() == ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    Ok([v4?, v6].concat())
}

/// Returns the listening sockets of a table (Documentation/networking/proc_net_tcp.rst). They are its first lines
/// (`tcp_get_idx`, net/ipv4/tcp_ipv4.c, v6.18), so the others, which may be many, are not read.
fn listeners(table: impl BufRead) -> io::Result<Vec<ListeningSocket>> {
    table.lines().skip(1).map(|line| line.map(|line| listener(&line))).map_while(Result::transpose).collect()
}

fn listener(line: &str) -> Option<ListeningSocket> {
    // `nth` skips: `sl`; `rem_address`; the timers and `retrnsmt`; `timeout`.
    let mut words = line.split_whitespace();
    let address = address(words.nth(1)?)?;
    words.nth(1).filter(|state| *state == LISTENING)?;
    // The second queue is that of accept(2) (`get_tcp4_sock`, net/ipv4/tcp_ipv4.c, v6.18).
    let (_, waiting) = words.next()?.split_once(':')?;
    let waiting = u32::from_str_radix(waiting, 16).ok()?;
    let uid = words.nth(2)?.parse().ok()?;
    Some(ListeningSocket { address, uid, inode: words.nth(1)?.parse().ok()?, waiting })
}

/// Parses `0100007F:3A9A`: the IP as 32-bit words in the machine's byte order, then the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip: IpAddr = match ip.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let bytes = [word(0)?, word(1)?, word(2)?, word(3)?];
            Ipv6Addr::from_bits(u128::from_be_bytes(bytes.concat().try_into().ok()?)).into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_kernels_tables_are_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             \x20  0: 00000000:0016 00000000:0000 0A 00000000:0000000B 00:00000000 00000000     7        0 15 1 0 100 0\n\
             \x20  1: 00000000:0017 00000000:0000 01 00000000:00000000 00:00000000 00000000     7        0 16 1 0 100 0\n\
             \x20  2: nonsense\n";
        let address = "0.0.0.0:22".parse().unwrap();
        assert_eq!(
            listeners(table.as_bytes()).unwrap(),
            [ListeningSocket { address, uid: 7, inode: 15, waiting: 11 }]
        );
    }

    #[test]
    fn both_lists_have_a_socket_alike() {
        for here in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0", "[::ffff:127.0.0.1]:0"] {
            let listener = TcpListener::bind(here).unwrap();
            let bound = listener.local_addr().unwrap();
            let _waits = TcpStream::connect(bound).unwrap();
            let of_it = |list: Vec<ListeningSocket>| {
                list.into_iter().find(|it| it.address.port() == bound.port() && it.waiting == 1).unwrap()
            };
            let by_diag = of_it(listening_sockets().expect("this kernel has tcp_diag; modprobe tcp_diag"));
            assert_eq!(by_diag.address.ip(), bound.ip().to_canonical());
            assert_eq!(by_diag, of_it(of_tables().unwrap()));
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
