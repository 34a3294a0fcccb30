//! What every way of writing rules can do, and how it says that it could not.
//!
//! A backend takes the whole rule set. How it does so is its own affair.

mod difference;
mod inventory;
mod memory;

pub use difference::Difference;
pub use inventory::{Inventory, Item, Part, PartKind};
pub use memory::Memory;

use crate::iptables::IptablesError;
use crate::nft::NftError;
use crate::ruleset::Ruleset;

/// Writes, removes and reads our rules in the network namespace of the calling thread.
pub trait Backend: Send + Sync {
    /// Its name: `nft`, `iptables-nft`, `iptables-legacy`.
    fn name(&self) -> &'static str;

    /// Makes the namespace hold exactly `rules` of ours. Twice is the same as once.
    ///
    /// # Errors
    /// When the rules are not all in force afterwards; then none of them was changed.
    fn apply(&self, rules: &Ruleset) -> Result<(), BackendError>;

    /// Makes the namespace hold nothing of ours. Nothing there already is success.
    ///
    /// # Errors
    /// When something of ours may still be there.
    fn remove(&self) -> Result<(), BackendError>;

    /// What of ours is there, by name and in order, with counters.
    ///
    /// # Errors
    /// When it cannot be read.
    fn inspect(&self) -> Result<Inventory, BackendError>;

    /// What [`Backend::inspect`] would find after [`Backend::apply`] of these rules.
    fn wanted(&self, rules: &Ruleset) -> Inventory;
}

/// Why a backend could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// nftables over netlink.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// The iptables programs.
    #[error(transparent)]
    Iptables(#[from] IptablesError),
}

impl BackendError {
    /// What would help, where that is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Nft(error) => error.hint(),
            Self::Iptables(error) => error.hint(),
        }
    }
}
