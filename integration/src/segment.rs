//! A TCP segment that belongs to no connection. IPv4.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, recv, sendto, socket,
};
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// A FIN without a connection.
#[derive(Debug, Clone, Copy)]
pub struct Stray {
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
}

const TCP: u8 = 6;
const RESET: u8 = 0x04;
/// FIN and ACK: invalid to conntrack as a first segment (net/netfilter/nf_conntrack_proto_tcp.c,
/// `tcp_conntracks`, column sNO, v6.18), and every TCP replies with a reset.
const FIN_ACK: u8 = 0x11;

impl Stray {
    /// Sends it from the calling thread's network namespace and reports whether a reset comes back within that time.
    ///
    /// # Errors
    /// When the process may not use raw sockets.
    pub fn is_reset(&self, within: Duration) -> nix::Result<bool> {
        let deadline = Instant::now() + within;
        let raw = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Tcp)?;
        sendto(raw.as_raw_fd(), &self.bytes(), &SockaddrIn::from(self.to), MsgFlags::empty())?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(raw.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(Errno::EINTR) => continue,
                Ok(_) => {}
                Err(errno) => return Err(errno),
            }
            let mut packet = [0; 1500];
            let length = recv(raw.as_raw_fd(), &mut packet, MsgFlags::empty())?;
            if packet.get(..length).is_some_and(|packet| self.resets(packet)) {
                return Ok(true);
            }
        }
    }

    /// The segment without its IP header, which the kernel writes.
    fn bytes(&self) -> [u8; 20] {
        let [s0, s1] = self.from.port().to_be_bytes();
        let [d0, d1] = self.to.port().to_be_bytes();
        let mut segment = [s0, s1, d0, d1, 0, 0, 0, 1, 0, 0, 0, 1, 5 << 4, FIN_ACK, 16, 0, 0, 0, 0, 0];
        let pseudo = [self.from.ip().octets(), self.to.ip().octets(), [0, TCP, 0, 20]].concat();
        let [c0, c1] = checksum(&[pseudo.as_slice(), &segment].concat()).to_be_bytes();
        segment[16] = c0;
        segment[17] = c1;
        segment
    }

    /// Reports whether this packet, with its IP header, is the reset.
    fn resets(&self, packet: &[u8]) -> bool {
        let header = packet.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
        let Some(segment) = packet.get(header..header + 20) else { return false };
        let ports = [self.to.port().to_be_bytes(), self.from.port().to_be_bytes()].concat();
        segment.starts_with(&ports) && segment.get(13).is_some_and(|flags| flags & RESET != 0)
    }
}

/// The internet checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|pair| match pair {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        _ => 0,
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}
