//! Applies rules to a namespace: refuses where another mesh redirects it, writes with one backend, removes the rules
//! of the other backends, and reports what was there. The only module that knows all backends.

pub mod backend;
pub mod istio_ambient;
pub mod presence;
pub mod redirection;

use crate::access::NamespaceAccess;
use crate::apply::backend::{Backend, BackendError, BackendKind};
use crate::apply::presence::{OtherMesh, OtherNat, Presence};
use crate::iptables::Iptables;
use crate::model::Hint;
use crate::model::inventory::PreviousRules;
use crate::model::ruleset::Ruleset;
use crate::nft::Nft;
use std::borrow::Cow;
use std::path::Path;

/// What [`apply`] found and replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApplyReport {
    /// Gybe's rules before the call, whichever backend had written them.
    pub previous: PreviousRules,
    /// Other owners' rules that translate addresses at the same hooks; worth a warning. A connection is translated
    /// once, and their translation comes first if their chain was registered after Gybe's.
    pub other_nat: Vec<OtherNat>,
}

/// The error of [`apply`].
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// A backend failed; the rules are not in force.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// Another mesh redirects this namespace; nothing was written.
    #[error(transparent)]
    OtherMesh(#[from] OtherMesh),
    /// The rules are in force, and another backend's rules could not be removed.
    #[error("the rules are in force, but the rules of {kind} are still there too")]
    NotRemoved {
        /// The other backend.
        kind: BackendKind,
        /// Why its rules could not be removed.
        source: BackendError,
    },
}

impl Hint for ApplyError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Backend(error) => error.hint(),
            Self::OtherMesh(mesh) => mesh.hint(),
            Self::NotRemoved { source, .. } => source.hint().or_else(|| Some("apply again".into())),
        }
    }
}

/// Makes exactly `rules` the rules that Gybe has in the network namespace of the calling thread. Idempotent.
///
/// # Errors
/// When the rules are not all in force afterwards (then none was changed), or another backend's rules are still there.
pub fn apply(backend: &dyn Backend, rules: &Ruleset) -> Result<ApplyReport, ApplyError> {
    let mut access = backend.open()?;
    let presence = Presence::read(&mut access)?;
    if let Some(mesh) = presence.other_meshes.into_iter().next() {
        return Err(mesh.into());
    }
    // Before the write, because a backend's rules cannot be removed without its programs.
    let others = presence.ours.into_iter().filter(|kind| *kind != backend.kind());
    let others = others.map(BackendKind::find).collect::<Result<Vec<_>, BackendError>>()?;
    let previous = write_alone(backend, &mut access, rules, &others)?;
    Ok(ApplyReport { previous, other_nat: presence.other_nat })
}

/// Writes the rules, and then removes those of the other backends.
fn write_alone(
    backend: &dyn Backend,
    access: &mut NamespaceAccess,
    rules: &Ruleset,
    others: &[Box<dyn Backend>],
) -> Result<PreviousRules, ApplyError> {
    let previous = backend.write(access, rules)?;
    for other in others {
        let removed = if access.is_locked() { other.clear(access) } else { other.remove() };
        removed.map_err(|source| ApplyError::NotRemoved { kind: other.kind(), source })?;
    }
    if others.is_empty() {
        return Ok(previous);
    }
    if !access.is_locked() {
        // A concurrent call of one of these backends may have removed the rules just written, as those of an
        // earlier backend, before its own rules were removed here.
        backend.write(access, rules)?;
    }
    Ok(PreviousRules::Different)
}

impl BackendKind {
    /// The backend.
    ///
    /// # Errors
    /// When the node lacks its programs.
    pub fn find(self) -> Result<Box<dyn Backend>, BackendError> {
        Ok(match self.iptables() {
            None => Box::new(Nft),
            Some(engine) => Box::new(Iptables::find(engine)?),
        })
    }

    /// Checks that the host with root directory `root` has the backend's programs. Runs none.
    ///
    /// # Errors
    /// When it lacks them.
    pub fn look_under(self, root: &Path) -> Result<(), BackendError> {
        match self.iptables() {
            None => Ok(()),
            Some(engine) => Ok(Iptables::find_under(engine, root).map(drop)?),
        }
    }
}
