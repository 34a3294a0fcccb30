//! The interface of the backends. A backend knows only its own rules; [`crate::apply`] decides about other owners'
//! rules and about those of another backend.

use crate::access::NamespaceAccess;
use crate::iptables::{Iptables, IptablesError};
use crate::model::Hint;
use crate::model::inventory::{Inventory, PreviousRules};
use crate::model::ruleset::{Engine, Ruleset};
use crate::nft::{Nft, NftError};
use std::borrow::Cow;
use std::error::Error;
use std::fmt;

/// Writes, removes and reads Gybe's rules in the network namespace of the calling thread.
pub trait Backend: Send + Sync {
    /// Which backend's rules these are.
    fn kind(&self) -> BackendKind;

    /// The name of its kind.
    fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Opens the namespace for the methods below. The iptables backends take the namespace's lock; transactions of
    /// nftables need none.
    ///
    /// # Errors
    /// When another process holds the lock for longer than the backend waits.
    fn open(&self) -> Result<NamespaceAccess, BackendError>;

    /// Makes exactly `rules` the rules that this backend has in the namespace. Idempotent; rules that are in force
    /// already are not written again.
    ///
    /// # Errors
    /// When the rules are not all in force afterwards; then none of them was changed.
    fn write(&self, access: &mut NamespaceAccess, rules: &Ruleset) -> Result<PreviousRules, BackendError>;

    /// Removes this backend's rules. Succeeds when there are none.
    ///
    /// # Errors
    /// When rules of this backend may still be there.
    fn clear(&self, access: &mut NamespaceAccess) -> Result<(), BackendError>;

    /// Reads this backend's rules, in order, with names and counters.
    ///
    /// # Errors
    /// When they cannot be read.
    fn read(&self, access: &mut NamespaceAccess) -> Result<Inventory, BackendError>;

    /// What [`Backend::read`] returns after [`Backend::write`] of these rules.
    ///
    /// # Errors
    /// When the backend refuses to write that many rules.
    fn desired(&self, rules: &Ruleset) -> Result<Inventory, BackendError>;

    /// [`Backend::clear`] with access of its own.
    ///
    /// # Errors
    /// As [`Backend::open`] and [`Backend::clear`].
    fn remove(&self) -> Result<(), BackendError> {
        self.clear(&mut self.open()?)
    }

    /// [`Backend::read`] with access of its own.
    ///
    /// # Errors
    /// As [`Backend::open`] and [`Backend::read`].
    fn inspect(&self) -> Result<Inventory, BackendError> {
        self.read(&mut self.open()?)
    }
}

/// The error of a backend.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// nftables over netlink.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// The iptables programs.
    #[error(transparent)]
    Iptables(#[from] IptablesError),
    /// A backend outside of this library.
    #[error(transparent)]
    Other(Box<dyn Error + Send + Sync>),
}

impl Hint for BackendError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Nft(error) => error.hint(),
            Self::Iptables(error) => error.hint(),
            Self::Other(_) => None,
        }
    }
}

/// A way to write rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BackendKind {
    /// nftables over netlink.
    Nft,
    /// `iptables-nft-restore`.
    IptablesNft,
    /// `iptables-legacy-restore`.
    IptablesLegacy,
}

impl BackendKind {
    /// All backends, the preferred one first.
    pub const ALL: [Self; 3] = [Self::Nft, Self::IptablesNft, Self::IptablesLegacy];

    /// The backend's name in the configuration.
    pub fn name(self) -> &'static str {
        self.iptables().map_or("nft", Engine::iptables)
    }

    /// The engine that the variant of iptables writes to; `None` for the backend without programs.
    pub(super) fn iptables(self) -> Option<Engine> {
        match self {
            Self::Nft => None,
            Self::IptablesNft => Some(Engine::NfTables),
            Self::IptablesLegacy => Some(Engine::Legacy),
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Backend for Nft {
    fn kind(&self) -> BackendKind {
        BackendKind::Nft
    }

    fn open(&self) -> Result<NamespaceAccess, BackendError> {
        Ok(NamespaceAccess::default())
    }

    fn write(&self, access: &mut NamespaceAccess, rules: &Ruleset) -> Result<PreviousRules, BackendError> {
        Ok(self.replace(access.connection()?, rules)?)
    }

    fn clear(&self, access: &mut NamespaceAccess) -> Result<(), BackendError> {
        Ok(self.delete(access.connection()?)?)
    }

    fn read(&self, access: &mut NamespaceAccess) -> Result<Inventory, BackendError> {
        Ok(Self::list(access.connection()?)?)
    }

    fn desired(&self, rules: &Ruleset) -> Result<Inventory, BackendError> {
        Ok(Self::expected(rules))
    }
}

impl Backend for Iptables {
    fn kind(&self) -> BackendKind {
        match self.engine() {
            Engine::NfTables => BackendKind::IptablesNft,
            Engine::Legacy => BackendKind::IptablesLegacy,
        }
    }

    fn open(&self) -> Result<NamespaceAccess, BackendError> {
        Ok(self.lock()?)
    }

    fn write(&self, access: &mut NamespaceAccess, rules: &Ruleset) -> Result<PreviousRules, BackendError> {
        Ok(self.replace(access, rules)?)
    }

    fn clear(&self, access: &mut NamespaceAccess) -> Result<(), BackendError> {
        Ok(self.delete(access)?)
    }

    fn read(&self, access: &mut NamespaceAccess) -> Result<Inventory, BackendError> {
        Ok(self.list(access)?)
    }

    fn desired(&self, rules: &Ruleset) -> Result<Inventory, BackendError> {
        Ok(Self::expected(rules)?)
    }
}
