//! The verdict on a network namespace: whether its connections are redirected as the policy desires. `verify` and
//! `doctor` report it.
//!
//! Acts on the namespace of the calling thread and only reads.

mod compare;
mod connections;
mod parts;
mod values;

use crate::apply::backend::BackendKind;
use crate::apply::istio_ambient::IstioAmbient;
use crate::apply::presence::Presence;
use crate::apply::redirection::{Deviation, Redirection, RedirectionError, RuleVariant};
use crate::compile::{compile, compile_ambient};
use crate::inspect::ebpf::Programs;
use crate::inspect::live::LiveRules;
use crate::kernel::routes::{Routes, Rtnetlink};
use crate::model::inventory::Inventory;
use crate::model::policy::{AmbientPolicy, Families, Policy, RedirectPolicy};
use crate::model::ruleset::Ruleset;
use compare::{Compared, Comparison, compare, is_like_one_of};

/// The desired state of a namespace.
#[derive(Debug, Clone, Copy)]
pub enum Desired<'p> {
    /// The rules of this policy.
    Policy(&'p RedirectPolicy),
    /// The rules of this policy of an ambient pod.
    Ambient(&'p AmbientPolicy),
    /// No rule of ours: the pod is not in the mesh.
    LeftAlone,
    /// The caller does not know the pod.
    NotKnown,
}

impl<'p> From<&'p Policy> for Desired<'p> {
    fn from(policy: &'p Policy) -> Self {
        match policy {
            Policy::Sidecar(policy) => Self::Policy(policy),
            Policy::Ambient(policy) => Self::Ambient(policy),
        }
    }
}

/// Whether connections are redirected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedirectionState {
    /// Every connection that should be redirected is.
    Redirected,
    /// The namespace has no rules of ours and should have none, as far as that is known.
    NotMeshed,
    /// At least one connection that should be redirected is not.
    NotRedirected,
    /// Another mesh's rules redirect it.
    ByOthers,
    /// It depends on facts that are not known.
    Unknown,
}

impl RedirectionState {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redirected => "redirected",
            Self::NotMeshed => "not-meshed",
            Self::NotRedirected => "not-redirected",
            Self::ByOthers => "by-others",
            Self::Unknown => "unknown",
        }
    }
}

/// The state of a namespace, with its reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceVerdict {
    /// Whether connections are redirected.
    pub state: RedirectionState,
    /// The reasons, one sentence each, the most important first; none when every connection is redirected.
    pub reasons: Vec<String>,
    /// How our own rules and routes differ from the desired ones, one sentence each.
    pub differences: Vec<String>,
    /// Rules and programs that change no redirected connection, and what could not be read, one sentence each.
    pub notes: Vec<String>,
}

/// The reason in a namespace without any rule of ours.
const NO_RULES: &str = "no Gybe rules in this namespace";

/// With which settings rules of istio-cni are compared where the pod's are not known.
const ASSUMED: &str = "istio-cni's rules are compared with those of an ambient pod whose DNS queries and inbound \
    connections are captured, with IPv6: no policy of an ambient pod is known for it";

impl NamespaceVerdict {
    /// A verdict with one reason.
    pub fn because(state: RedirectionState, reason: impl Into<String>) -> Self {
        Self { state, reasons: vec![reason.into()], differences: Vec::new(), notes: Vec::new() }
    }

    /// Reports whether the namespace is in the desired state.
    pub fn holds(&self) -> bool {
        matches!(self.state, RedirectionState::Redirected | RedirectionState::NotMeshed)
            && self.differences.is_empty()
    }
}

/// What the caller knows of the namespace and its node.
#[derive(Debug, Clone, Copy, Default)]
pub struct VerdictContext<'k> {
    /// The backend whose rules are read; `None` for the one whose rules are found.
    pub only: Option<BackendKind>,
    /// Backends that are known to write every rule on this node, conntrack zones included.
    pub whole: &'k [BackendKind],
    /// The eBPF programs of the pod's cgroups, where they were looked for.
    pub programs: Option<&'k Programs>,
}

/// Judges the namespace of the calling thread.
///
/// # Errors
/// When its rules or routes cannot be read, or the programs that read ours are missing.
pub fn judge_namespace(
    desired: Desired<'_>,
    reading: VerdictContext<'_>,
) -> Result<NamespaceVerdict, RedirectionError> {
    let presence = Presence::look()?;
    if let Some(mesh) = presence.other_meshes.first() {
        let verdict = NamespaceVerdict::because(RedirectionState::ByOthers, mesh.to_string());
        return with_faults_of_istio_ambient(verdict, desired);
    }
    let kinds = reading.only.map_or_else(|| presence.ours.clone(), |kind| vec![kind]);
    let (whole, without) = match desired {
        Desired::LeftAlone => return left_alone(&kinds),
        Desired::NotKnown => (None, RedirectionState::NotMeshed),
        Desired::Policy(policy) => (Some(Redirection::of(policy)), RedirectionState::NotRedirected),
        Desired::Ambient(policy) => (Some(Redirection::of_ambient(policy)), RedirectionState::NotRedirected),
    };
    if presence.ours.is_empty() {
        return Ok(NamespaceVerdict::because(without, NO_RULES));
    }
    let mut live = LiveRules::read()?.with_programs(reading.programs.cloned().unwrap_or_default());
    match desired {
        Desired::Policy(policy) => live = live.with_proxy_of(policy),
        Desired::Ambient(_) => live = live.with_ztunnel(),
        Desired::LeftAlone | Desired::NotKnown => {}
    }
    let (desired_rules, differences) = match (whole, kinds.first()) {
        (Some(whole), Some(kind)) => {
            let redirection = written(whole, *kind, reading.whole)?;
            let differences = redirection.differences(&*kind.find()?, &presence)?;
            (Some(redirection.rules), differences)
        }
        _ => (None, Vec::new()),
    };
    let mut compared = match &desired_rules {
        Some(rules) => compare(&live.replaced_by(rules)?, &live, Compared::Redirected),
        None => compare(&live.ours_alone(), &live, Compared::OursAlone),
    };
    if matches!(desired, Desired::NotKnown) {
        compared.not_redirected.extend(broken(&kinds, &live));
    }
    compared.notes.extend(live.notes().iter().cloned());
    Ok(verdict(compared, &differences))
}

/// How connections would end otherwise if the rules of a policy took the place of the rules of the namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Treatment {
    /// Connections that end otherwise now, one sentence each.
    pub differences: Vec<String>,
    /// Outcomes that are not known, one sentence each.
    pub unknown: Vec<String>,
}

/// Compares all connections under the rules of the calling thread's namespace, also those of other programs, with those
/// under the desired rules; without a policy every connection would keep its destination.
///
/// # Errors
/// When the rules of the namespace cannot be read.
pub fn compare_treatment(desired: Desired<'_>, programs: &Programs) -> Result<Treatment, RedirectionError> {
    let live = LiveRules::read()?.with_programs(programs.clone());
    let (rules, live) = match desired {
        Desired::Policy(policy) => (compile(policy), live.with_proxy_of(policy)),
        Desired::Ambient(policy) => (compile_ambient(policy), live.with_ztunnel()),
        Desired::LeftAlone | Desired::NotKnown => {
            (Ruleset { families: Families::V4AndV6, chains: Vec::new() }, live)
        }
    };
    let which = if let Desired::Ambient(_) = desired { Compared::AllWithReplies } else { Compared::All };
    let compared = compare(&live.replaced_by(&rules)?, &live, which);
    Ok(Treatment { differences: compared.not_redirected, unknown: compared.unknown })
}

/// Reports whether the calling thread's namespace has istio-cni's rules for an ambient pod, no other mesh's, and all its
/// rules together treat every connection as those of this policy do, so that Gybe's can replace istio-cni's.
///
/// # Errors
/// When the rules of the namespace cannot be read.
pub fn is_replaceable(policy: &AmbientPolicy) -> Result<bool, RedirectionError> {
    if IstioAmbient::look()?.is_none() {
        return Ok(false);
    }
    let mut forms = vec![compile_ambient(policy)];
    if policy.families == Families::V4Only {
        // Without IPv6 istio-cni's nft rules that have no address apply to IPv6 all the same.
        let mut both = compile_ambient(&AmbientPolicy { families: Families::V4AndV6, ..policy.clone() });
        both.chains.iter_mut().for_each(|chain| chain.rules.retain(|rule| !rule.id.0.ends_with("-v6")));
        forms.push(both);
    }
    let live = LiveRules::read()?.with_ztunnel();
    let forms = forms.iter().map(|rules| live.replaced_by(rules)).collect::<Result<Vec<_>, _>>()?;
    Ok(is_like_one_of(&forms, &live))
}

/// Reports whether the rules of other owners in the calling thread's namespace, without Gybe's, redirect every connection
/// that Gybe's redirect, and deliver the replies that Gybe's deliver.
///
/// # Errors
/// When the rules of the namespace cannot be read.
pub fn others_redirect_as_ours() -> Result<bool, RedirectionError> {
    let live = LiveRules::read()?.with_ztunnel();
    let compared = compare(&live.ours_alone(), &live.without_ours(), Compared::Captured);
    Ok(compared.not_redirected.is_empty() && compared.unknown.is_empty())
}

/// Adds what keeps connections from ztunnel under rules of istio-cni for an ambient pod, one sentence each; nothing in a
/// namespace with other rules.
fn with_faults_of_istio_ambient(
    mut verdict: NamespaceVerdict,
    desired: Desired<'_>,
) -> Result<NamespaceVerdict, RedirectionError> {
    if IstioAmbient::look()?.is_none() {
        return Ok(verdict);
    }
    let usual = AmbientPolicy::default();
    let policy = if let Desired::Ambient(policy) = desired {
        policy
    } else {
        verdict.notes.push(ASSUMED.to_owned());
        &usual
    };
    let live = LiveRules::read()?.with_ztunnel();
    let compared = compare(&live.replaced_by(&compile_ambient(policy))?, &live, Compared::Captured);
    let missing = Routes::of_ambient(policy).missing(&mut Rtnetlink::open()?)?;
    verdict.differences = compared.not_redirected;
    verdict.differences.extend(missing.into_iter().map(|entry| Deviation::Route(entry).to_string()));
    verdict.notes.extend(compared.unknown);
    Ok(verdict)
}

/// Why the rules of ours that were found belong to no policy, one sentence each.
fn broken(kinds: &[BackendKind], live: &LiveRules) -> Vec<String> {
    let mut broken = live.rules.broken_chains();
    let has_table = || live.rules.chains.iter().any(|chain| chain.table.is_ours());
    // The chains of a dormant table are at no hook and are not read.
    if kinds.contains(&BackendKind::Nft) && live.not_evaluated().is_empty() && !has_table() {
        broken.push("table inet gybe is dormant".to_owned());
    }
    broken
}

fn verdict(compared: Comparison, differences: &[Deviation]) -> NamespaceVerdict {
    let routes = differences.iter().any(|one| matches!(one, Deviation::Route(_) | Deviation::ExtraRoute(_)));
    let routes = routes.then(|| "our own routes are not those of the policy".to_owned());
    let mut not_redirected = compared.not_redirected;
    not_redirected.extend(routes);
    let (state, mut reasons) = match (not_redirected.is_empty(), compared.unknown.is_empty()) {
        (false, _) => (RedirectionState::NotRedirected, not_redirected),
        (true, false) => (RedirectionState::Unknown, Vec::new()),
        (true, true) => (RedirectionState::Redirected, Vec::new()),
    };
    reasons.extend(compared.unknown);
    NamespaceVerdict {
        state,
        reasons,
        differences: differences.iter().map(ToString::to_string).collect(),
        notes: compared.notes,
    }
}

/// The verdict on a namespace that should have no rule of ours.
fn left_alone(kinds: &[BackendKind]) -> Result<NamespaceVerdict, RedirectionError> {
    let mut differences = Vec::new();
    for kind in kinds {
        let found = kind.find()?.inspect()?;
        let all = Inventory::default().differences(&found).into_iter().map(Deviation::Rules);
        differences.extend(all.map(|one| one.to_string()));
    }
    let (state, reasons) = match differences.is_empty() {
        true => (RedirectionState::NotMeshed, Vec::new()),
        false => (
            RedirectionState::Redirected,
            vec!["our rules redirect a pod that should be left alone".to_owned()],
        ),
    };
    Ok(NamespaceVerdict { state, reasons, differences, notes: Vec::new() })
}

/// The redirection as `kind` has most likely written it here.
fn written(
    redirection: Redirection,
    kind: BackendKind,
    whole: &[BackendKind],
) -> Result<Redirection, RedirectionError> {
    let variant = match whole.contains(&kind) {
        true => RuleVariant::Complete,
        false => redirection.written_variant(&*kind.find()?)?,
    };
    Ok(redirection.with_variant(variant))
}

#[cfg(test)]
mod tests;
