//! nftables over netlink: one table of our own, written in one transaction, no program run.
//!
//! `expr`, `set`, `chain` and `batch` are pure and make bytes; `socket` sends, `dump` reads back.

pub mod batch;
mod chain;
pub(crate) mod chains;
pub(crate) mod dump;
mod error;
mod expr;
mod key;
mod set;
pub(crate) mod socket;
pub(crate) mod uapi;
mod value;

pub use batch::{Batch, Object, Start, TooLong};
pub use error::{KernelPart, NftError};

pub use crate::netlink::reply::Unknown;
pub use crate::netlink::socket::Failure;

use crate::backend::{Applied, Backend, BackendError, BackendKind, Before, Inventory};
use crate::presence::Presence;
use crate::ruleset::Ruleset;
use chains::chains_over;
use socket::Connection;

/// The table's name, family `inet`. Nothing else in a namespace is ours, and nothing in it is not.
pub const TABLE: &str = "gybe";

/// The nftables backend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Nft;

impl Nft {
    /// Has the kernel try the rules without keeping any of them.
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

    /// Rules that are there already stay: replacing them would cost a delete and their counters.
    ///
    /// No lock, however many calls there are at once: the kernel carries out one transaction at a time
    /// (`commit_mutex`, net/netfilter/nf_tables_api.c, v6.18), and what a batch leaves behind hangs on
    /// nothing that was read before. One that makes the table is refused where there is one (`EEXIST`),
    /// and one that replaces it makes, deletes and makes it.
    fn settle(&self, connection: &mut Connection, rules: &Ruleset) -> Result<Before, NftError> {
        match connection.transact(&Batch::apply(rules, Start::Fresh)?) {
            Err(error) if error.is_table_there() => {}
            outcome => {
                let done = self.ascertained(outcome, |found| dump::holds(rules, found));
                return done.map(|()| Before::Nothing);
            }
        }
        if dump::holds(rules, &dump::inventory(connection)?) {
            return Ok(Before::TheSame);
        }
        let outcome = connection.transact(&Batch::apply(rules, Start::Replace)?);
        self.ascertained(outcome, |found| dump::holds(rules, found)).map(|()| Before::Others)
    }

    /// When the kernel's answer got lost, what is there tells what it was. Asked once, and over
    /// another socket: the answer may still come over the first.
    fn ascertained(
        &self,
        outcome: Result<(), NftError>,
        done: impl FnOnce(&Inventory) -> bool,
    ) -> Result<(), NftError> {
        match outcome {
            Err(lost) if lost.leaves_it_open() => {
                let found = Connection::open().and_then(|mut other| dump::inventory(&mut other));
                if found.is_ok_and(|found| done(&found)) { Ok(()) } else { Err(lost) }
            }
            outcome => outcome,
        }
    }
}

impl Backend for Nft {
    fn name(&self) -> &'static str {
        "nft"
    }

    /// One socket for all of it, and for a fresh namespace no program.
    fn apply(&self, rules: &Ruleset) -> Result<Applied, BackendError> {
        let mut connection = Connection::open()?;
        let presence = Presence::among(&chains_over(&mut connection)?)?;
        let others = presence.others_than(BackendKind::Nft)?;
        // Found before anything is written: without its programs a backend's rules cannot go.
        let others = others.into_iter().map(|kind| Ok((kind, kind.find()?)));
        let others = others.collect::<Result<Vec<_>, BackendError>>()?;
        let before = self.settle(&mut connection, rules)?;
        if others.is_empty() {
            return Ok(Applied { before, beside: presence.beside });
        }
        for (kind, other) in others {
            other.remove().map_err(|source| BackendError::Left { kind, source: Box::new(source) })?;
        }
        // Another call by such a backend may have taken our table for an earlier one's before its own rules
        // went just now.
        self.settle(&mut connection, rules)?;
        Ok(Applied { before: Before::Others, beside: presence.beside })
    }

    fn remove(&self) -> Result<(), BackendError> {
        match Connection::open()?.transact(&Batch::remove().map_err(NftError::from)?) {
            Err(error) if error.is_table_absent() => Ok(()),
            outcome => Ok(self.ascertained(outcome, Inventory::is_empty)?),
        }
    }

    fn inspect(&self) -> Result<Inventory, BackendError> {
        Ok(dump::inventory(&mut Connection::open()?)?)
    }

    fn wanted(&self, rules: &Ruleset) -> Inventory {
        dump::wanted(rules)
    }
}
