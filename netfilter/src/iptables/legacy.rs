//! The tables of iptables-legacy, read from the kernel: quicker than its programs, and possible on a node without them.

use super::error::IptablesError;
use super::layout::{DEADLINE, FAMILIES, TABLES};
use super::save::{self, SavedRules};
use crate::access::NamespaceAccess;
use crate::ruleset::Family;
use crate::xt::legacy;
use std::fs::TryLockError;
use std::time::Duration;

/// Access under the namespace's lock.
pub(super) fn locked(time: Duration) -> Result<NamespaceAccess, IptablesError> {
    NamespaceAccess::locked(time).map_err(|error| match error {
        TryLockError::WouldBlock => IptablesError::Busy { after: time },
        TryLockError::Error(source) => IptablesError::NoLock(source),
    })
}

/// The rules in the namespace's legacy tables. Where there are no such tables, this reads two files of `/proc`.
pub(crate) fn legacy_rules(access: &NamespaceAccess) -> Result<Vec<(Family, SavedRules)>, IptablesError> {
    let mut names = FAMILIES.into_iter().map(legacy::table_names);
    if names.all(|names| names.is_ok_and(|names| names.is_empty())) {
        return Ok(Vec::new());
    }
    // A backend writes several tables one after the other; a state in between must not be judged.
    let _lock = if access.is_locked() { None } else { Some(locked(DEADLINE)?) };
    FAMILIES.into_iter().map(|family| Ok((family, read_legacy(family)?))).collect()
}

/// The rules of one family.
pub(super) fn read_legacy(family: Family) -> Result<SavedRules, IptablesError> {
    let names = legacy::table_names(family)?;
    let written = TABLES.into_iter().filter(|stage| names.iter().any(|name| stage.table() == name));
    let tables = written.map(|stage| Ok((stage, legacy::table(family, stage.table())?)));
    Ok(save::of_legacy(&tables.collect::<Result<_, IptablesError>>()?))
}
