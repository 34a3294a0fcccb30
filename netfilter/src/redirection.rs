//! All that a namespace must hold for a policy to be true: packet rules and routes, as one.

use crate::backend::{Applied, Backend, BackendError, BackendKind, Before, Difference};
use crate::choose::Way;
use crate::compile::compile;
use crate::hint::Hint;
use crate::nft::NftError;
use crate::policy::RedirectPolicy;
use crate::presence::Presence;
use crate::routes::{self, Entry, Routes, RoutesError, Rtnetlink, Stray};
use crate::ruleset::{Ruleset, Stage};
use std::borrow::Cow;
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
    /// Was it refused for want of a part of the kernel? Then what a probe has found is out of date.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Rules(BackendError::Nft(NftError::Refused { lacking: Some(_), .. })))
    }
}

impl Hint for RedirectionError {
    fn hint(&self) -> Option<Cow<'static, str>> {
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
    /// One of ours that is there for nothing.
    ExtraRoute(Stray),
    /// Another backend has rules of ours there too.
    OtherBackend(BackendKind),
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rules(difference) => write!(f, "{difference}"),
            Self::Route(entry @ Entry::MarkRule { .. }) => {
                write!(f, "{entry} is missing, or another rule stands before it")
            }
            Self::Route(entry) => write!(f, "{entry} is missing"),
            Self::ExtraRoute(stray) => write!(f, "{stray} should not be there"),
            Self::OtherBackend(kind) => write!(f, "rules of ours by {kind} should not be there"),
        }
    }
}

impl Redirection {
    /// What makes `policy` true.
    pub fn of(policy: &RedirectPolicy) -> Self {
        Self { rules: compile(policy), routes: Routes::wanted(policy) }
    }

    /// The same without what gives the agent's DNS queries and the application's a conntrack zone of
    /// their own: for a kernel that has no zones. A query of each that share one five-tuple then share
    /// one translation, and one of the two gets no answer.
    #[must_use]
    pub fn without_zones(mut self) -> Self {
        self.rules.chains.retain(|chain| chain.name.stage() != Stage::Raw);
        self
    }

    /// The same written that way.
    pub fn by_way(policy: &RedirectPolicy, way: Way) -> Self {
        match way {
            Way::Whole => Self::of(policy),
            Way::WithoutZones => Self::of(policy).without_zones(),
        }
    }

    /// In which way `backend` has written `policy` here: the one that is nearer to what is there.
    ///
    /// # Errors
    /// When the namespace cannot be asked.
    pub fn way_written(policy: &RedirectPolicy, backend: &dyn Backend) -> Result<Way, RedirectionError> {
        let [whole, without] = [Way::Whole, Way::WithoutZones].map(|way| Self::by_way(policy, way).rules);
        if whole == without {
            return Ok(Way::Whole);
        }
        let found = backend.inspect()?;
        let apart = |rules| backend.wanted(rules).differences(&found).len();
        let without_zones = apart(&without) < apart(&whole);
        Ok(if without_zones { Way::WithoutZones } else { Way::Whole })
    }

    /// Makes the namespace hold exactly this of ours. Twice is the same as once.
    ///
    /// Routes come first: they do nothing by themselves, while rules without them lose packets. Those
    /// of an earlier policy go last.
    ///
    /// # Errors
    /// When the rules are not in force afterwards. Routes may be there then; they do no harm.
    pub fn apply(&self, backend: &dyn Backend) -> Result<Applied, RedirectionError> {
        let mut rtnetlink = Rtnetlink::open()?;
        self.routes.apply(&mut rtnetlink)?;
        let applied = backend.apply(&self.rules)?;
        self.routes.remove_extra(&mut rtnetlink)?;
        Ok(applied)
    }

    /// The same over a routing socket that is open already, for a namespace that is most likely fresh:
    /// routes of ours are looked for only where there were rules of ours.
    ///
    /// # Errors
    /// As [`Redirection::apply`].
    pub fn apply_over(
        &self,
        rtnetlink: &mut Rtnetlink,
        backend: &dyn Backend,
    ) -> Result<Applied, RedirectionError> {
        self.routes.apply(rtnetlink)?;
        let applied = backend.apply(&self.rules)?;
        if applied.before != Before::Nothing {
            self.routes.remove_extra(rtnetlink)?;
        }
        Ok(applied)
    }

    /// What in the namespace is not as it should be; nothing when all is well.
    ///
    /// # Errors
    /// When the namespace cannot be asked.
    pub fn differences(&self, backend: &dyn Backend) -> Result<Vec<Deviation>, RedirectionError> {
        let rules = backend.wanted(&self.rules).differences(&backend.inspect()?);
        let mut all: Vec<_> = rules.into_iter().map(Deviation::Rules).collect();
        let others = Presence::look()?.ours.into_iter().filter(|kind| kind.name() != backend.name());
        all.extend(others.map(Deviation::OtherBackend));
        let mut rtnetlink = Rtnetlink::open()?;
        all.extend(self.routes.missing(&mut rtnetlink)?.into_iter().map(Deviation::Route));
        all.extend(self.routes.extra(&mut rtnetlink)?.into_iter().map(Deviation::ExtraRoute));
        Ok(all)
    }
}

/// Makes the namespace hold nothing that this backend writes, and no route of ours. Nothing there
/// already is success.
///
/// # Errors
/// As [`remove_by`].
pub fn remove(backend: &dyn Backend) -> Result<(), RedirectionError> {
    remove_by([backend])
}

/// The same of several backends.
///
/// Rules go first: they lose packets without their routes. What fails does not keep the rest.
///
/// # Errors
/// The first failure, when something of ours may still be there.
pub fn remove_by<'b>(backends: impl IntoIterator<Item = &'b dyn Backend>) -> Result<(), RedirectionError> {
    let removals: Vec<_> = backends.into_iter().map(Backend::remove).collect();
    let routes = Rtnetlink::open().and_then(|mut rtnetlink| routes::remove(&mut rtnetlink));
    removals.into_iter().collect::<Result<(), _>>()?;
    Ok(routes?)
}

/// Makes the namespace hold nothing of ours, whichever backend has written it.
///
/// # Errors
/// As [`remove_by`], and when a backend's programs are not there.
pub fn remove_all() -> Result<(), RedirectionError> {
    // Always nftables: a table whose chains somebody has deleted is seen by nobody who lists chains.
    let kinds = Presence::look()?.ours.into_iter().filter(|kind| *kind != BackendKind::Nft);
    let backends =
        [BackendKind::Nft].into_iter().chain(kinds).map(BackendKind::find).collect::<Result<Vec<_>, _>>()?;
    remove_by(backends.iter().map(|backend| &**backend))
}
