//! nftables over netlink: one table of our own, written in one transaction, no program run.
//!
//! `expr`, `set`, `chain` and `batch` are pure and make bytes; `socket` sends, `dump` reads back.

pub mod batch;
mod chain;
pub(crate) mod chains;
mod dump;
mod error;
mod expr;
mod key;
mod set;
mod socket;
pub(crate) mod uapi;
mod value;

pub use batch::{Batch, Object, Start, TooLong};
pub use error::{KernelPart, NftError};

pub use crate::netlink::reply::Unknown;
pub use crate::netlink::socket::Failure;

use crate::backend::{Backend, BackendError, Inventory};
use crate::ruleset::Ruleset;
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
    fn settle(&self, rules: &Ruleset) -> Result<(), NftError> {
        let mut connection = Connection::open()?;
        match connection.transact(&Batch::apply(rules, Start::Fresh)?) {
            Err(error) if error.is_table_there() => {}
            outcome => return outcome,
        }
        if self.wanted(rules).differences(&dump::inventory(&mut connection)?).is_empty() {
            return Ok(());
        }
        connection.transact(&Batch::apply(rules, Start::Replace)?)
    }
}

impl Backend for Nft {
    fn name(&self) -> &'static str {
        "nft"
    }

    fn apply(&self, rules: &Ruleset) -> Result<(), BackendError> {
        Ok(self.settle(rules)?)
    }

    fn remove(&self) -> Result<(), BackendError> {
        match Connection::open()?.transact(&Batch::remove().map_err(NftError::from)?) {
            Err(error) if error.is_table_absent() => Ok(()),
            outcome => Ok(outcome?),
        }
    }

    fn inspect(&self) -> Result<Inventory, BackendError> {
        Ok(dump::inventory(&mut Connection::open()?)?)
    }

    fn wanted(&self, rules: &Ruleset) -> Inventory {
        dump::wanted(rules)
    }
}
