//! The iptables backends: the same rules as input of `iptables-restore` and `ip6tables-restore`.
//!
//! `restore` renders the input, `save` parses the existing rules. This module orders reads and writes, and restores
//! both families when the rules of the second are refused.

pub(crate) mod error;
mod expand;
mod layout;
mod networks;
pub mod program;
mod programs;
mod restore;
mod rules;
mod run;
mod save;
mod session;
mod token;
mod user_namespace;
mod words;

pub use error::IptablesError;
pub(crate) use layout::{MARK, PREFIX, TABLES};
pub use save::SaveError;
pub(crate) use save::SavedRules;
pub(crate) use session::legacy_rules;

use crate::access::NamespaceAccess;
use crate::model::inventory::{Inventory, PreviousRules};
use crate::model::ruleset::{Engine, Family, Ruleset};
use layout::{DEADLINE, DIRECTORIES};
use programs::IptablesPrograms;
use restore::{render, transaction};
use rules::{FamilyRules, IptablesRules, inventory, of_family};
use run::{RunConditions, on_private_thread};
use session::{Session, locked};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use user_namespace::foreign_owner;
pub use user_namespace::is_in_owning_user_namespace;

/// iptables of one variant, as found on this node.
#[derive(Debug, Clone)]
pub struct Iptables {
    engine: Engine,
    programs: IptablesPrograms,
    deadline: Duration,
    with_others: bool,
}

impl Iptables {
    /// Finds the programs where distributions install them.
    ///
    /// # Errors
    /// When there are none for IPv4. Missing programs for IPv6 are an error of the first write of IPv6 rules.
    pub fn find(engine: Engine) -> Result<Self, IptablesError> {
        Self::find_under(engine, Path::new("/"))
    }

    /// [`Iptables::find`] on a host whose root directory is mounted at `root`.
    ///
    /// # Errors
    /// As [`Iptables::find`].
    pub fn find_under(engine: Engine, root: &Path) -> Result<Self, IptablesError> {
        let under = |directory: &str| root.join(directory.trim_start_matches('/'));
        Self::find_in(engine, &DIRECTORIES.map(under))
    }

    /// [`Iptables::find`] in these directories.
    ///
    /// # Errors
    /// As [`Iptables::find`].
    pub fn find_in(engine: Engine, directories: &[PathBuf]) -> Result<Self, IptablesError> {
        let programs = IptablesPrograms::find(engine, directories)?;
        Ok(Self { engine, programs, deadline: DEADLINE, with_others: false })
    }

    /// The same backend with this much time for a call: the wait for the namespace's lock, reads and writes together.
    /// The default is 10 s.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// The same backend, which takes the chains of other meshes for Gybe's: a write replaces them, each table in one
    /// transaction, and a removal removes them.
    #[must_use]
    pub(crate) fn with_others(self) -> Self {
        Self { with_others: true, ..self }
    }

    /// The engine that the variant writes to.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Runs `work` on a private thread in the caller's network namespace, with one deadline for all its programs, which
    /// includes the wait for the namespace's lock.
    fn run_session<T: Send>(
        &self,
        deadline: Option<Instant>,
        work: impl FnOnce(&Session<'_>) -> Result<T, IptablesError> + Send,
    ) -> Result<T, IptablesError> {
        let deadline = deadline.unwrap_or_else(|| Instant::now() + self.deadline);
        let done = on_private_thread(|| {
            let owner = foreign_owner().map_err(IptablesError::UserNamespace)?;
            let user_namespace = owner.as_ref().map(AsFd::as_fd);
            let conditions = RunConditions { deadline, user_namespace };
            let Self { engine, programs, with_others, .. } = self;
            work(&Session { engine: *engine, programs, conditions, with_others: *with_others })
        });
        done.map_err(IptablesError::NoThread)?
    }

    fn write_both(
        &self,
        session: &Session<'_>,
        access: &mut NamespaceAccess,
        desired: &IptablesRules,
    ) -> Result<PreviousRules, IptablesError> {
        let observed = session.ours(access)?;
        session.can_write(access, desired)?;
        // IPv4 first: only its programs are always there. Two families are two transactions: when the second is refused,
        // the first is undone.
        for family in Family::ALL {
            if let Err(refusal) =
                session.write(family, of_family(&observed, family), of_family(desired, family))
            {
                return Err(self.undo(session, access, &observed, family, refusal));
            }
        }
        Ok(match observed.values().all(FamilyRules::is_empty) {
            _ if observed == *desired => PreviousRules::Same,
            true => PreviousRules::None,
            false => PreviousRules::Different,
        })
    }

    /// Restores the rules of `before`, with a deadline of its own, because the refusal may be a missed deadline.
    /// Reads first: when a table is refused, the tables committed before it stay written.
    fn undo(
        &self,
        session: &Session<'_>,
        access: &mut NamespaceAccess,
        before: &IptablesRules,
        family: Family,
        refusal: IptablesError,
    ) -> IptablesError {
        let deadline = Instant::now() + self.deadline;
        let session = Session { conditions: RunConditions { deadline, ..session.conditions }, ..*session };
        let source = Box::new(refusal);
        let failures: Vec<String> = Family::ALL
            .into_iter()
            .filter_map(|family| session.restore(access, family, of_family(before, family)).err())
            .collect();
        match failures.is_empty() {
            true => IptablesError::PutBack { family, source },
            false => IptablesError::HalfWritten { family, undo: failures.join("; "), source },
        }
    }

    /// Takes the namespace's lock.
    pub(crate) fn lock(&self) -> Result<NamespaceAccess, IptablesError> {
        locked(self.deadline)
    }

    /// Makes exactly these rules Gybe's rules.
    pub(crate) fn replace(
        &self,
        access: &mut NamespaceAccess,
        rules: &Ruleset,
    ) -> Result<PreviousRules, IptablesError> {
        let desired = render(rules)?;
        self.run_session(access.deadline(), |session| self.write_both(session, access, &desired))
    }

    /// Deletes Gybe's rules.
    pub(crate) fn delete(&self, access: &mut NamespaceAccess) -> Result<(), IptablesError> {
        self.run_session(access.deadline(), |session| session.clear(access))
    }

    /// Reads Gybe's rules.
    pub(crate) fn list(&self, access: &mut NamespaceAccess) -> Result<Inventory, IptablesError> {
        self.run_session(access.deadline(), |session| Ok(inventory(&session.ours(access)?)))
    }

    /// What [`Iptables::list`] returns after these rules were written.
    pub(crate) fn expected(rules: &Ruleset) -> Result<Inventory, IptablesError> {
        Ok(inventory(&render(rules)?))
    }
}

/// The restore input that writes the rules of `family` into a namespace without rules of Gybe; empty when the family
/// has none. For people and tests: the input that [`Iptables`] writes depends on the rules that are there.
///
/// # Errors
/// When the rules are more than this backend writes.
pub fn script(rules: &Ruleset, family: Family) -> Result<String, IptablesError> {
    let desired = render(rules)?;
    Ok(transaction(&FamilyRules::new(), of_family(&desired, family)).unwrap_or_default())
}
