//! Chooses the backend from the findings of the probe and the configured backend, before the first write. Pure.
//!
//! Another backend replaces nftables only where nftables lacks what every policy needs. The choice lists what else the
//! backend lacks, and a policy that needs it is refused: a refusal never leads to another backend, because a pod has
//! the rules of one backend.

use crate::apply::backend::BackendKind;
use crate::apply::redirection::RuleVariant;
use crate::model::Hint;
use crate::model::policy::ambient::{AmbientDns, AmbientPolicy};
use crate::model::policy::{Dns, Families, Mode, RedirectPolicy};
use crate::probe::{Capabilities, Finding, Findings, Profile, Table, is_not_loaded};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// The configured backend: the value of the key `backend`, of `--backend` and of the node label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackendSetting {
    /// The first that works on the node: nftables, then iptables-nft, then iptables-legacy.
    #[default]
    Auto,
    /// The first variant of iptables that works on the node.
    Iptables,
    /// This backend and no other.
    Only(BackendKind),
}

/// A text that names no backend setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be one of auto, nft, iptables-nft, iptables-legacy, iptables")]
pub struct UnknownBackendSetting;

/// The profiles that every policy needs; a backend must work with all of them.
const ESSENTIAL: [Profile; 2] = [Profile::V4, Profile::Lists];

/// The backend chosen for this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The backend.
    pub backend: BackendKind,
    /// The reason, in one sentence.
    pub why: String,
    /// The profiles that do not work here, with the finding.
    pub missing: Table<Profile, Finding>,
}

/// No backend works.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no backend works on this node for {setting}: {}", sentences(.found))]
pub struct NoBackend {
    /// The configured backend.
    pub setting: BackendSetting,
    /// The finding of each backend.
    pub found: Vec<(BackendKind, String)>,
    hint: Option<Cow<'static, str>>,
}

/// A policy needs a profile that does not work with the chosen backend on this node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{need}, which {backend} cannot do on this node: {found}")]
pub struct UnsupportedPolicy {
    /// The part of the policy.
    pub need: &'static str,
    /// The chosen backend.
    pub backend: BackendKind,
    /// The finding of the probe.
    pub found: Finding,
}

impl BackendSetting {
    /// Every setting, in the order in which documentation lists them.
    pub const ALL: [Self; 5] = [
        Self::Auto,
        Self::Only(BackendKind::Nft),
        Self::Only(BackendKind::IptablesNft),
        Self::Only(BackendKind::IptablesLegacy),
        Self::Iptables,
    ];

    /// The setting as an operator writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Iptables => "iptables",
            Self::Only(kind) => kind.name(),
        }
    }

    /// The backends that the setting allows, in the order in which they are considered; never empty.
    pub fn order(self) -> &'static [BackendKind] {
        match self {
            Self::Auto => &BackendKind::ALL,
            Self::Iptables => &[BackendKind::IptablesNft, BackendKind::IptablesLegacy],
            Self::Only(BackendKind::Nft) => &[BackendKind::Nft],
            Self::Only(BackendKind::IptablesNft) => &[BackendKind::IptablesNft],
            Self::Only(BackendKind::IptablesLegacy) => &[BackendKind::IptablesLegacy],
        }
    }

    /// The backend that the setting names; none where the node's capabilities decide.
    pub fn named(self) -> Option<BackendKind> {
        match self {
            Self::Only(kind) => Some(kind),
            Self::Auto | Self::Iptables => None,
        }
    }
}

impl fmt::Display for BackendSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for BackendSetting {
    type Err = UnknownBackendSetting;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|setting| setting.as_str() == text).ok_or(UnknownBackendSetting)
    }
}

/// Returns the backend to probe before a choice is possible; none when the findings are enough.
pub fn next(known: &Capabilities, setting: BackendSetting) -> Option<BackendKind> {
    // Configuring a backend by name permits loading its kernel modules, as the first pod does.
    let is_named = setting.named().is_some();
    let is_enough = |findings: &&Findings| !(is_named && is_not_loaded(findings));
    let tried = |kind: &BackendKind| known.backends.get(*kind).filter(is_enough);
    let settled = setting.order().iter().filter_map(tried).any(suffices);
    if settled { None } else { setting.order().iter().copied().find(|kind| tried(kind).is_none()) }
}

/// Chooses a backend.
///
/// # Errors
/// When none of the probed backends works.
pub fn choose(known: &Capabilities, setting: BackendSetting) -> Result<Choice, NoBackend> {
    let mut passed_over = Vec::new();
    for kind in setting.order() {
        match known.backends.get(*kind) {
            Some(findings) if suffices(findings) => {
                return Ok(chosen(*kind, findings, setting, &passed_over));
            }
            Some(findings) => passed_over.push((*kind, fault(findings))),
            None => passed_over.push((*kind, "was not probed".to_owned())),
        }
    }
    let hint = hint(known, setting);
    Err(NoBackend { setting, found: passed_over, hint })
}

/// Reports whether the backend can do what every policy needs.
pub fn suffices(findings: &Findings) -> bool {
    ESSENTIAL.iter().all(|profile| findings.get(*profile).is_some_and(Finding::works))
}

/// Reports whether every profile works.
pub fn flawless(findings: &Findings) -> bool {
    findings.values().all(Finding::works)
}

/// Reports whether `profile` is known to work with `backend`.
pub fn does(known: &Capabilities, backend: BackendKind, profile: Profile) -> bool {
    known.backends.get(backend).and_then(|findings| findings.get(profile)).is_some_and(Finding::works)
}

/// The finding of the first essential profile that does not work.
fn fault(findings: &Findings) -> String {
    let failing = ESSENTIAL.iter().filter_map(|profile| Some((profile, findings.get(*profile)?)));
    let mut failing = failing.filter(|(_, finding)| !finding.works());
    failing
        .next()
        .map_or_else(|| "was not probed".to_owned(), |(profile, finding)| format!("{profile} {finding}"))
}

fn chosen(
    backend: BackendKind,
    findings: &Findings,
    setting: BackendSetting,
    passed_over: &[(BackendKind, String)],
) -> Choice {
    let failing = findings.iter().filter(|(_, finding)| !finding.works());
    let missing: Table<Profile, Finding> =
        failing.map(|(profile, finding)| (profile, finding.clone())).collect();
    let works = match missing.is_empty() {
        true => format!("{backend} does everything"),
        false => {
            let names: Vec<&str> = missing.iter().map(|(profile, _)| profile.name()).collect();
            format!("{backend} does everything but {}", names.join(", "))
        }
    };
    let why = match passed_over {
        [] => format!("{setting}: {works}"),
        others => format!("{setting}: {works}; {}", sentences(others)),
    };
    Choice { backend, why, missing }
}

fn sentences(found: &[(BackendKind, String)]) -> String {
    found.iter().map(|(kind, what)| format!("{kind}: {what}")).collect::<Vec<_>>().join("; ")
}

/// The hint of the first refusal; where another backend works, that backend.
fn hint(known: &Capabilities, setting: BackendSetting) -> Option<Cow<'static, str>> {
    if let Some(other) =
        BackendKind::ALL.into_iter().find(|kind| known.backends.get(*kind).is_some_and(suffices))
    {
        return Some(format!("{other} works on this node: set backend to {other} or to auto").into());
    }
    let findings = setting.order().iter().filter_map(|kind| known.backends.get(*kind));
    let mut hints = findings.flat_map(Table::values).filter_map(Finding::hint);
    hints.next().or_else(|| Some("gybe probe --fresh shows the findings".into()))
}

impl Hint for NoBackend {
    fn hint(&self) -> Option<Cow<'static, str>> {
        self.hint.clone()
    }
}

impl Choice {
    /// Returns the variant of the policy's rules that the backend can write here.
    ///
    /// # Errors
    /// When it cannot write the policy. IPv6 in particular is never left out silently, because its connections would
    /// bypass the proxy.
    pub fn variant(&self, policy: &RedirectPolicy) -> Result<RuleVariant, UnsupportedPolicy> {
        let marks = (policy.mode != Mode::Redirect).then_some("the pod asks for TPROXY");
        self.variant_with(policy.families, marks, policy.dns != Dns::Off)
    }

    /// Returns the variant of an ambient policy's rules that the backend can write here.
    ///
    /// # Errors
    /// As [`Choice::variant`].
    pub fn variant_of_ambient(&self, policy: &AmbientPolicy) -> Result<RuleVariant, UnsupportedPolicy> {
        // Marks, and routes by mark, are those of the probe's TPROXY.
        let marks = Some("the pod is ambient, which takes the marks of TPROXY");
        self.variant_with(policy.families, marks, policy.dns == AmbientDns::Captured)
    }

    /// `marks`: why marks are needed, if they are.
    fn variant_with(
        &self,
        families: Families,
        marks: Option<&'static str>,
        has_dns: bool,
    ) -> Result<RuleVariant, UnsupportedPolicy> {
        let both = families == Families::V4AndV6;
        self.need(both, Profile::V4AndV6, "the pod's IPv6 must be redirected")?;
        self.need(marks.is_some(), Profile::Tproxy, marks.unwrap_or_default())?;
        match self.need(has_dns, Profile::Dns, "the pod's DNS must be captured") {
            Ok(()) => Ok(RuleVariant::Complete),
            Err(_) if !self.missing.contains(Profile::DnsWithoutZones) => Ok(RuleVariant::WithoutZones),
            Err(unsupported) => Err(unsupported),
        }
    }

    fn need(&self, is_needed: bool, profile: Profile, need: &'static str) -> Result<(), UnsupportedPolicy> {
        match self.missing.get(profile).filter(|_| is_needed) {
            None => Ok(()),
            Some(found) => Err(UnsupportedPolicy { need, backend: self.backend, found: found.clone() }),
        }
    }
}

impl Hint for UnsupportedPolicy {
    fn hint(&self) -> Option<Cow<'static, str>> {
        let other = "gybe probe lists the backends that can; configure one of them as backend";
        self.found.hint().or_else(|| Some(other.into()))
    }
}

#[cfg(test)]
mod tests;
