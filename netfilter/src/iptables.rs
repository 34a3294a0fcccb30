//! The fallback backend: the same rules as input of `iptables-restore` and `ip6tables-restore`.
//!
//! What is written is in `restore`, what is read in `save`; here is in which order, and what
//! happens when the second family's rules are refused.

mod error;
mod expand;
mod holding;
mod inventory;
mod layout;
mod neighbours;
mod networks;
mod programs;
mod restore;
mod run;
mod save;
mod secluded;
mod session;
mod token;
mod user_namespace;

pub use error::IptablesError;
pub(crate) use layout::{MARK, PREFIX, TABLES};
pub(crate) use neighbours::{Found as LegacyFound, legacy, legacy_is_loaded};
pub use programs::Variant;
pub use save::SaveError;

use crate::backend::{Applied, Backend, BackendError, BackendKind, Before, Inventory};
use crate::nft::Nft;
use crate::ruleset::{Family, Ruleset};
use holding::Holdings;
use inventory::inventory;
use layout::FAMILIES;
use programs::{DIRECTORIES, Programs};
use restore::{render, transaction};
use run::Conditions;
use secluded::secluded;
use session::{PerFamily, Session};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use user_namespace::foreign_owner;

/// iptables of one variant, as found on this node.
#[derive(Debug, Clone)]
pub struct Iptables {
    variant: Variant,
    programs: Programs,
    other: Option<Programs>,
    deadline: Duration,
    lock: PathBuf,
}

/// The network namespace itself is what legacy programs lock: nobody waits for another namespace,
/// and no file is left behind. `flock` works on it; seen with iptables-legacy-restore 1.8.9. Before
/// 1.8.6 the file cannot be chosen, and all namespaces wait for /run/xtables.lock.
const NAMESPACE_LOCK: &str = "/proc/self/ns/net";

/// An apply takes some 10 ms; this is for a node in trouble.
const DEADLINE: Duration = Duration::from_secs(10);

impl Iptables {
    /// Looks for the programs where distributions put them.
    ///
    /// # Errors
    /// When there are none for IPv4. Those for IPv6 are missed only when IPv6 rules are written.
    pub fn find(variant: Variant) -> Result<Self, IptablesError> {
        Self::find_in(variant, &DIRECTORIES.map(PathBuf::from))
    }

    /// Looks for the programs in these directories.
    ///
    /// # Errors
    /// As [`Iptables::find`].
    pub fn find_in(variant: Variant, directories: &[PathBuf]) -> Result<Self, IptablesError> {
        let programs = Programs::find(variant, directories)?;
        let other = Programs::find(variant.other(), directories).ok();
        Ok(Self { variant, programs, other, deadline: DEADLINE, lock: NAMESPACE_LOCK.into() })
    }

    /// The same, with this much time for one apply, remove or inspect.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// The same, with a file that legacy programs lock in place of the network namespace.
    #[must_use]
    pub fn with_lock(self, lock: PathBuf) -> Self {
        Self { lock, ..self }
    }

    /// Which variant it is.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// Writes the rules, and tells what was met and which other backends' rules are to go now.
    fn apply_rules(&self, rules: &Ruleset) -> Result<(Applied, Vec<BackendKind>), IptablesError> {
        let wanted = wanted_by(rules);
        self.at_work(|session| {
            let mut presence = session.presence()?;
            let found = session.ours_among(&mut presence)?;
            let others = presence.others_than(self.variant.into())?;
            session.can_write(&wanted)?;
            self.can_clear(&others)?;
            // Two families are two transactions: when one is refused everything is taken back.
            FAMILIES.into_iter().try_for_each(|family| {
                let written = session.write(family, held(&found, family), held(&wanted, family));
                written.map_err(|refusal| self.taken_back(session, &found, (family, refusal)))
            })?;
            let before = match (found == wanted, found.values().all(Holdings::is_empty)) {
                _ if !others.is_empty() => Before::Others,
                (true, _) => Before::TheSame,
                (false, true) => Before::Nothing,
                (false, false) => Before::Others,
            };
            Ok((Applied { before, beside: presence.beside }, others))
        })
    }

    /// Are there programs to take the rules of these backends away? Asked before anything is written.
    fn can_clear(&self, others: &[BackendKind]) -> Result<(), IptablesError> {
        let other = self.variant.other();
        if others.contains(&other.into()) && self.other.is_none() {
            return Err(IptablesError::ProgramMissing { variant: other.name(), family: Family::V4 });
        }
        Ok(())
    }

    /// Takes away what another backend of ours has written.
    fn clear(&self, kind: BackendKind) -> Result<(), BackendError> {
        match kind {
            BackendKind::Nft => Nft.remove(),
            _ => Ok(self.at_work(|session| session.other().map_or(Ok(()), |other| other.clear()))?),
        }
    }

    /// Puts everything back as it was `before`, with time of its own: the deadline may be what
    /// was missed. Reads first, since a refusal in one table leaves those above it written.
    fn taken_back(
        &self,
        session: &Session<'_>,
        before: &PerFamily,
        (family, refusal): (Family, IptablesError),
    ) -> IptablesError {
        let deadline = Instant::now() + self.deadline;
        let session = Session { conditions: Conditions { deadline, ..session.conditions }, ..*session };
        let source = Box::new(refusal);
        let failures: Vec<String> = FAMILIES
            .into_iter()
            .filter_map(|family| session.put_back(family, held(before, family)).err())
            .collect();
        match failures.is_empty() {
            true => IptablesError::PutBack { family, source },
            false => IptablesError::HalfWritten { family, undo: failures.join("; "), source },
        }
    }

    /// On a thread of its own in the caller's network namespace, with one deadline for all.
    fn at_work<T: Send>(
        &self,
        work: impl FnOnce(&Session<'_>) -> Result<T, IptablesError> + Send,
    ) -> Result<T, IptablesError> {
        let deadline = Instant::now() + self.deadline;
        let done = secluded(|| {
            let owner = foreign_owner().map_err(IptablesError::UserNamespace)?;
            let user_namespace = owner.as_ref().map(AsFd::as_fd);
            let conditions = Conditions { deadline, lock: &self.lock, user_namespace };
            let (programs, other) = (&self.programs, self.other.as_ref());
            work(&Session { variant: self.variant, programs, other, conditions })
        });
        done.map_err(IptablesError::NoThread)?
    }
}

impl Backend for Iptables {
    fn name(&self) -> &'static str {
        self.variant.name()
    }

    fn apply(&self, rules: &Ruleset) -> Result<Applied, BackendError> {
        let (applied, others) = self.apply_rules(rules)?;
        for kind in others {
            self.clear(kind).map_err(|source| BackendError::Left { kind, source: Box::new(source) })?;
        }
        Ok(applied)
    }

    fn remove(&self) -> Result<(), BackendError> {
        Ok(self.at_work(|session| -> Result<_, IptablesError> { session.clear() })?)
    }

    fn inspect(&self) -> Result<Inventory, BackendError> {
        Ok(self.at_work(|session| Ok(inventory(&session.ours()?)))?)
    }

    fn wanted(&self, rules: &Ruleset) -> Inventory {
        inventory(&wanted_by(rules))
    }
}

fn wanted_by(rules: &Ruleset) -> PerFamily {
    FAMILIES.into_iter().map(|family| (family, render(rules, family))).collect()
}

/// The restore input that writes the rules of `family` where nothing of ours is; empty when that
/// family has none. For people and tests: what [`Iptables`] writes depends on what it finds.
pub fn script(rules: &Ruleset, family: Family) -> String {
    transaction(&Holdings::new(), &render(rules, family)).unwrap_or_default()
}

fn held(families: &PerFamily, family: Family) -> &Holdings {
    const NOTHING: &Holdings = &Holdings::new();
    families.get(&family).unwrap_or(NOTHING)
}
