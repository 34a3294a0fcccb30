//! The TCP connections that are open in a network namespace when rules are written into it.
//!
//! Conntrack starts with the first rule that needs it, and takes the next packet of an open connection for the first
//! one of a new connection: the rules then redirect it, and both sides reset it. [`keep`] prevents that. With
//! `nf_conntrack_tcp_loose` = 0 conntrack classifies such a packet as invalid (`tcp_new` in
//! net/netfilter/nf_conntrack_proto_tcp.c, v6.18), and no translation applies to it. A policy that drops invalid
//! packets, or delivers by TPROXY, needs more: an entry of conntrack for each open connection.
//!
//! Everything here acts on the network namespace of the calling thread.

use crate::hint::Hint;
use crate::netlink::attr::Writer;
use crate::netlink::message::{ACK, CREATE, EXCLUSIVE, Header, REQUEST};
use crate::netlink::reply::{Outcome, Unknown};
use crate::netlink::socket::{Socket, SocketError};
use crate::nft::uapi::{NFPROTO_IPV4, NFPROTO_IPV6};
use crate::policy::{InvalidPackets, Mode, RedirectPolicy};
use nix::errno::Errno;
use nix::sys::socket::SockProtocol;
use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::{fs, io};

/// `/proc/sys/net` shows the namespace of the thread that opens the file.
const LOOSE: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_loose";
/// The tables of TCP sockets. `/proc/net` would be the namespace of the process's first thread.
const TABLES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];

/// What [`keep`] found and changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptConnections {
    /// The number of open connections with another host.
    pub open: usize,
    /// The sysctl's value before; none if it already was 0, or this kernel has no conntrack.
    previous: Option<String>,
}

/// Why open connections cannot be kept. No rule has been written.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The sockets cannot be listed.
    #[error("cannot list the open connections in {path}")]
    List {
        /// The table.
        path: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The sysctl cannot be set.
    #[error("cannot set {LOOSE} to 0")]
    Loose {
        /// Why.
        source: io::Error,
    },
    /// The conntrack socket failed.
    #[error("cannot exchange messages with conntrack over netlink")]
    Socket(#[from] SocketError),
    /// The kernel refused the entry of a connection.
    #[error("cannot enter the connection between {local} and {remote} into conntrack")]
    Entry {
        /// The address and port of the socket.
        local: SocketAddr,
        /// Those of its peer.
        remote: SocketAddr,
        /// The kernel's error.
        source: Errno,
    },
    /// The kernel did not reply conclusively.
    #[error("cannot determine whether conntrack has the open connections")]
    OutcomeUnknown {
        /// What was received instead.
        source: Unknown,
    },
}

impl Hint for KeepError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Loose { source } if source.kind() == io::ErrorKind::NotFound => {
                Some("load the kernel module nf_conntrack".into())
            }
            Self::Entry { source: Errno::EINVAL | Errno::EOPNOTSUPP, .. } => {
                Some("load the kernel module nf_conntrack_netlink".into())
            }
            _ => None,
        }
    }
}

impl KeptConnections {
    /// Undoes the change of the sysctl, after the rules could not be written. Entries of conntrack stay; they change no
    /// connection.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn undo(&self) -> io::Result<()> {
        restore(self.previous.as_deref())
    }
}

/// Prepares the namespace so that the connections that are open now keep their path when the rules of `policy` are
/// written. Call it right before that.
///
/// # Errors
/// When an open connection would be reset.
pub fn keep(policy: &RedirectPolicy) -> Result<KeptConnections, KeepError> {
    // First the sysctl: a connection that opens after the list was read is then kept by it.
    let loose = refuse_unknown_segments();
    let connections = list().inspect_err(|_| {
        // The rules are not written, and the error says why.
        let _ = loose.as_ref().map(|previous| restore(previous.as_deref()));
    })?;
    let previous = match loose {
        Ok(previous) => previous,
        // Without conntrack no other rule translates here, and without connections there is nothing to keep.
        Err(source) if source.kind() == io::ErrorKind::NotFound && connections.is_empty() => None,
        Err(source) => return Err(KeepError::Loose { source }),
    };
    let open = connections.iter().filter(|connection| !connection.remote.ip().is_loopback()).count();
    let kept = KeptConnections { open, previous };
    let loses_invalid = policy.invalid == InvalidPackets::Drop || matches!(policy.mode, Mode::Tproxy { .. });
    if loses_invalid && let Err(error) = enter(&connections) {
        // The rules are not written, and the error says why.
        let _ = kept.undo();
        return Err(error);
    }
    Ok(kept)
}

/// Sets the sysctl to 0 and returns its value before, if that was another.
fn refuse_unknown_segments() -> io::Result<Option<String>> {
    let previous = fs::read_to_string(LOOSE)?;
    if previous.trim() == "0" {
        return Ok(None);
    }
    fs::write(LOOSE, "0")?;
    Ok(Some(previous))
}

/// Sets the sysctl to the value that it had, if it was changed.
fn restore(previous: Option<&str>) -> io::Result<()> {
    previous.map_or(Ok(()), |previous| fs::write(LOOSE, previous))
}

/// An open TCP connection. One between two sockets of the namespace is listed twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Connection {
    local: SocketAddr,
    remote: SocketAddr,
}

fn list() -> Result<Vec<Connection>, KeepError> {
    let mut all = Vec::new();
    for path in TABLES {
        match fs::read_to_string(path) {
            Ok(table) => all.extend(table.lines().filter_map(connection)),
            // The kernel has no IPv6.
            Err(why) if why.kind() == io::ErrorKind::NotFound && Path::new(TABLES[0]).exists() => {}
            Err(source) => return Err(KeepError::List { path, source }),
        }
    }
    Ok(all)
}

/// Parses a line of `/proc/net/tcp`; none for its title and for sockets that exchange no more data.
fn connection(line: &str) -> Option<Connection> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
    // include/net/tcp_states.h: ESTABLISHED, SYN_RECV, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING.
    let is_open = matches!(state, "01" | "03" | "04" | "05" | "08" | "09" | "0B");
    Some(Connection { local: address(local)?, remote: address(remote)? }).filter(|_| is_open)
}

/// Parses `0100007F:1F90`: each group of eight digits is a number in host byte order.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let groups = (0..ip.len()).step_by(8).map(|at| u32::from_str_radix(ip.get(at..at + 8)?, 16).ok());
    let bytes: Vec<u8> =
        groups.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let ip = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(octets) => IpAddr::V4(Ipv4Addr::from(octets)),
        Err(_) => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical(),
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_NEW`, and the attributes of a new entry
/// (include/uapi/linux/netfilter/nfnetlink_conntrack.h, v6.18).
const NEW_ENTRY: u16 = 0x0100;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_TIMEOUT: u16 = 7;
/// `IPS_SEEN_REPLY | IPS_ASSURED | IPS_CONFIRMED`: no packet of it is the first, so no translation is looked up.
const STATUS: u32 = 0b1110;
/// `TCP_CONNTRACK_ESTABLISHED`.
const ESTABLISHED: u8 = 3;
/// `IP_CT_TCP_FLAG_BE_LIBERAL` as flags and mask: the scales of the windows are not known.
const LIBERAL: [u8; 2] = [0x08, 0x08];
/// In seconds: the kernel's own for established connections (`tcp_timeouts`).
const TIMEOUT: u32 = 5 * 24 * 3600;
/// The most entries in one datagram.
const AT_ONCE: usize = 128;

/// Enters the connections into conntrack. Those that it already has are left as they are.
fn enter(connections: &[Connection]) -> Result<(), KeepError> {
    let mut socket = Socket::open(SockProtocol::NetlinkNetFilter)?;
    for some in connections.chunks(AT_ONCE) {
        let mut writer = Writer::with_capacity(192 * some.len());
        let mut last = 0;
        for (sequence, connection) in (1..).zip(some) {
            // The kernel replies to each message that it refuses, and to the last one in any case.
            let ack = if usize::try_from(sequence) == Ok(some.len()) { ACK } else { 0 };
            let header = Header { kind: NEW_ENTRY, flags: REQUEST | CREATE | EXCLUSIVE | ack, sequence };
            let family = if connection.local.is_ipv4() { NFPROTO_IPV4 } else { NFPROTO_IPV6 };
            writer.message(header, &[family, 0, 0, 0], |w| connection.entry(w));
            last = sequence;
        }
        match socket.transact(&writer.finish().unwrap_or_default(), last)? {
            Outcome::Done => {}
            Outcome::Unknown(source) => return Err(KeepError::OutcomeUnknown { source }),
            Outcome::Refused(refusals) => {
                let refused = refusals.into_iter().find(|refusal| refusal.errno != Errno::EEXIST);
                let index = |sequence: u32| usize::try_from(sequence.checked_sub(1)?).ok();
                if let Some(refusal) = refused {
                    let Some(connection) = index(refusal.sequence).and_then(|index| some.get(index)) else {
                        return Err(KeepError::OutcomeUnknown { source: Unknown::Unreadable });
                    };
                    let Connection { local, remote } = *connection;
                    return Err(KeepError::Entry { local, remote, source: refusal.errno });
                }
            }
        }
    }
    Ok(())
}

impl Connection {
    /// Writes the attributes of its entry.
    fn entry(&self, w: &mut Writer) {
        w.nested(CTA_TUPLE_ORIG, |w| tuple(self.local, self.remote, w));
        w.nested(CTA_TUPLE_REPLY, |w| tuple(self.remote, self.local, w));
        w.be32(CTA_STATUS, STATUS);
        w.be32(CTA_TIMEOUT, TIMEOUT);
        w.nested(CTA_PROTOINFO, |w| {
            // CTA_PROTOINFO_TCP and its STATE, FLAGS_ORIGINAL and FLAGS_REPLY.
            w.nested(1, |w| {
                w.attr(1, &[ESTABLISHED]);
                w.attr(4, &LIBERAL);
                w.attr(5, &LIBERAL);
            });
        });
    }
}

/// Writes `CTA_TUPLE_IP` and `CTA_TUPLE_PROTO`.
fn tuple(from: SocketAddr, to: SocketAddr, w: &mut Writer) {
    w.nested(1, |w| match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            w.attr(1, &from.octets());
            w.attr(2, &to.octets());
        }
        (from, to) => {
            let octets = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            w.attr(3, &octets(from));
            w.attr(4, &octets(to));
        }
    });
    w.nested(2, |w| {
        w.attr(1, &[6]);
        w.attr(2, &from.port().to_be_bytes());
        w.attr(3, &to.port().to_be_bytes());
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_of_open_connections_are_read_and_the_others_are_not() {
        let v4 = |state: &str| {
            let ip = |octets: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(octets));
            format!(
                "   0: {}:1F90 {}:C350 {state} 00000000:00000000 00:00000000 00000000 0",
                ip([10, 9, 0, 2]),
                ip([10, 9, 0, 1])
            )
        };
        for (state, is_open) in [("01", true), ("02", false), ("03", true), ("06", false), ("0A", false)] {
            let expected = Connection {
                local: "10.9.0.2:8080".parse().unwrap(),
                remote: "10.9.0.1:50000".parse().unwrap(),
            };
            assert_eq!(connection(&v4(state)), is_open.then_some(expected), "{state}");
        }
        let group = |octets: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(octets));
        let mapped = [group([0; 4]), group([0; 4]), group([0, 0, 255, 255]), group([10, 9, 0, 2])].concat();
        let v6 = [group([0xfd, 9, 0, 0]), group([0; 4]), group([0; 4]), group([0, 0, 0, 1])].concat();
        assert_eq!(address(&format!("{mapped}:0050")), "10.9.0.2:80".parse().ok());
        assert_eq!(address(&format!("{v6}:0050")), "[fd09::1]:80".parse().ok());
        for text in ["", "x", "  sl  local_address rem_address   st tx_queue", "0: 00:1 00:1 01"] {
            assert_eq!(connection(text), None, "{text}");
        }
    }
}
