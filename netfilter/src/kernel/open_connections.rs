//! The TCP connections that are open in a network namespace when rules are written into it.
//!
//! Conntrack starts with the first rule that needs it, and takes the next packet of an open connection for the first
//! one of a new connection: the rules then redirect it, and both sides reset it. [`keep`] prevents that. With
//! `nf_conntrack_tcp_loose` = 0 conntrack classifies such a packet as invalid (`tcp_new` in
//! net/netfilter/nf_conntrack_proto_tcp.c, v6.18), and no translation applies to it. A policy that drops invalid
//! packets, or delivers by TPROXY, needs more: an entry of conntrack for each open connection. A connection that opens
//! between the list of sockets and the rules has none, and its packets are lost; [`KeptConnections::enter_later_ones`]
//! enters it once the rules are in force, and the next retransmission of those packets passes.
//!
//! Everything here acts on the network namespace of the calling thread.

mod entries;

use crate::kernel::netlink::reply::Unknown;
use crate::kernel::netlink::socket::SocketError;
use crate::model::Hint;
use crate::model::policy::{InvalidPackets, Mode, RedirectPolicy};
use entries::EntryChange;
use nix::errno::Errno;
use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// `/proc/sys/net` shows the namespace of the thread that opens the file.
const LOOSE: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_loose";
/// The tables of TCP sockets. `/proc/net` would be the namespace of the process's first thread.
pub(super) const TABLES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];

/// How many sockets are looked at, whatever their state: a process in the namespace may open any number of them.
const MOST_SOCKETS: usize = 100_000;

/// How often the connections that opened later are listed: the second list is usually the last that has any.
const LATER_LISTS: usize = 8;

/// What [`keep`] found and changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptConnections {
    /// The number of open connections with another host.
    pub open: usize,
    /// The sysctl's value before; none if it already was 0, or this kernel has no conntrack.
    previous: Option<String>,
    /// The connections that were entered into conntrack; none under a policy that needs no entries.
    entered: Option<Vec<OpenConnection>>,
}

/// Why open connections cannot be kept.
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
    /// There are too many sockets to look at.
    #[error("the network namespace has more than {MOST_SOCKETS} TCP sockets, which is more than Gybe reads")]
    TooMany,
    /// The sysctl cannot be set.
    #[error("cannot set {LOOSE} to 0")]
    Loose(#[source] io::Error),
    /// The conntrack socket failed.
    #[error("cannot exchange messages with conntrack over netlink")]
    Socket(#[from] SocketError),
    /// The kernel refused to enter a connection, or to delete its entry.
    #[error("cannot change conntrack's entry of the connection between {local} and {remote}")]
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
    OutcomeUnknown(#[source] Unknown),
}

impl Hint for KeepError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::TooMany => {
                Some("replace the pod: an ADD writes the rules before it has connections".into())
            }
            Self::Loose(source) if source.kind() == io::ErrorKind::NotFound => {
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

    /// Enters the connections that opened since [`keep`], and deletes the entries of those that closed before their
    /// entry was made: conntrack would take the next connection between the same ports for the old one, past the rules.
    /// Call it as soon as the rules are in force.
    ///
    /// # Errors
    /// When a connection that opened since then may hang.
    pub fn enter_later_ones(self) -> Result<(), KeepError> {
        let Some(mut entered) = self.entered else { return Ok(()) };
        let mut closed = Vec::new();
        // A segment that passed the hooks before the rules were in force may open a connection after a list was read.
        for _ in 0..LATER_LISTS {
            let open = list()?;
            let later = EntryChange::Enter.make(&open)?;
            let open: HashSet<OpenConnection> = open.into_iter().collect();
            closed = entered.iter().filter(|connection| !open.contains(connection)).copied().collect();
            if later.is_empty() {
                break;
            }
            entered.extend(later);
        }
        EntryChange::Delete.make(&closed).map(drop)
    }
}

/// Prepares the namespace so that the connections that are open now keep their path when the rules of `policy` are
/// written. Call it right before that.
///
/// # Errors
/// When an open connection would be reset.
pub fn keep(policy: &RedirectPolicy) -> Result<KeptConnections, KeepError> {
    keep_under(policy.invalid == InvalidPackets::Drop || matches!(policy.mode, Mode::Tproxy { .. }))
}

/// [`keep`] for the rules of an ambient policy, under which invalid packets pass.
///
/// # Errors
/// When an open connection would be reset.
pub fn keep_under_ambient() -> Result<KeptConnections, KeepError> {
    keep_under(false)
}

/// Returns the number of open connections to listeners of this host on these ports.
///
/// # Errors
/// When the sockets cannot be listed.
pub fn open_on(ports: &[u16]) -> Result<usize, KeepError> {
    Ok(list()?.iter().filter(|connection| ports.contains(&connection.local.port())).count())
}

/// Sets the sysctl to 1, its value in a new namespace, where no rule is left that would redirect a connection that
/// conntrack does not know. Nothing records another value that it had before [`keep_under_ambient`].
///
/// # Errors
/// When it cannot be written.
pub fn stop_keeping() -> io::Result<()> {
    match fs::write(LOOSE, "1") {
        // This kernel has no conntrack.
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written,
    }
}

fn keep_under(loses_invalid: bool) -> Result<KeptConnections, KeepError> {
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
        Err(source) => return Err(KeepError::Loose(source)),
    };
    let open = connections.iter().filter(|connection| !connection.remote.ip().is_loopback()).count();
    let mut kept = KeptConnections { open, previous, entered: None };
    if loses_invalid {
        let entered = EntryChange::Enter.make(&connections).inspect_err(|_| {
            // The rules are not written, and the error says why.
            let _ = kept.undo();
        })?;
        kept.entered = Some(entered);
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct OpenConnection {
    local: SocketAddr,
    remote: SocketAddr,
}

fn list() -> Result<Vec<OpenConnection>, KeepError> {
    let (mut all, mut sockets) = (Vec::new(), 0);
    for path in TABLES {
        let read = match File::open(path) {
            Ok(table) => add(&mut all, &mut sockets, BufReader::new(table)),
            // The kernel has no IPv6.
            Err(why) if why.kind() == io::ErrorKind::NotFound && Path::new(TABLES[0]).exists() => Ok(()),
            Err(source) => Err(source),
        };
        read.map_err(|source| KeepError::List { path, source })?;
        if sockets > MOST_SOCKETS {
            return Err(KeepError::TooMany);
        }
    }
    Ok(all)
}

/// Adds the open connections of a table, and the number of its sockets, up to the first of too many.
fn add(all: &mut Vec<OpenConnection>, sockets: &mut usize, table: impl BufRead) -> io::Result<()> {
    // The title is no socket.
    for line in table.lines().skip(1) {
        *sockets += 1;
        if *sockets > MOST_SOCKETS {
            break;
        }
        all.extend(connection(&line?));
    }
    Ok(())
}

/// Parses a line of `/proc/net/tcp`; none for its title and for sockets that exchange no more data.
fn connection(line: &str) -> Option<OpenConnection> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
    // include/net/tcp_states.h: ESTABLISHED, SYN_RECV, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING.
    let is_open = matches!(state, "01" | "03" | "04" | "05" | "08" | "09" | "0B");
    Some(OpenConnection { local: table_address(local)?, remote: table_address(remote)? }).filter(|_| is_open)
}

/// Parses `0100007F:1F90`: each group of eight digits is a number in host byte order.
pub(super) fn table_address(text: &str) -> Option<SocketAddr> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sockets_of_both_tables_are_read_up_to_a_limit() {
        let table = |sockets: usize| {
            ["title".to_owned()]
                .into_iter()
                .chain(vec!["0: 0100007F:1F90 0100007F:C350 01".to_owned(); sockets])
        };
        for (sockets, read, is_too_many) in [
            ([0, 0], 0, false),
            ([2, 1], 3, false),
            ([MOST_SOCKETS, 0], MOST_SOCKETS, false),
            ([MOST_SOCKETS - 1, 1], MOST_SOCKETS, false),
            ([MOST_SOCKETS - 1, 2], MOST_SOCKETS, true),
            ([MOST_SOCKETS + 5, 0], MOST_SOCKETS, true),
        ] {
            let (mut all, mut counted) = (Vec::new(), 0);
            for number in sockets {
                let text = table(number).collect::<Vec<_>>().join("\n");
                add(&mut all, &mut counted, text.as_bytes()).unwrap();
            }
            assert_eq!((all.len(), counted > MOST_SOCKETS), (read, is_too_many), "{sockets:?}");
        }
    }

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
            let expected = OpenConnection {
                local: "10.9.0.2:8080".parse().unwrap(),
                remote: "10.9.0.1:50000".parse().unwrap(),
            };
            assert_eq!(connection(&v4(state)), is_open.then_some(expected), "{state}");
        }
        let group = |octets: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(octets));
        let mapped = [group([0; 4]), group([0; 4]), group([0, 0, 255, 255]), group([10, 9, 0, 2])].concat();
        let v6 = [group([0xfd, 9, 0, 0]), group([0; 4]), group([0; 4]), group([0, 0, 0, 1])].concat();
        assert_eq!(table_address(&format!("{mapped}:0050")), "10.9.0.2:80".parse().ok());
        assert_eq!(table_address(&format!("{v6}:0050")), "[fd09::1]:80".parse().ok());
        for text in ["", "x", "  sl  local_address rem_address   st tx_queue", "0: 00:1 00:1 01"] {
            assert_eq!(connection(text), None, "{text}");
        }
    }
}
