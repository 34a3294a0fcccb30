//! What one operation on a namespace's rules works with: an nfnetlink socket, the list of the chains of every owner,
//! which shows other owners' rules and the tables of iptables-nft, and the lock of the iptables backends: a file lock with
//! a deadline, which the probe cache uses, too.

use crate::kernel::uapi::*;
use crate::model::ruleset::TableFamily;
use crate::nft::chain::Base;
use crate::nft::error::NftError;
use crate::nft::lists::{self, ListEntry, Lister};
use crate::nft::socket::NftSocket;
use nix::errno::Errno;
use std::fs::{File, TryLockError};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Why the chains of a namespace cannot be listed.
pub type ChainsError = NftError;

/// Access to the rules of the network namespace in which the calling thread was when it made this value.
#[derive(Debug, Default)]
pub struct NamespaceAccess {
    connection: Option<NftSocket>,
    lock: Option<File>,
    /// The end of the time in which the lock was to be had and the programs have to finish.
    deadline: Option<Instant>,
}

impl NamespaceAccess {
    /// Access under the namespace's lock, which keeps other Gybe processes from reading and writing iptables rules
    /// there until the value is dropped. Waits for `time` at most.
    ///
    /// A write follows from what was read before, and both take several programs: two concurrent calls would each
    /// add their jumps, or restore what the other has replaced. The lock is on the namespace itself, so calls
    /// for different namespaces do not wait for each other, and no file is left behind. A program that uses the
    /// same file as its xtables lock (istio-cni does) waits for a whole call instead of for each of its programs.
    /// A process in the pod can lock its own namespace and so delay later reads and removals until their deadline;
    /// an ADD runs before the pod's first process.
    pub(crate) fn locked(time: Duration) -> Result<Self, TryLockError> {
        let namespace = File::open("/proc/thread-self/ns/net").map_err(TryLockError::Error)?;
        let deadline = Instant::now() + time;
        lock(&namespace, time)?;
        Ok(Self { connection: None, lock: Some(namespace), deadline: Some(deadline) })
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.lock.is_some()
    }

    /// The deadline of a whole call, the wait for the lock included; none without a lock.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The nfnetlink socket, opened at first use.
    pub(crate) fn connection(&mut self) -> Result<&mut NftSocket, NftError> {
        match &mut self.connection {
            Some(connection) => Ok(connection),
            none => Ok(none.insert(NftSocket::open()?)),
        }
    }

    /// All nftables chains of the namespace, of every owner; `None` where the kernel has no nftables.
    pub(crate) fn chains(&mut self) -> Result<Option<Vec<ListedChain>>, ChainsError> {
        match self.connection() {
            Ok(connection) => list_chains(connection),
            Err(error) if error.is_without_nftables() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// One chain of the kernel's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedChain {
    pub(crate) family: TableFamily,
    pub(crate) table: String,
    pub(crate) name: String,
    /// The priority of a base chain that translates destinations.
    pub(crate) translates_at: Option<i32>,
    /// The number of rules in it and of rules that lead to it.
    pub(crate) uses: u32,
}

/// Lists all chains; `None` where the kernel has no nftables.
fn list_chains(connection: &mut NftSocket) -> Result<Option<Vec<ListedChain>>, NftError> {
    let lister: &mut Lister<'_> = &mut |request, sequence, limit| connection.0.list(request, sequence, limit);
    let chains = lists::of_one_generation(lister, NFPROTO_UNSPEC, |lists| lists.all(lists::CHAINS, |_| ()));
    match chains {
        Ok(entries) => Ok(Some(parse_chains(&entries))),
        // No such subsystem (`nfnetlink_rcv_msg`).
        Err(NftError::List { source: Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOENT, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Parses the entries of a list; those of other families, and without table or name, are skipped.
pub(crate) fn parse_chains(entries: &[ListEntry]) -> Vec<ListedChain> {
    entries.iter().filter_map(chain).collect()
}

fn chain(entry: &ListEntry) -> Option<ListedChain> {
    let attributes = entry.attributes();
    let text = |kind| attributes.name(kind);
    let uses = attributes.be32(NFTA_CHAIN_USE).unwrap_or_default();
    let translates_at = Base::read(&attributes).and_then(|base| base.translates_at());
    let (table, name) = (text(NFTA_CHAIN_TABLE)?, text(NFTA_CHAIN_NAME)?);
    Some(ListedChain { family: TableFamily::numbered(entry.family())?, table, name, translates_at, uses })
}

/// Takes an exclusive lock on `file`, until it is closed, and waits for `time` at most.
///
/// flock(2) has no deadline, so a thread waits for a lock that another process holds. After the deadline that thread
/// goes on waiting without effect: the lock belongs to the open file description, which both share.
///
/// # Errors
/// `WouldBlock` when the lock was not free within `time`; the kernel's error when the file cannot be locked or the
/// thread cannot be started.
pub fn lock(file: &File, time: Duration) -> Result<(), TryLockError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {}
        outcome => return outcome,
    }
    let waiting = file.try_clone().map_err(TryLockError::Error)?;
    let (sender, receiver) = mpsc::channel();
    let waiter = thread::Builder::new().name("lock".to_owned()).spawn(move || {
        let outcome = waiting.lock();
        // Before the result is sent: closing the caller's file then releases the lock.
        drop(waiting);
        let _receiver_timed_out = sender.send(outcome);
    });
    waiter.map_err(TryLockError::Error)?;
    receiver.recv_timeout(time).map_err(|_| TryLockError::WouldBlock)?.map_err(TryLockError::Error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::os::fd::AsRawFd;
    use std::time::Instant;

    #[test]
    fn f22_a_lock_is_waited_for_until_the_deadline() {
        let memory = File::from(memfd_create(c"gybe-lock", MFdFlags::MFD_CLOEXEC).unwrap());
        // Locks exclude open file descriptions, also those of one process.
        let opened = || File::open(format!("/proc/self/fd/{}", memory.as_raw_fd())).unwrap();
        let (first, second, third, long) = (opened(), opened(), opened(), Duration::from_secs(60));
        lock(&first, long).unwrap();
        let began = Instant::now();
        let late = lock(&second, Duration::from_millis(20));
        assert!(matches!(late, Err(TryLockError::WouldBlock)), "{late:?}");
        // A waiter that timed out does not keep the lock from the next.
        drop(second);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| lock(&third, long));
            drop(first);
            waiting.join().unwrap().unwrap();
        });
        assert!(began.elapsed() < long);
    }
}
