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
pub(crate) use neighbours::{Found as LegacyFound, legacy};
pub use programs::Variant;
pub use save::SaveError;

use crate::backend::{Applied, Backend, BackendError, BackendKind, Before, Inventory};
use crate::lock::lock;
use crate::nft::Nft;
use crate::ruleset::{Family, Ruleset};
use holding::Holdings;
use inventory::inventory;
use layout::FAMILIES;
use programs::{DIRECTORIES, Programs};
use restore::{MOST_RULES, Rendered, TooManyRules, render, transaction};
use run::Conditions;
use secluded::secluded;
use session::{PerFamily, Session};
use std::fs::{File, TryLockError};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use user_namespace::foreign_owner;

/// iptables of one variant, as found on this node.
#[derive(Debug, Clone)]
pub struct Iptables {
    variant: Variant,
    programs: Programs,
    other: Option<Programs>,
    deadline: Duration,
}

/// An apply takes some 10 ms; this is for a node in trouble.
const DEADLINE: Duration = Duration::from_secs(10);

impl Iptables {
    /// Looks for the programs where distributions put them.
    ///
    /// # Errors
    /// When there are none for IPv4. Those for IPv6 are missed only when IPv6 rules are written.
    pub fn find(variant: Variant) -> Result<Self, IptablesError> {
        Self::find_under(variant, Path::new("/"))
    }

    /// Looks for the programs where distributions put them, on a host whose root directory is seen at `root`.
    ///
    /// # Errors
    /// As [`Iptables::find`].
    pub fn find_under(variant: Variant, root: &Path) -> Result<Self, IptablesError> {
        let under = |directory: &str| root.join(directory.trim_start_matches('/'));
        Self::find_in(variant, &DIRECTORIES.map(under))
    }

    /// Looks for the programs in these directories.
    ///
    /// # Errors
    /// As [`Iptables::find`].
    pub fn find_in(variant: Variant, directories: &[PathBuf]) -> Result<Self, IptablesError> {
        let programs = Programs::find(variant, directories)?;
        let other = Programs::find(variant.other(), directories).ok();
        Ok(Self { variant, programs, other, deadline: DEADLINE })
    }

    /// The same, with this much time for one apply, remove or inspect.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Which variant it is.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// Writes the rules, and tells what was met and which other backends' rules are to go now.
    fn written(
        &self,
        session: &Session<'_>,
        rules: &Ruleset,
    ) -> Result<(Applied, Vec<BackendKind>), IptablesError> {
        let Rendered { holdings: wanted, excess } = render(rules);
        if let Some(TooManyRules { rule, rules }) = excess {
            return Err(IptablesError::TooManyRules { rule, rules });
        }
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
    }

    /// Are there programs to take the rules of these backends away? Asked before anything is written.
    fn can_clear(&self, others: &[BackendKind]) -> Result<(), IptablesError> {
        let other = self.variant.other();
        if others.contains(&other.into()) && self.other.is_none() {
            return Err(IptablesError::ProgramMissing { variant: other.name(), family: Family::V4 });
        }
        Ok(())
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

    /// On a thread of its own in the caller's network namespace, alone there, with one deadline for all.
    fn at_work<T: Send, E: From<IptablesError> + Send>(
        &self,
        work: impl FnOnce(&Session<'_>) -> Result<T, E> + Send,
    ) -> Result<T, E> {
        let deadline = Instant::now() + self.deadline;
        let done = secluded(|| {
            let _alone = alone(self.deadline)?;
            let owner = foreign_owner().map_err(IptablesError::UserNamespace)?;
            let user_namespace = owner.as_ref().map(AsFd::as_fd);
            let conditions = Conditions { deadline, user_namespace };
            let (programs, other) = (&self.programs, self.other.as_ref());
            work(&Session { variant: self.variant, programs, other, conditions })
        });
        done.map_err(IptablesError::NoThread)?
    }
}

/// Keeps others of ours from reading and writing in this thread's network namespace, until the file is
/// closed.
///
/// What is written is made of what was read, and a reading is several programs, as a writing is: of two
/// calls at once each would write its jumps, or put back what the other has replaced. The namespace
/// itself is what is locked: nobody waits for another namespace, and no file is left behind. Whoever
/// takes it for an xtables lock (istio-cni does) waits for all of ours and not for each of its programs.
/// A pod may lock its own namespace, and holds up those who read or remove there later, until their
/// deadline: an ADD comes before its first process.
fn alone(time: Duration) -> Result<File, IptablesError> {
    let namespace = File::open("/proc/thread-self/ns/net").map_err(IptablesError::NoLock)?;
    match lock(&namespace, time) {
        Ok(()) => Ok(namespace),
        Err(TryLockError::WouldBlock) => Err(IptablesError::Busy { after: time }),
        Err(TryLockError::Error(why)) => Err(IptablesError::NoLock(why)),
    }
}

impl Backend for Iptables {
    fn name(&self) -> &'static str {
        self.variant.name()
    }

    fn apply(&self, rules: &Ruleset) -> Result<Applied, BackendError> {
        self.at_work(|session| {
            let (applied, others) = self.written(session, rules)?;
            for kind in others {
                let cleared = match kind {
                    BackendKind::Nft => Nft.remove(),
                    _ => session.other().map_or(Ok(()), |other| other.clear()).map_err(BackendError::from),
                };
                cleared.map_err(|source| BackendError::Left { kind, source: Box::new(source) })?;
            }
            Ok(applied)
        })
    }

    fn remove(&self) -> Result<(), BackendError> {
        self.at_work(|session| Ok(session.clear()?))
    }

    fn inspect(&self) -> Result<Inventory, BackendError> {
        self.at_work(|session| Ok(inventory(&session.ours()?)))
    }

    fn wanted(&self, rules: &Ruleset) -> Inventory {
        inventory(&render(rules).holdings)
    }
}

/// The restore input that writes the rules of `family` where nothing of ours is; empty when that
/// family has none. For people and tests: what [`Iptables`] writes depends on what it finds.
pub fn script(rules: &Ruleset, family: Family) -> String {
    transaction(&Holdings::new(), held(&render(rules).holdings, family)).unwrap_or_default()
}

fn held(families: &PerFamily, family: Family) -> &Holdings {
    const NOTHING: &Holdings = &Holdings::new();
    families.get(&family).unwrap_or(NOTHING)
}
