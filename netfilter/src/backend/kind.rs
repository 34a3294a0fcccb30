//! The ways of writing rules, by name. What each of them does is in `nft` and `iptables`.

use super::{Backend, BackendError};
use crate::iptables::{Iptables, Variant};
use crate::nft::Nft;
use std::fmt;
use std::path::Path;

/// A way of writing rules.
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
    /// All of them, the one that is preferred first.
    pub const ALL: [Self; 3] = [Self::Nft, Self::IptablesNft, Self::IptablesLegacy];

    /// Its name, which is also an operator's word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nft => "nft",
            Self::IptablesNft => Variant::Nft.name(),
            Self::IptablesLegacy => Variant::Legacy.name(),
        }
    }

    /// The backend itself.
    ///
    /// # Errors
    /// When it takes programs that this node has not.
    pub fn find(self) -> Result<Box<dyn Backend>, BackendError> {
        Ok(match self {
            Self::Nft => Box::new(Nft),
            Self::IptablesNft => Box::new(Iptables::find(Variant::Nft)?),
            Self::IptablesLegacy => Box::new(Iptables::find(Variant::Legacy)?),
        })
    }
}

impl BackendKind {
    /// Whether what it takes is on the host whose root directory is seen at `root`. Runs nothing.
    ///
    /// # Errors
    /// When it takes programs that the host has not.
    pub fn look_under(self, root: &Path) -> Result<(), BackendError> {
        match self {
            Self::Nft => {}
            Self::IptablesNft => drop(Iptables::find_under(Variant::Nft, root)?),
            Self::IptablesLegacy => drop(Iptables::find_under(Variant::Legacy, root)?),
        }
        Ok(())
    }
}

impl From<Variant> for BackendKind {
    fn from(variant: Variant) -> Self {
        match variant {
            Variant::Legacy => Self::IptablesLegacy,
            Variant::Nft => Self::IptablesNft,
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
