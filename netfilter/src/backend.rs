//! What every way of writing rules can do, and how it says that it could not.
//!
//! A backend takes the whole rule set. How it does so is its own affair.

mod applied;
mod difference;
mod foreign;
mod inventory;
mod kind;
mod memory;

pub use applied::{Applied, Before, Translator};
pub use difference::Difference;
pub use foreign::Foreign;
pub(crate) use foreign::Name;
pub use inventory::{Inventory, Item, Part, PartKind};
pub use kind::BackendKind;
pub use memory::Memory;

use crate::hint::Hint;
use crate::iptables::IptablesError;
use crate::nft::NftError;
use crate::ruleset::Ruleset;
use std::borrow::Cow;

/// Writes, removes and reads our rules in the network namespace of the calling thread.
pub trait Backend: Send + Sync {
    /// Its name: `nft`, `iptables-nft`, `iptables-legacy`.
    fn name(&self) -> &'static str;

    /// Makes the namespace hold exactly `rules` of ours. Twice is the same as once. What another
    /// backend of ours has written there goes once these are in force.
    ///
    /// # Errors
    /// When the rules are not all in force afterwards, and then none of them was changed; also when
    /// somebody else redirects the namespace, and when another backend's rules could not be taken away.
    fn apply(&self, rules: &Ruleset) -> Result<Applied, BackendError>;

    /// Makes the namespace hold nothing that this backend writes. Nothing there already is success.
    ///
    /// # Errors
    /// When something of ours may still be there.
    fn remove(&self) -> Result<(), BackendError>;

    /// What this backend has written there, by name and in order, with counters.
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
    /// Somebody else redirects this namespace.
    #[error(transparent)]
    Foreign(#[from] Foreign),
    /// Two backends have their rules there now.
    #[error("the rules are in force, and those of {kind} are still there beside them")]
    Left {
        /// Whose rules should have gone.
        kind: BackendKind,
        /// Why they have not.
        source: Box<BackendError>,
    },
}

impl Hint for BackendError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Nft(error) => error.hint(),
            Self::Iptables(error) => error.hint(),
            Self::Foreign(foreign) => foreign.hint(),
            Self::Left { source, .. } => source.hint().or_else(|| Some("apply again".into())),
        }
    }
}
