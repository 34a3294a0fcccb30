//! nftables over netlink: one table of our own, written in one transaction, no program run.
//!
//! `expr`, `set`, `chain` and `batch` are pure and make bytes. `socket` sends them. `lists` reads lists of objects:
//! `dump` those of our table, `listed_chains` the chains of every owner.

pub mod batch;
pub(crate) mod chain;
pub(crate) mod dump;
pub(crate) mod error;
mod expr;
mod key;
pub(crate) mod listed_chains;
pub(crate) mod lists;
mod set;
pub(crate) mod socket;
pub(crate) mod uapi;
mod value;

pub use batch::{Batch, Object, Start, TooLong};
pub use chain::TABLE;
pub use error::{KernelPart, NftError};

pub use crate::netlink::reply::Unknown;
pub use crate::netlink::socket::SocketError;

use crate::access::NamespaceAccess;
use crate::backend::{Backend, BackendError, BackendKind, PreviousRules};
use crate::inventory::Inventory;
use crate::ruleset::Ruleset;
use socket::Connection;

/// The nftables backend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Nft;

impl Nft {
    /// Has the kernel check the rules, and keeps none of them.
    ///
    /// # Errors
    /// When applying them would fail.
    pub fn dry_run(&self, rules: &Ruleset) -> Result<(), NftError> {
        let mut connection = Connection::open()?;
        match connection.transact(&Batch::dry_run(rules, Start::Fresh)?) {
            Err(error) if error.is_table_there() => {
                connection.transact(&Batch::dry_run(rules, Start::Replace)?)
            }
            outcome => outcome,
        }
    }

    /// Creates the table; replaces it only where it holds other rules, because a replacement costs a delete and
    /// the counters.
    ///
    /// Takes no lock, however many calls run at once: the kernel carries out one transaction at a time
    /// (`commit_mutex`, net/netfilter/nf_tables_api.c, v6.18), and the result of a batch does not depend on what
    /// was read before it. A batch that creates the table is refused where there is one (`EEXIST`), and a batch
    /// that replaces it creates, deletes and creates it.
    fn replace(&self, connection: &mut Connection, rules: &Ruleset) -> Result<PreviousRules, NftError> {
        match connection.transact(&Batch::apply(rules, Start::Fresh)?) {
            Err(error) if error.is_table_there() => {}
            outcome => {
                let done = self.confirm(outcome, |found| dump::holds(rules, found));
                return done.map(|()| PreviousRules::None);
            }
        }
        if dump::holds(rules, &dump::inventory(connection)?) {
            return Ok(PreviousRules::Same);
        }
        let outcome = connection.transact(&Batch::apply(rules, Start::Replace)?);
        self.confirm(outcome, |found| dump::holds(rules, found)).map(|()| PreviousRules::Different)
    }

    /// Reads the table when the kernel's reply was lost. Reads it once, and over another socket: the reply may
    /// still arrive at the first.
    fn confirm(
        &self,
        outcome: Result<(), NftError>,
        is_done: impl FnOnce(&Inventory) -> bool,
    ) -> Result<(), NftError> {
        match outcome {
            Err(lost) if lost.leaves_outcome_unknown() => {
                let found = Connection::open().and_then(|mut other| dump::inventory(&mut other));
                if found.is_ok_and(|found| is_done(&found)) { Ok(()) } else { Err(lost) }
            }
            outcome => outcome,
        }
    }
}

impl Backend for Nft {
    fn name(&self) -> &'static str {
        BackendKind::Nft.name()
    }

    fn open(&self) -> Result<NamespaceAccess, BackendError> {
        Ok(NamespaceAccess::default())
    }

    fn write(&self, access: &mut NamespaceAccess, rules: &Ruleset) -> Result<PreviousRules, BackendError> {
        Ok(self.replace(access.connection()?, rules)?)
    }

    fn clear(&self, access: &mut NamespaceAccess) -> Result<(), BackendError> {
        match access.connection()?.transact(&Batch::remove().map_err(NftError::from)?) {
            Err(error) if error.is_table_absent() => Ok(()),
            outcome => Ok(self.confirm(outcome, Inventory::is_empty)?),
        }
    }

    fn read(&self, access: &mut NamespaceAccess) -> Result<Inventory, BackendError> {
        Ok(dump::inventory(access.connection()?)?)
    }

    fn desired(&self, rules: &Ruleset) -> Result<Inventory, BackendError> {
        Ok(dump::desired(rules))
    }
}
