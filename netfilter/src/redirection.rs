//! All that a namespace must hold for a policy to be true: packet rules and routes, as one.

use crate::backend::{Backend, BackendError, Difference};
use crate::compile::compile;
use crate::policy::RedirectPolicy;
use crate::routes::{self, Entry, Routes, RoutesError, Rtnetlink};
use crate::ruleset::Ruleset;
use std::fmt;

/// What a namespace must hold. Acts on the namespace of the calling thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirection {
    /// What becomes of packets.
    pub rules: Ruleset,
    /// What they need beside it.
    pub routes: Routes,
}

/// Why a namespace does not hold it, or cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum RedirectionError {
    /// The packet rules.
    #[error(transparent)]
    Rules(#[from] BackendError),
    /// The routes.
    #[error(transparent)]
    Routes(#[from] RoutesError),
}

impl RedirectionError {
    /// What would help, where that is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Rules(error) => error.hint(),
            Self::Routes(error) => error.hint(),
        }
    }
}

/// One thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deviation {
    /// A chain, a rule, a set or an element.
    Rules(Difference),
    /// An address, a routing rule or a route that is missing.
    Route(Entry),
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rules(difference) => write!(f, "{difference}"),
            Self::Route(entry) => write!(f, "{entry} is missing"),
        }
    }
}

impl Redirection {
    /// What makes `policy` true.
    pub fn of(policy: &RedirectPolicy) -> Self {
        Self { rules: compile(policy), routes: Routes::wanted(policy) }
    }

    /// Makes the namespace hold exactly this of ours. Twice is the same as once.
    ///
    /// Routes come first: they do nothing by themselves, while rules without them lose packets.
    ///
    /// # Errors
    /// When the rules are not in force afterwards. Routes may be there then; they do no harm.
    pub fn apply(&self, backend: &dyn Backend) -> Result<(), RedirectionError> {
        if !self.routes.is_empty() {
            self.routes.apply(&mut Rtnetlink::open()?)?;
        }
        Ok(backend.apply(&self.rules)?)
    }

    /// The same over a routing socket that is open already.
    ///
    /// # Errors
    /// As [`Redirection::apply`].
    pub fn apply_over(
        &self,
        rtnetlink: &mut Rtnetlink,
        backend: &dyn Backend,
    ) -> Result<(), RedirectionError> {
        self.routes.apply(rtnetlink)?;
        Ok(backend.apply(&self.rules)?)
    }

    /// What in the namespace is not as it should be; nothing when all is well.
    ///
    /// # Errors
    /// When the namespace cannot be asked.
    pub fn differences(&self, backend: &dyn Backend) -> Result<Vec<Deviation>, RedirectionError> {
        let rules = backend.wanted(&self.rules).differences(&backend.inspect()?);
        let mut all: Vec<_> = rules.into_iter().map(Deviation::Rules).collect();
        if !self.routes.is_empty() {
            all.extend(self.routes.missing(&mut Rtnetlink::open()?)?.into_iter().map(Deviation::Route));
        }
        Ok(all)
    }
}

/// Makes the namespace hold nothing of ours. Nothing there already is success.
///
/// Rules go first: they lose packets without their routes. What fails does not keep the rest.
///
/// # Errors
/// The first failure, when something of ours may still be there.
pub fn remove(backend: &dyn Backend) -> Result<(), RedirectionError> {
    let rules = backend.remove();
    let routes = Rtnetlink::open().and_then(|mut rtnetlink| routes::remove(&mut rtnetlink));
    rules?;
    Ok(routes?)
}
