//! The reference encoders as backends.
//!
//! They write the table that Gybe's nftables backend writes, so they are of its kind, and Gybe's reader reads it.

use crate::transport::Batch;
use crate::{transport, with_nftnl};
use gybe_netfilter::access::NamespaceAccess;
use gybe_netfilter::apply::backend::{Backend, BackendError, BackendKind};
use gybe_netfilter::model::inventory::{Inventory, PreviousRules};
use gybe_netfilter::model::ruleset::Ruleset;
use gybe_netfilter::nft::{BatchObject, Nft, NftError, Start};
use nix::errno::Errno;

/// libnftnl by the crate nftnl, over mnl's socket: all policies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Libnftnl;

impl Backend for Libnftnl {
    fn kind(&self) -> BackendKind {
        BackendKind::Nft
    }

    fn open(&self) -> Result<NamespaceAccess, BackendError> {
        Nft.open()
    }

    fn write(&self, access: &mut NamespaceAccess, rules: &Ruleset) -> Result<PreviousRules, BackendError> {
        write(access, rules, |start| Ok(with_nftnl::batch(rules, start)))
    }

    fn clear(&self, _: &mut NamespaceAccess) -> Result<(), BackendError> {
        clear(&with_nftnl::removal())
    }

    fn read(&self, access: &mut NamespaceAccess) -> Result<Inventory, BackendError> {
        Nft.read(access)
    }

    fn desired(&self, rules: &Ruleset) -> Result<Inventory, BackendError> {
        Nft.desired(rules)
    }
}

/// rustables, over mnl's socket: the policies that it can express; it refuses the others by what it lacks.
#[cfg(feature = "rustables")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rustables;

#[cfg(feature = "rustables")]
impl Backend for Rustables {
    fn kind(&self) -> BackendKind {
        BackendKind::Nft
    }

    fn open(&self) -> Result<NamespaceAccess, BackendError> {
        Nft.open()
    }

    fn write(&self, access: &mut NamespaceAccess, rules: &Ruleset) -> Result<PreviousRules, BackendError> {
        use crate::with_rustables;
        write(access, rules, |start| {
            with_rustables::complete(rules, start).map_err(|error| BackendError::Other(error.into()))
        })
    }

    fn clear(&self, _: &mut NamespaceAccess) -> Result<(), BackendError> {
        clear(&crate::with_rustables::removal())
    }

    fn read(&self, access: &mut NamespaceAccess) -> Result<Inventory, BackendError> {
        Nft.read(access)
    }

    fn desired(&self, rules: &Ruleset) -> Result<Inventory, BackendError> {
        Nft.desired(rules)
    }
}

/// Creates the table, or replaces it where it holds other rules.
fn write(
    access: &mut NamespaceAccess,
    rules: &Ruleset,
    batch: impl Fn(Start) -> Result<Batch, BackendError>,
) -> Result<PreviousRules, BackendError> {
    match transport::transact(&batch(Start::Fresh)?) {
        Err(NftError::Refused { object: BatchObject::Table, source: Errno::EEXIST, .. }) => {}
        outcome => return Ok(outcome.map(|()| PreviousRules::None)?),
    }
    if Nft.desired(rules)?.differences(&Nft.read(access)?).is_empty() {
        return Ok(PreviousRules::Same);
    }
    transport::transact(&batch(Start::Replace)?)?;
    Ok(PreviousRules::Different)
}

fn clear(removal: &Batch) -> Result<(), BackendError> {
    match transport::transact(removal) {
        Err(NftError::Refused { object: BatchObject::Table, source: Errno::ENOENT, .. }) => Ok(()),
        outcome => Ok(outcome?),
    }
}
