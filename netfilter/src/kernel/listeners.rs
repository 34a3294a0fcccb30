//! The sockets of a network namespace that wait for others: the listening TCP sockets by sock_diag(7), and those of UDP.
//!
//! `/proc/net/tcp` and `tcp6` have the listening sockets, too, but to find their end the kernel walks through the hash
//! table of the connections of all namespaces: 7 ms each on a machine with 24 GiB, where a list of sock_diag takes
//! 0.1 ms.

use super::netlink::attr::{Attributes, Writer, address};
use super::netlink::list::{Limit, Listed};
use super::netlink::message::{DUMP, Header, REQUEST};
use super::netlink::socket::Socket;
use super::open_connections::{TABLES, table_address};
use nix::sys::socket::SockProtocol;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::net::SocketAddr;

/// A listening TCP socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListeningSocket {
    /// The address that it is bound to; an IPv4-mapped IPv6 address as IPv4.
    pub address: SocketAddr,
    /// It receives IPv6 alone, because of IPV6_V6ONLY (ipv6(7)) or of its address. `false` if it comes from `/proc`.
    pub is_v6_only: bool,
    /// Its owner in the caller's user namespace.
    pub uid: u32,
    /// Its inode, which the links in `/proc/PID/fd` name.
    pub inode: u64,
    /// Connections that no process has accepted yet.
    pub waiting: u32,
}

/// include/uapi/linux/sock_diag.h (v6.18).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// include/uapi/linux/inet_diag.h (v6.18). A listening IPv6 socket always has it (`inet_diag_msg_attrs_fill`,
/// net/ipv4/inet_diag.c).
const INET_DIAG_SKV6ONLY: u16 = 11;
/// include/net/tcp_states.h (v6.18).
const TCP_LISTEN: u32 = 10;
// include/linux/socket.h and include/uapi/linux/in.h (v6.18), in the width of the messages.
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;

/// A process in the namespace may open any number of sockets.
const MOST: usize = 100_000;

/// Returns the listening TCP sockets of the calling thread's network namespace. Sockets that open or close meanwhile may
/// hide another one. The kernel loads its module `tcp_diag`; where it has none, `/proc` is read.
///
/// # Errors
/// When neither sock_diag nor `/proc` has them.
pub fn listening_sockets() -> io::Result<Vec<ListeningSocket>> {
    by_sock_diag().map_or_else(by_tables, Ok)
}

fn by_sock_diag() -> Option<Vec<ListeningSocket>> {
    let mut socket = Socket::open(SockProtocol::NetlinkSockDiag).ok()?;
    let mut found = Vec::new();
    for (sequence, family) in [(1, AF_INET), (2, AF_INET6)] {
        let listed = socket.list(&request(family, sequence)?, sequence, Limit::entries(MOST));
        let Ok(Listed::Whole(messages)) = listed else { return None };
        found.extend(messages.iter().map(|message| read(message)).collect::<Option<Vec<_>>>()?);
    }
    Some(found)
}

/// `struct inet_diag_req_v2` of include/uapi/linux/inet_diag.h (v6.18): family, protocol, two bytes without use here,
/// the states as bits, and 48 bytes of one socket's addresses.
fn request(family: u8, sequence: u32) -> Option<Vec<u8>> {
    let mut request = Writer::default();
    let header = Header { kind: SOCK_DIAG_BY_FAMILY, flags: REQUEST | DUMP, sequence };
    request.message(header, &[family, IPPROTO_TCP, 0, 0], |body| {
        body.raw(&(1_u32 << TCP_LISTEN).to_ne_bytes());
        body.raw(&[0; 48]);
    });
    request.finish()
}

/// Reads `struct inet_diag_msg` of the same file, and the attribute after it.
fn read(message: &[u8]) -> Option<ListeningSocket> {
    let word = |at: usize| message.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let length = match *message.first()? {
        AF_INET => 4,
        AF_INET6 => 16,
        _ => return None,
    };
    let ip = address(message.get(8..8 + length)?)?;
    let port = u16::from_be_bytes(message.get(4..6)?.try_into().ok()?);
    let is_v6_only = Attributes::of(message.get(72..)?).get(INET_DIAG_SKV6ONLY);
    Some(ListeningSocket {
        address: SocketAddr::new(ip.to_canonical(), port),
        is_v6_only: is_v6_only.is_some_and(|it| it.value != [0]),
        waiting: word(56)?,
        uid: word(64)?,
        inode: word(68)?.into(),
    })
}

/// Reads both tables. A kernel without IPv6 has only the first one.
fn by_tables() -> io::Result<Vec<ListeningSocket>> {
    let [v4, v6] = TABLES.map(|table| of_table(BufReader::new(File::open(table)?)));
    let v6 = match v6 {
        Err(why) if why.kind() == ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    Ok([v4?, v6].concat())
}

/// Returns the listening sockets of a table (Documentation/networking/proc_net_tcp.rst). They are its first lines
/// (`tcp_get_idx`, net/ipv4/tcp_ipv4.c, v6.18), so the others, which may be many, are not read.
fn of_table(table: impl BufRead) -> io::Result<Vec<ListeningSocket>> {
    table.lines().skip(1).map(|line| line.map(|line| of_line(&line))).map_while(Result::transpose).collect()
}

fn of_line(line: &str) -> Option<ListeningSocket> {
    // `nth` skips: `sl`; `rem_address`; the timers and `retrnsmt`; `timeout`.
    let mut words = line.split_whitespace();
    let address = table_address(words.nth(1)?)?;
    words.nth(1).filter(|state| u32::from_str_radix(state, 16) == Ok(TCP_LISTEN))?;
    // The second queue is that of accept(2) (`get_tcp4_sock`, net/ipv4/tcp_ipv4.c, v6.18).
    let (_, waiting) = words.next()?.split_once(':')?;
    let waiting = u32::from_str_radix(waiting, 16).ok()?;
    let uid = words.nth(2)?.parse().ok()?;
    let inode = words.nth(1)?.parse().ok()?;
    Some(ListeningSocket { address, is_v6_only: false, uid, inode, waiting })
}

/// Reports whether a UDP socket of the calling thread's network namespace has this port, at any address; `false` if the
/// tables cannot be read.
pub fn has_udp_socket(port: u16) -> bool {
    let tables = ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"].map(File::open);
    let lines = tables.into_iter().flatten().flat_map(|table| BufReader::new(table).lines().skip(1));
    let mut addresses =
        lines.map_while(Result::ok).filter_map(|line| table_address(line.split_whitespace().nth(1)?));
    addresses.any(|address| address.port() == port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn the_kernels_tables_are_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             \x20  0: 00000000:0016 00000000:0000 0A 00000000:0000000B 00:00000000 00000000     7        0 15 1 0 100 0\n\
             \x20  1: 00000000:0017 00000000:0000 01 00000000:00000000 00:00000000 00000000     7        0 16 1 0 100 0\n\
             \x20  2: nonsense\n";
        let address = "0.0.0.0:22".parse().unwrap();
        assert_eq!(
            of_table(table.as_bytes()).unwrap(),
            [ListeningSocket { address, is_v6_only: false, uid: 7, inode: 15, waiting: 11 }]
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
            let by_diag = of_it(by_sock_diag().expect("this kernel has tcp_diag; modprobe tcp_diag"));
            assert_eq!(by_diag.address.ip(), bound.ip().to_canonical());
            assert_eq!(ListeningSocket { is_v6_only: false, ..by_diag }, of_it(by_tables().unwrap()));
        }
    }

    #[test]
    fn a_udp_socket_is_found_by_its_port() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        // The kernel may leave a socket out of a table while others are closed.
        assert!(has_udp_socket(port) || has_udp_socket(port));
        assert!(!has_udp_socket(0));
    }
}
