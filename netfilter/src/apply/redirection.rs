//! A policy's packet rules and routes as one: applied, compared and removed together.

use crate::apply::backend::{Backend, BackendError, BackendKind};
use crate::apply::presence::Presence;
use crate::apply::{ApplyError, ApplyReport, apply};
use crate::compile::{compile, compile_ambient, compile_ambient_draining};
use crate::iptables::IptablesError;
use crate::kernel::routes::{self, Routes, RoutesError, RoutingEntry, Rtnetlink, Stray};
use crate::model::Hint;
use crate::model::inventory::{Difference, PreviousRules};
use crate::model::policy::{AmbientPolicy, Families, RedirectPolicy};
use crate::model::ruleset::{Ruleset, Stage};
use crate::nft::NftError;
use crate::xt::legacy::LegacyError;
use nix::errno::Errno;
use std::borrow::Cow;
use std::fmt;

/// The rules and routes that a policy needs. Its methods act on the network namespace of the calling thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirection {
    /// The packet rules.
    pub rules: Ruleset,
    /// The addresses, routing rules and routes.
    pub routes: Routes,
}

/// Which rules of a policy are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleVariant {
    /// All rules.
    Complete,
    /// Without conntrack zones for DNS, which this kernel lacks; worth a warning. If a DNS query of the agent and
    /// one of the application share a five-tuple, they share one translation, and one of them gets no reply.
    WithoutZones,
}

/// The error of applying, reading or removing a redirection.
#[derive(Debug, thiserror::Error)]
pub enum RedirectionError {
    /// The packet rules.
    #[error(transparent)]
    Rules(#[from] ApplyError),
    /// The routes.
    #[error(transparent)]
    Routes(#[from] RoutesError),
}

impl From<BackendError> for RedirectionError {
    fn from(error: BackendError) -> Self {
        Self::Rules(error.into())
    }
}

impl RedirectionError {
    /// Reports whether the kernel refused rules because it lacks a module; then the findings of a probe are outdated.
    pub fn is_unsupported(&self) -> bool {
        let Self::Rules(ApplyError::Backend(BackendError::Nft(error))) = self else { return false };
        matches!(error, NftError::Refused { lacking: Some(_), .. })
    }
}

impl RedirectionError {
    /// Reports whether the namespace has rules or addresses that Gybe does not read whole: too many of them, tables
    /// that no tool writes, or changes during every attempt. Nothing is known of its connections then.
    pub fn is_incomplete(&self) -> bool {
        let nft = |error: &NftError| {
            matches!(
                error,
                NftError::TooLarge { .. }
                    | NftError::Incomplete { .. }
                    | NftError::KeptChanging { .. }
                    | NftError::Listing(_)
            )
        };
        match self {
            Self::Rules(ApplyError::Backend(BackendError::Nft(error))) => nft(error),
            Self::Rules(ApplyError::Backend(BackendError::Iptables(error))) => match error {
                IptablesError::Chains(error) => nft(error),
                IptablesError::Legacy(error) => matches!(
                    error,
                    LegacyError::TooLarge { .. }
                        | LegacyError::Malformed { .. }
                        // The table changed during every attempt.
                        | LegacyError::Refused { source: Errno::EAGAIN, .. }
                ),
                _ => false,
            },
            Self::Rules(_) => false,
            Self::Routes(error) => matches!(
                error,
                RoutesError::TooLarge { .. }
                    | RoutesError::KeptChanging { .. }
                    | RoutesError::OutcomeUnknown(_)
            ),
        }
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

/// One difference between the desired and the observed state of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deviation {
    /// A chain, a rule, a set or an element differs.
    Rules(Difference),
    /// An address, a routing rule or a route is missing.
    Route(RoutingEntry),
    /// Gybe added a route that the policy does not need.
    ExtraRoute(Stray),
    /// Another backend has rules of Gybe there too.
    OtherBackend(BackendKind),
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rules(difference) => write!(f, "{difference}"),
            Self::Route(entry @ RoutingEntry::MarkRule { .. }) => {
                write!(f, "{entry} is missing, or another rule precedes it")
            }
            Self::Route(entry) => write!(f, "{entry} is missing"),
            Self::ExtraRoute(stray) => write!(f, "{stray} should not be there"),
            Self::OtherBackend(kind) => write!(f, "rules written by backend {kind} should not be there"),
        }
    }
}

impl Redirection {
    /// The redirection of `policy` with all its rules.
    pub fn of(policy: &RedirectPolicy) -> Self {
        Self { rules: compile(policy), routes: Routes::of(policy) }
    }

    /// The redirection of an ambient `policy` with all its rules.
    pub fn of_ambient(policy: &AmbientPolicy) -> Self {
        Self { rules: compile_ambient(policy), routes: Routes::of_ambient(policy) }
    }

    /// The redirection for the open connections of a pod that is no longer ambient: new ones keep their destination.
    pub fn of_draining_ambient(families: Families) -> Self {
        let policy = AmbientPolicy { families, ..AmbientPolicy::default() };
        Self { rules: compile_ambient_draining(families), routes: Routes::of_ambient(&policy) }
    }

    /// The same with the rules of `variant`.
    #[must_use]
    pub fn with_variant(mut self, variant: RuleVariant) -> Self {
        if variant == RuleVariant::WithoutZones {
            self.rules.chains.retain(|chain| chain.name.stage() != Stage::Raw);
        }
        self
    }

    /// Returns the variant in which `backend` has written it here: the one with fewer differences.
    ///
    /// # Errors
    /// When the rules cannot be read.
    pub fn written_variant(&self, backend: &dyn Backend) -> Result<RuleVariant, RedirectionError> {
        let complete = self.rules.clone();
        let without = self.clone().with_variant(RuleVariant::WithoutZones).rules;
        if complete == without {
            return Ok(RuleVariant::Complete);
        }
        let observed = backend.inspect()?;
        let differences = |rules| Ok::<_, BackendError>(backend.desired(rules)?.differences(&observed).len());
        let is_without_zones = differences(&without)? < differences(&complete)?;
        Ok(if is_without_zones { RuleVariant::WithoutZones } else { RuleVariant::Complete })
    }

    /// Makes these the only rules and routes that Gybe has in the namespace. Idempotent.
    ///
    /// Adds routes first: routes alone have no effect, while rules without them lose packets. Removes routes of an
    /// earlier policy last.
    ///
    /// # Errors
    /// When the rules are not in force afterwards. Routes may have been added; they do no harm.
    pub fn apply(&self, backend: &dyn Backend) -> Result<ApplyReport, RedirectionError> {
        let mut rtnetlink = Rtnetlink::open()?;
        self.routes.apply(&mut rtnetlink)?;
        let report = apply(backend, &self.rules)?;
        self.routes.remove_extra(&mut rtnetlink)?;
        Ok(report)
    }

    /// [`Redirection::apply`] over an open routing socket, for a namespace that is most likely new: looks for routes
    /// of an earlier policy only where there were rules of Gybe.
    ///
    /// # Errors
    /// As [`Redirection::apply`].
    pub fn apply_over(
        &self,
        rtnetlink: &mut Rtnetlink,
        backend: &dyn Backend,
    ) -> Result<ApplyReport, RedirectionError> {
        self.routes.apply(rtnetlink)?;
        let report = apply(backend, &self.rules)?;
        if report.previous != PreviousRules::None {
            self.routes.remove_extra(rtnetlink)?;
        }
        Ok(report)
    }

    /// Returns the differences between this and the namespace, whose `presence` the caller has read.
    ///
    /// # Errors
    /// When the rules or routes cannot be read.
    pub fn differences(
        &self,
        backend: &dyn Backend,
        presence: &Presence,
    ) -> Result<Vec<Deviation>, RedirectionError> {
        let rules = backend.desired(&self.rules)?.differences(&backend.inspect()?);
        let mut all: Vec<_> = rules.into_iter().map(Deviation::Rules).collect();
        let others = presence.ours.iter().filter(|kind| **kind != backend.kind());
        all.extend(others.copied().map(Deviation::OtherBackend));
        let mut rtnetlink = Rtnetlink::open()?;
        all.extend(self.routes.missing(&mut rtnetlink)?.into_iter().map(Deviation::Route));
        all.extend(self.routes.extra(&mut rtnetlink)?.into_iter().map(Deviation::ExtraRoute));
        Ok(all)
    }
}

/// Removes the rules of `backend` and all routes of Gybe. Succeeds when there are none.
///
/// # Errors
/// As [`remove_by`].
pub fn remove(backend: &dyn Backend) -> Result<(), RedirectionError> {
    remove_by([backend])
}

/// Removes the rules of `backends` and all routes of Gybe.
///
/// Removes rules first, because they lose packets without their routes. An error does not end the removal.
///
/// # Errors
/// The first error; rules or routes of Gybe may still be there.
pub fn remove_by<'b>(backends: impl IntoIterator<Item = &'b dyn Backend>) -> Result<(), RedirectionError> {
    let removals: Vec<_> = backends.into_iter().map(Backend::remove).collect();
    let routes = Rtnetlink::open().and_then(|mut rtnetlink| routes::remove(&mut rtnetlink));
    removals.into_iter().collect::<Result<(), _>>()?;
    Ok(routes?)
}

/// Removes all rules and routes of Gybe, whichever backend has written them.
///
/// # Errors
/// As [`remove_by`], and, after the removal by the other backends, when a backend's programs are missing.
pub fn remove_all() -> Result<(), RedirectionError> {
    // Always nftables: a list of chains does not show a table without chains.
    let kinds = Presence::look()?.ours.into_iter().filter(|kind| *kind != BackendKind::Nft);
    let backends: Vec<_> = [BackendKind::Nft].into_iter().chain(kinds).map(BackendKind::find).collect();
    remove_by(backends.iter().flatten().map(|backend| &**backend))?;
    Ok(backends.into_iter().try_for_each(|found| found.map(drop))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::netlink::reply::Unknown;
    use crate::model::ruleset::Family;
    use crate::nft::{BatchObject, KernelPart};

    #[test]
    fn only_a_refusal_for_a_missing_module_outdates_the_probe() {
        let refused = |lacking| -> RedirectionError {
            let refused = NftError::Refused {
                object: BatchObject::Table,
                kernel_message: None,
                lacking,
                others: 0,
                source: Errno::ENOENT,
            };
            BackendError::Nft(refused).into()
        };
        assert!(refused(Some(KernelPart::NF_TABLES)).is_unsupported());
        assert!(!refused(None).is_unsupported());
        let error = RedirectionError::from(RoutesError::Refused(Errno::EPERM));
        assert!(!error.is_unsupported());
        assert!(error.hint().is_none());
    }

    #[test]
    fn rules_and_routes_that_keep_changing_are_not_read_whole_and_a_refusal_is_an_error() {
        let legacy = |source| {
            let refused = LegacyError::Refused { family: Family::V4, table: "nat".to_owned(), source };
            BackendError::Iptables(IptablesError::Legacy(refused))
        };
        let nft = |error| BackendError::Nft(error);
        let source = Unknown::RepliesDropped;
        let cases: [(RedirectionError, bool); 7] = [
            (nft(NftError::KeptChanging { attempts: 9 }).into(), true),
            (nft(NftError::Listing(source)).into(), true),
            (nft(NftError::List { what: "rules", source: Errno::EPERM }).into(), false),
            (legacy(Errno::EAGAIN).into(), true),
            (legacy(Errno::EPERM).into(), false),
            (RoutesError::KeptChanging { what: "routes", attempts: 9 }.into(), true),
            (RoutesError::OutcomeUnknown(source).into(), true),
        ];
        for (error, is_incomplete) in cases {
            assert_eq!(error.is_incomplete(), is_incomplete, "{error:?}");
        }
    }

    #[test]
    fn the_hint_is_that_of_the_rules_or_of_the_routes() {
        let routes = RoutesError::Remove { what: "routes", source: Errno::EPERM };
        assert!(RedirectionError::from(routes).hint().unwrap().contains("CAP_NET_ADMIN"));
    }

    #[test]
    fn every_deviation_names_its_object() {
        let rule = RoutingEntry::MarkRule { family: Family::V4, mark: 1.into(), table: 133 };
        let deviations = [
            (
                Deviation::Route(rule),
                "IPv4 rule fwmark 0x1 lookup 133 is missing, or another rule precedes it",
            ),
            (Deviation::Route(RoutingEntry::PassthroughAddress), "address ::6/128 on lo is missing"),
            (
                Deviation::ExtraRoute(Stray::Known(rule)),
                "IPv4 rule fwmark 0x1 lookup 133 should not be there",
            ),
            (
                Deviation::OtherBackend(BackendKind::IptablesNft),
                "rules written by backend iptables-nft should not be there",
            ),
        ];
        for (deviation, text) in deviations {
            assert_eq!(deviation.to_string(), text);
        }
    }
}
