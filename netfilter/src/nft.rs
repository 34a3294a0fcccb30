//! nftables over netlink: one table of our own, written in one transaction, no program run.
//!
//! `expr`, `set`, `chain` and `batch` are pure and make bytes. `socket` sends them. `lists` reads lists of objects,
//! `dump` those of our tables. `exemption` keeps the table of the node's namespace, of which `events` reports changes.

pub mod batch;
pub(crate) mod chain;
pub(crate) mod dump;
pub(crate) mod error;
pub mod events;
pub mod exemption;
mod expr;
mod key;
pub(crate) mod lists;
mod set;
pub(crate) mod socket;

pub use batch::{Batch, BatchObject, ExemptionObject, Start, TooLong};
pub use chain::TABLE;
pub use error::{KernelPart, NftError};

pub use crate::kernel::netlink::reply::Unknown;
pub use crate::kernel::netlink::socket::SocketError;

use crate::model::inventory::{Inventory, PreviousRules};
use crate::model::ruleset::Ruleset;
use socket::NftSocket;

/// The nftables backend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Nft;

impl Nft {
    /// Has the kernel check the rules, and keeps none of them.
    ///
    /// # Errors
    /// When applying them would fail.
    pub fn dry_run(&self, rules: &Ruleset) -> Result<(), NftError> {
        let mut connection = NftSocket::open()?;
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
    pub(crate) fn replace(
        &self,
        connection: &mut NftSocket,
        rules: &Ruleset,
    ) -> Result<PreviousRules, NftError> {
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

    /// [`Nft::replace`], which deletes istio-cni's tables for ambient pods in the same transaction.
    pub(crate) fn take_over(&self, connection: &mut NftSocket, rules: &Ruleset) -> Result<(), NftError> {
        let outcome = connection.transact(&Batch::take_over(rules)?);
        self.confirm(outcome, |found| dump::holds(rules, found))
    }

    /// [`Nft::delete`] for these tables, too.
    pub(crate) fn delete_with_istio_ambient(&self, connection: &mut NftSocket) -> Result<(), NftError> {
        connection.transact(&Batch::remove_with_istio_ambient()?)
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
                let found = NftSocket::open().and_then(|mut other| dump::inventory(&mut other));
                if found.is_ok_and(|found| is_done(&found)) { Ok(()) } else { Err(lost) }
            }
            outcome => outcome,
        }
    }

    /// Deletes the table; succeeds when there is none.
    pub(crate) fn delete(&self, connection: &mut NftSocket) -> Result<(), NftError> {
        match connection.transact(&Batch::remove()?) {
            Err(error) if error.is_table_absent() => Ok(()),
            outcome => self.confirm(outcome, Inventory::is_empty),
        }
    }

    /// Reads the table.
    pub(crate) fn list(connection: &mut NftSocket) -> Result<Inventory, NftError> {
        dump::inventory(connection)
    }

    /// What [`Nft::list`] returns after these rules were written.
    pub(crate) fn expected(rules: &Ruleset) -> Inventory {
        dump::desired(rules)
    }
}
