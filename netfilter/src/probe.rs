//! What this kernel makes of our rules: each kind of policy is written, read back and put to use with
//! real connections, in network namespaces that live for one attempt.
//!
//! Only what was seen to work counts: no version, no list of modules, nothing about the host's own
//! rules. What follows from the findings is decided in `choose`.
//!
//! ```text
//! profile ─► policy ─► compile ─► Ruleset ─► Backend::apply ─► read back ─► connections ─► Finding
//!                                    └─ trace: where each connection should arrive ──┘
//! ```

mod arrival;
mod call;
mod place;
mod profile;
mod table;

pub use place::ProbeError;
pub use profile::Profile;
pub use table::Table;

use crate::apply::ApplyError;
use crate::backend::{Backend, BackendError, BackendKind};
use crate::hint::Hint;
use crate::iptables::IptablesError;
use crate::nft::NftError;
use crate::presence::Presence;
use crate::redirection::{Redirection, RedirectionError};
use crate::xt::legacy;
use arrival::{Arrival, Made};
use call::Call;
use place::{Prepared, in_new_namespace};
use std::borrow::Cow;
use std::error::Error;
use std::fmt;

/// What became of one profile with one backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The rules were taken, read back as written, and every connection went where it should.
    Works,
    /// The rules were not taken.
    Refused(Refusal),
    /// They were taken, and do not do what they say.
    Misbehaves(String),
    /// Nothing was written: the backend's part of the kernel, `ip_tables`, is not loaded, and is not for
    /// being tried out.
    NotLoaded,
}

/// Why rules were not taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refusal {
    /// All layers in one sentence.
    pub why: String,
    /// The kernel's number for it, where there is one.
    pub errno: Option<i32>,
    /// What it was about: a rule, a chain, the table.
    pub object: Option<String>,
    /// What would help, where that is known.
    pub hint: Option<String>,
}

impl Finding {
    /// Does it work?
    pub fn works(&self) -> bool {
        *self == Self::Works
    }
}

impl Hint for Finding {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Refused(refusal) => refusal.hint.clone().map(Cow::Owned),
            Self::NotLoaded => Some("load it (modprobe ip_tables), then probe again".into()),
            Self::Works | Self::Misbehaves(_) => None,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Works => f.write_str("works"),
            Self::Refused(refusal) => write!(f, "refused: {}", refusal.why),
            Self::Misbehaves(what) => write!(f, "misbehaves: {what}"),
            Self::NotLoaded => f.write_str("not tried: this kernel has no ip_tables loaded"),
        }
    }
}

/// What was found out about each profile.
pub type Findings = Table<Profile, Finding>;

/// What was found out about this kernel; a backend that was not tried is not in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// By backend.
    pub backends: Table<BackendKind, Findings>,
    /// What could not be put to use here, in sentences: it was written and read back only.
    pub untried: Vec<String>,
}

impl Capabilities {
    /// Tries a backend out, and takes in what is found. iptables-legacy's part of the kernel is not loaded
    /// for that, unless it was found [`Finding::NotLoaded`] before: who asks again means it.
    ///
    /// # Errors
    /// When nothing can be tried: this process may make no network namespace.
    pub fn learn(&mut self, kind: BackendKind) -> Result<(), ProbeError> {
        let may_load = self.backends.get(kind).is_some_and(is_not_loaded);
        let findings = match kind.find() {
            _ if kind == BackendKind::IptablesLegacy && !may_load && !legacy::is_loaded() => {
                all(&Finding::NotLoaded)
            }
            Err(error) => all(&Finding::Refused(refusal(&error.into()))),
            Ok(backend) => self.tried(&*backend)?,
        };
        self.backends.insert(kind, findings);
        Ok(())
    }

    fn tried(&mut self, backend: &dyn Backend) -> Result<Findings, ProbeError> {
        let mut findings = Findings::default();
        for profile in Profile::ALL {
            let (finding, untried) = attempt(backend, profile)?;
            self.untried.extend(untried.filter(|what| !self.untried.contains(what)));
            let degraded = profile.degraded().filter(|_| !finding.works());
            findings.insert(profile, finding);
            if let Some(degraded) = degraded {
                findings.insert(degraded, attempt(backend, degraded)?.0);
            }
        }
        Ok(findings)
    }
}

/// Was nothing tried because its part of the kernel is not loaded?
pub fn is_not_loaded(findings: &Findings) -> bool {
    findings.values().any(|finding| *finding == Finding::NotLoaded)
}

fn all(finding: &Finding) -> Findings {
    Profile::ALL.map(|profile| (profile, finding.clone())).into_iter().collect()
}

/// Tries one profile with one backend, in a namespace made for it.
///
/// # Errors
/// When this process may make none.
pub fn try_out(backend: &dyn Backend, profile: Profile) -> Result<Finding, ProbeError> {
    Ok(attempt(backend, profile)?.0)
}

/// The finding, and what could not be tried.
fn attempt(backend: &dyn Backend, profile: Profile) -> Result<(Finding, Option<String>), ProbeError> {
    let redirection = profile.redirection();
    in_new_namespace(profile, |prepared| match prepared {
        Prepared::WithoutIpv6(errno) => {
            let why = "IPv6 is off in this kernel, or for new network namespaces".to_owned();
            let hint = Some("switch it on (net.ipv6.conf.default.disable_ipv6)".to_owned());
            let refusal = Refusal { why, errno: Some(errno as i32), object: None, hint };
            (Finding::Refused(refusal), None)
        }
        Prepared::Ready => match write(&redirection, backend) {
            Ok(()) => put_to_use(&redirection, &profile.calls()),
            Err(finding) => (finding, None),
        },
    })
}

fn write(redirection: &Redirection, backend: &dyn Backend) -> Result<(), Finding> {
    let refused = |error: &RedirectionError| Finding::Refused(refusal(error));
    redirection.apply(backend).map_err(|error| refused(&error))?;
    let presence = Presence::look().map_err(|error| refused(&error.into()))?;
    match redirection.differences(backend, &presence).map_err(|error| refused(&error))?.first() {
        None => Ok(()),
        Some(deviation) => Err(Finding::Misbehaves(format!("it reads back otherwise: {deviation}"))),
    }
}

fn put_to_use(redirection: &Redirection, calls: &[Call]) -> (Finding, Option<String>) {
    let mut untried = None;
    for call in calls {
        match call.make() {
            Made::Arrived(arrival) if arrival == call.expected(&redirection.rules) => {}
            Made::Arrived(arrival) => return (misbehaves(call, redirection, &arrival), untried),
            Made::NotByThatUser(uid) => {
                untried = Some(format!("connections of uid {uid}: this user namespace does not map it"));
            }
        }
    }
    (Finding::Works, untried)
}

fn misbehaves(call: &Call, redirection: &Redirection, arrival: &Arrival) -> Finding {
    let expected = call.expected(&redirection.rules);
    Finding::Misbehaves(format!("{call} should have arrived {expected}, and {}", arrival.as_news()))
}

fn refusal(error: &RedirectionError) -> Refusal {
    let below = std::iter::successors(error.source(), |cause: &&dyn Error| (*cause).source());
    let why = below.fold(error.to_string(), |told, cause| format!("{told}: {cause}"));
    let (errno, object) = match error {
        RedirectionError::Rules(ApplyError::Backend(BackendError::Nft(NftError::Refused {
            object,
            source,
            ..
        }))) => (Some(*source as i32), Some(object.to_string())),
        RedirectionError::Rules(ApplyError::Backend(BackendError::Iptables(error))) => (None, rule_of(error)),
        RedirectionError::Routes(error) => (error.errno().map(|errno| errno as i32), None),
        RedirectionError::Rules(_) => (None, None),
    };
    Refusal { why, errno, object, hint: error.hint().map(Cow::into_owned) }
}

fn rule_of(error: &IptablesError) -> Option<String> {
    match error {
        IptablesError::Failed { rule, .. } => rule.as_ref().map(|rule| format!("rule {rule:?}")),
        IptablesError::PutBack { source, .. } | IptablesError::HalfWritten { source, .. } => rule_of(source),
        _ => None,
    }
}
