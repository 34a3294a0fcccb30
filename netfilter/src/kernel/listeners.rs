//! The listening TCP sockets of a network namespace, by sock_diag(7).
//!
//! `/proc/net/tcp` and `tcp6` have them too, but to find their end the kernel walks through the hash table of the
//! connections of all namespaces: 7 ms each on a machine with 24 GiB, where this list takes 0.1 ms.

use super::netlink::attr::{Writer, address};
use super::netlink::list::{Limit, Listed};
use super::netlink::message::{DUMP, Header, REQUEST};
use super::netlink::socket::Socket;
use nix::sys::socket::SockProtocol;
use std::net::SocketAddr;

/// A listening TCP socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListeningSocket {
    /// The address that it is bound to; an IPv4-mapped IPv6 address as IPv4.
    pub address: SocketAddr,
    /// Its owner in the caller's user namespace.
    pub uid: u32,
    /// Its inode, which the links in `/proc/PID/fd` name.
    pub inode: u64,
    /// Connections that no process has accepted yet.
    pub waiting: u32,
}

/// include/uapi/linux/sock_diag.h (v6.18).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// include/net/tcp_states.h (v6.18).
const TCP_LISTEN: u32 = 10;
// include/linux/socket.h and include/uapi/linux/in.h (v6.18), in the width of the messages.
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;

/// A process in the namespace may open any number of sockets.
const MOST: usize = 100_000;

/// Returns the listening TCP sockets of the calling thread's network namespace; `None` if they cannot be listed, as
/// where the kernel has no `tcp_diag`; a module of that name is loaded. Sockets that open or close meanwhile may hide
/// another one.
pub fn listening_sockets() -> Option<Vec<ListeningSocket>> {
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

/// Reads `struct inet_diag_msg` of the same file.
fn read(message: &[u8]) -> Option<ListeningSocket> {
    let word = |at: usize| message.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let length = match *message.first()? {
        AF_INET => 4,
        AF_INET6 => 16,
        _ => return None,
    };
    let ip = address(message.get(8..8 + length)?)?;
    let port = u16::from_be_bytes(message.get(4..6)?.try_into().ok()?);
    Some(ListeningSocket {
        address: SocketAddr::new(ip.to_canonical(), port),
        waiting: word(56)?,
        uid: word(64)?,
        inode: word(68)?.into(),
    })
}
