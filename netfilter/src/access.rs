//! What one operation on a namespace's rules works with: an nfnetlink socket, and the lock of the iptables backends.

pub(crate) mod listed_chains;

use crate::kernel::lock::lock;
use crate::nft::error::NftError;
use crate::nft::socket::Connection;
use listed_chains::ListedChain;
use std::fs::{File, TryLockError};
use std::time::{Duration, Instant};

/// Why the chains of a namespace cannot be listed.
pub type ChainsError = NftError;

/// Access to the rules of the network namespace in which the calling thread was when it made this value.
#[derive(Debug, Default)]
pub struct NamespaceAccess {
    connection: Option<Connection>,
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
    pub(crate) fn connection(&mut self) -> Result<&mut Connection, NftError> {
        match &mut self.connection {
            Some(connection) => Ok(connection),
            none => Ok(none.insert(Connection::open()?)),
        }
    }

    /// All nftables chains of the namespace, of every owner; `None` where the kernel has no nftables.
    pub(crate) fn chains(&mut self) -> Result<Option<Vec<ListedChain>>, ChainsError> {
        match self.connection() {
            Ok(connection) => listed_chains::list(connection),
            Err(error) if error.is_without_nftables() => Ok(None),
            Err(error) => Err(error),
        }
    }
}
