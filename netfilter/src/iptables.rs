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
pub use programs::Variant;
pub use save::SaveError;

use crate::backend::{Backend, BackendError, Inventory};
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
    legacy: Option<Programs>,
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
        let legacy = Programs::find(Variant::Legacy, directories).ok();
        Ok(Self { variant, programs, legacy, deadline: DEADLINE, lock: NAMESPACE_LOCK.into() })
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

    fn apply_rules(&self, rules: &Ruleset) -> Result<(), IptablesError> {
        let wanted = wanted_by(rules);
        self.at_work(|session| {
            session.is_alone()?;
            let found = session.ours_alone()?;
            session.can_write(&wanted)?;
            // Two families are two transactions: when one is refused everything is taken back.
            FAMILIES.into_iter().try_for_each(|family| {
                let written = session.write(family, held(&found, family), held(&wanted, family));
                written.map_err(|refusal| self.taken_back(session, &found, (family, refusal)))
            })
        })
    }

    fn remove_rules(&self) -> Result<(), IptablesError> {
        let nothing = Holdings::new();
        self.at_work(|session| {
            let found = session.ours()?;
            let removals = FAMILIES.map(|family| session.write(family, held(&found, family), &nothing));
            // Both are tried whatever becomes of the first.
            removals.into_iter().collect()
        })
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
            let (programs, legacy) = (&self.programs, self.legacy.as_ref());
            work(&Session { variant: self.variant, programs, legacy, conditions })
        });
        done.map_err(IptablesError::NoThread)?
    }
}

impl Backend for Iptables {
    fn name(&self) -> &'static str {
        self.variant.name()
    }

    fn apply(&self, rules: &Ruleset) -> Result<(), BackendError> {
        Ok(self.apply_rules(rules)?)
    }

    fn remove(&self) -> Result<(), BackendError> {
        Ok(self.remove_rules()?)
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
