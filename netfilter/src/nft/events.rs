//! The kernel's reports of changes to nf_tables in a network namespace, for a process that keeps a table there.

use super::batch::GENERIC;
use super::error::NftError;
use crate::kernel::netlink::attr::Attributes;
use crate::kernel::netlink::message::Messages;
use crate::kernel::netlink::reply::Received;
use crate::kernel::netlink::socket::Socket;
use crate::kernel::uapi::*;
use nix::sys::socket::SockProtocol;
use std::os::fd::{AsFd, BorrowedFd};

/// Bytes of the receive buffer. The kernel puts the reports of one transaction into datagrams of `NLMSG_GOODSIZE`, less
/// than 8 KiB (`nft_commit_notify`, v6.18); a longer one, of a long object, counts as a change.
const BUFFER: usize = 8 * 1024;

/// The most reports that one call reads. The rest keep the descriptor readable.
const MOST: usize = 1000;

/// The reports about the namespace in which the calling thread opened them. Readable when there is one.
#[derive(Debug)]
pub struct RuleEvents(Socket);

impl RuleEvents {
    /// Reports changes from now on.
    ///
    /// # Errors
    /// When the process may not, or the kernel has no nf_tables.
    pub fn open() -> Result<Self, NftError> {
        let socket = Socket::open(SockProtocol::NetlinkNetFilter)?;
        socket.join(NFNLGRP_NFTABLES)?;
        Ok(Self(socket))
    }

    /// Reads the queued reports. Returns whether a change of an `inet` table with this name is among them, or may be: one
    /// that is too long to read, or reports that the kernel dropped because too many were queued.
    ///
    /// # Errors
    /// When reading fails.
    pub fn reports_change_of(&mut self, table: &str) -> Result<bool, NftError> {
        let (mut is_changed, mut buffer) = (false, [0; BUFFER]);
        for _ in 0..MOST {
            match self.0.receive(&mut buffer)? {
                Some(Received::Datagram(datagram)) => is_changed |= is_about(datagram, table),
                Some(Received::Truncated | Received::Overrun) => is_changed = true,
                None => break,
            }
        }
        Ok(is_changed)
    }
}

impl AsFd for RuleEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Reports whether a message of the datagram names the table. The first attribute of every object of nf_tables is its
/// table (`NFTA_TABLE_NAME`, `NFTA_CHAIN_TABLE`, `NFTA_RULE_TABLE`, ...).
fn is_about(datagram: &[u8], table: &str) -> bool {
    Messages(datagram).any(|message| {
        let Ok(message) = message else { return true };
        let attributes = Attributes::of(message.body.get(GENERIC..).unwrap_or_default());
        let family = message.body.first().copied();
        let name = attributes.get(NFTA_TABLE_NAME);
        family == Some(NFPROTO_INET) && name.is_some_and(|name| name.text() == table.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::netlink::attr::Writer;
    use crate::kernel::netlink::message::Header;

    /// A report about an object of this table, in the form of every object.
    fn report(family: u8, table: &str) -> Vec<u8> {
        let mut writer = Writer::default();
        let kind = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWSETELEM;
        writer.message(Header { kind, flags: 0, sequence: 7 }, &[family, 0, 0, 1], |w| {
            w.text(NFTA_SET_ELEM_LIST_TABLE, table);
        });
        writer.finish().unwrap()
    }

    #[test]
    fn only_reports_about_the_table_and_unreadable_ones_count_as_a_change() {
        let of_others = [
            report(NFPROTO_INET, "kube-proxy"),
            report(NFPROTO_INET, "gybe-probes2"),
            report(2, "gybe-probes"),
        ];
        assert!(of_others.iter().all(|report| !is_about(report, "gybe-probes")));
        assert!(!is_about(&of_others.concat(), "gybe-probes"));
        let ours = [of_others.concat(), report(NFPROTO_INET, "gybe-probes")].concat();
        assert!(is_about(&ours, "gybe-probes"));
        assert!(is_about(&[1, 2, 3], "gybe-probes"));
    }
}
