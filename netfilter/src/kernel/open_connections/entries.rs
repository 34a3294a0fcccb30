//! Conntrack's entries of open connections, entered and deleted over netlink.

use super::{KeepError, OpenConnection};
use crate::kernel::netlink::attr::Writer;
use crate::kernel::netlink::message::{ACK, CREATE, EXCLUSIVE, Header, REQUEST};
use crate::kernel::netlink::reply::RequestOutcome;
use crate::kernel::netlink::socket::Socket;
use crate::model::ruleset::{Family, Transport};
use nix::errno::Errno;
use nix::sys::socket::SockProtocol;
use std::net::{IpAddr, SocketAddr};

/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_NEW`, the same for IPCTNL_MSG_CT_DELETE, and the attributes of an entry
/// (include/uapi/linux/netfilter/nfnetlink_conntrack.h, v6.18).
const NEW_ENTRY: u16 = 0x0100;
const DELETE_ENTRY: u16 = 0x0102;
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
const MAX_ENTRIES_AT_ONCE: usize = 128;

/// A change of conntrack's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryChange {
    /// Entries that conntrack already has are left as they are.
    Enter,
    /// Entries that are gone already are no error.
    Delete,
}

impl EntryChange {
    fn message(self) -> (u16, u16) {
        match self {
            Self::Enter => (NEW_ENTRY, REQUEST | CREATE | EXCLUSIVE),
            Self::Delete => (DELETE_ENTRY, REQUEST),
        }
    }

    fn is_made_already(self, errno: Errno) -> bool {
        errno == if self == Self::Enter { Errno::EEXIST } else { Errno::ENOENT }
    }

    /// Makes it for each connection, and returns those whose entries changed.
    pub(super) fn make(self, connections: &[OpenConnection]) -> Result<Vec<OpenConnection>, KeepError> {
        let mut socket = Socket::open(SockProtocol::NetlinkNetFilter)?;
        let mut changed = Vec::new();
        let (kind, flags) = self.message();
        for some in connections.chunks(MAX_ENTRIES_AT_ONCE) {
            let mut writer = Writer::with_capacity(192 * some.len());
            let mut last = 0;
            for (sequence, connection) in (1..).zip(some) {
                // The kernel replies to each message that it refuses, and to the last one in any case.
                let ack = if usize::try_from(sequence) == Ok(some.len()) { ACK } else { 0 };
                let header = Header { kind, flags: flags | ack, sequence };
                let family = Family::of(connection.local.ip()).number();
                writer.message(header, &[family, 0, 0, 0], |w| connection.entry(self, w));
                last = sequence;
            }
            let refusals = match socket.transact(&writer.finish().unwrap_or_default(), last)? {
                RequestOutcome::Done => Vec::new(),
                RequestOutcome::Unknown(source) => return Err(KeepError::OutcomeUnknown(source)),
                RequestOutcome::Refused(refusals) => refusals,
            };
            for (sequence, connection) in (1..).zip(some) {
                match refusals.iter().find(|refusal| refusal.sequence == sequence).map(|one| one.errno) {
                    None => changed.push(*connection),
                    Some(errno) if self.is_made_already(errno) => {}
                    Some(source) => {
                        let OpenConnection { local, remote } = *connection;
                        return Err(KeepError::Entry { local, remote, source });
                    }
                }
            }
        }
        Ok(changed)
    }
}

impl OpenConnection {
    /// Writes the attributes of its entry; a deletion names only the first tuple.
    fn entry(&self, change: EntryChange, w: &mut Writer) {
        w.nested(CTA_TUPLE_ORIG, |w| tuple(self.local, self.remote, w));
        if change == EntryChange::Delete {
            return;
        }
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
        w.attr(1, &[Transport::Tcp.number()]);
        w.attr(2, &from.port().to_be_bytes());
        w.attr(3, &to.port().to_be_bytes());
    });
}
