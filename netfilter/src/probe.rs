//! Probes what this kernel supports: writes each kind of policy, reads it back and makes real connections, each in a
//! temporary network namespace.
//!
//! Only the result of the attempt counts, not the kernel's version, its modules or the host's own rules. `choose`
//! chooses the backend from the findings.
//!
//! ```text
//! profile ─► policy ─► compile ─► Ruleset ─► apply ─► read back ─► connections ─► Finding
//! ```

pub mod choose;
mod connection;
mod profile;

pub use profile::Profile;

use crate::apply::ApplyError;
use crate::apply::backend::{Backend, BackendError, BackendKind};
use crate::apply::presence::Presence;
use crate::apply::redirection::{Redirection, RedirectionError};
use crate::iptables::IptablesError;
use crate::kernel::netns::{CreateError, Netns, NetnsError};
use crate::kernel::routes::{RoutesError, Rtnetlink};
use crate::model::Hint;
use crate::model::policy::Families;
use crate::nft::NftError;
use crate::xt::legacy;
use connection::{Arrival, ProbeAttempt, ProbeConnection};
use nix::errno::Errno;
use profile::{EXCLUDED, HOME, HOME_V6};
use std::borrow::Cow;
use std::error::Error;
use std::fmt;

/// The result of one profile with one backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The kernel accepted the rules, they were read back as written, and every connection arrived as expected.
    Works,
    /// The rules could not be written.
    Refused(Refusal),
    /// The rules were written and do not work.
    Misbehaves(String),
    /// Not tried, because `ip_tables` is not loaded, and a probe does not load it.
    NotLoaded,
}

/// The error of writing rules, for the probe's report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The error chain in one sentence.
    pub why: String,
    /// The kernel's errno, if there is one.
    pub errno: Option<i32>,
    /// The refused object: a rule, a chain, the table.
    pub object: Option<String>,
    /// The error's hint.
    pub hint: Option<String>,
}

impl Finding {
    /// Reports whether the profile works.
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

/// The findings of one backend, by profile.
pub type Findings = Table<Profile, Finding>;

/// The findings on this kernel; a backend that was not tried has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The findings by backend.
    pub backends: Table<BackendKind, Findings>,
    /// The checks that could not be made here, as sentences; those rules were only written and read back.
    pub untried: Vec<String>,
}

impl Capabilities {
    /// Probes a backend and stores its findings. Loads the kernel's `ip_tables` only if the previous finding was
    /// [`Finding::NotLoaded`]: only a backend that the operator names is probed again.
    ///
    /// # Errors
    /// When the process cannot create a network namespace.
    pub fn probe(&mut self, kind: BackendKind) -> Result<(), ProbeError> {
        let may_load = self.backends.get(kind).is_some_and(is_not_loaded);
        let findings = match kind.find() {
            _ if kind == BackendKind::IptablesLegacy && !may_load && !legacy::is_loaded() => {
                every_profile(&Finding::NotLoaded)
            }
            Err(error) => every_profile(&Finding::Refused(refusal(&error.into()))),
            Ok(backend) => self.probe_profiles(&*backend)?,
        };
        self.backends.insert(kind, findings);
        Ok(())
    }

    fn probe_profiles(&mut self, backend: &dyn Backend) -> Result<Findings, ProbeError> {
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

/// Reports whether the backend was not tried because its kernel module is not loaded.
pub fn is_not_loaded(findings: &Findings) -> bool {
    findings.values().any(|finding| *finding == Finding::NotLoaded)
}

fn every_profile(finding: &Finding) -> Findings {
    Profile::ALL.map(|profile| (profile, finding.clone())).into_iter().collect()
}

/// Tries one profile with one backend in a temporary namespace.
///
/// # Errors
/// When the process cannot create a network namespace.
pub fn try_out(backend: &dyn Backend, profile: Profile) -> Result<Finding, ProbeError> {
    Ok(attempt(backend, profile)?.0)
}

/// Returns the finding, and a check that could not be made.
fn attempt(backend: &dyn Backend, profile: Profile) -> Result<(Finding, Option<String>), ProbeError> {
    let redirection = profile.redirection();
    in_prepared_namespace(profile, |prepared| match prepared {
        NamespaceState::WithoutIpv6(errno) => {
            let why = "IPv6 is disabled in this kernel, or in new network namespaces".to_owned();
            let hint = Some("enable it (net.ipv6.conf.default.disable_ipv6)".to_owned());
            let refusal = Refusal { why, errno: Some(errno as i32), object: None, hint };
            (Finding::Refused(refusal), None)
        }
        NamespaceState::Ready => match write_and_read_back(&redirection, backend) {
            Ok(()) => check_connections(&profile.connections()),
            Err(finding) => (finding, None),
        },
    })
}

fn write_and_read_back(redirection: &Redirection, backend: &dyn Backend) -> Result<(), Finding> {
    let refused = |error: &RedirectionError| Finding::Refused(refusal(error));
    redirection.apply(backend).map_err(|error| refused(&error))?;
    let presence = Presence::look().map_err(|error| refused(&error.into()))?;
    match redirection.differences(backend, &presence).map_err(|error| refused(&error))?.first() {
        None => Ok(()),
        Some(difference) => Err(Finding::Misbehaves(format!("it reads back differently: {difference}"))),
    }
}

fn check_connections(connections: &[ProbeConnection]) -> (Finding, Option<String>) {
    let mut untried = None;
    for connection in connections {
        match connection.make() {
            ProbeAttempt::Arrived(arrival) if arrival == connection.expected() => {}
            ProbeAttempt::Arrived(arrival) => return (misbehaves(connection, &arrival), untried),
            ProbeAttempt::UserNotMapped(uid) => {
                untried = Some(format!("connections of uid {uid}: this user namespace does not map it"));
            }
        }
    }
    (Finding::Works, untried)
}

fn misbehaves(connection: &ProbeConnection, arrival: &Arrival) -> Finding {
    let expected = connection.expected();
    Finding::Misbehaves(format!("{connection} should have arrived {expected}, and {}", arrival.predicate()))
}

fn refusal(error: &RedirectionError) -> Refusal {
    let causes = std::iter::successors(error.source(), |cause: &&dyn Error| (*cause).source());
    let why = causes.fold(error.to_string(), |outer, cause| format!("{outer}: {cause}"));
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

/// A map with few keys, in insertion order. A map of the standard library would add much more code to the plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table<K, V>(Vec<(K, V)>);

impl<K: Copy + PartialEq, V> Table<K, V> {
    /// Returns the value of `key`.
    pub fn get(&self, key: K) -> Option<&V> {
        self.0.iter().find(|(other, _)| *other == key).map(|(_, value)| value)
    }

    /// Reports whether `key` has a value.
    pub fn contains(&self, key: K) -> bool {
        self.get(key).is_some()
    }

    /// Sets the value of `key`; an existing key keeps its position.
    pub fn insert(&mut self, key: K, value: V) {
        match self.0.iter_mut().find(|(other, _)| *other == key) {
            Some((_, existing)) => *existing = value,
            None => self.0.push((key, value)),
        }
    }

    /// Removes the entries whose value is not `is_kept`.
    pub fn retain(&mut self, is_kept: impl Fn(&V) -> bool) {
        self.0.retain(|(_, value)| is_kept(value));
    }

    /// Returns the entries in insertion order.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.0.iter().map(|(key, value)| (*key, value))
    }

    /// Returns the values in insertion order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    /// Reports whether it has no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Copy + PartialEq, V> FromIterator<(K, V)> for Table<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut table = Self::default();
        entries.into_iter().for_each(|(key, value)| table.insert(key, value));
        table
    }
}

/// The error of preparing a probe.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// There is no namespace to try rules in.
    #[error("cannot create a network namespace to try rules in")]
    Create(#[from] CreateError),
    /// The namespace cannot be entered.
    #[error("cannot try rules in a network namespace")]
    Netns(#[from] NetnsError),
    /// Its loopback interface cannot be set up.
    #[error("cannot prepare a network namespace to try rules in")]
    Loopback(#[from] RoutesError),
}

impl Hint for ProbeError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Create(error) => error.hint(),
            Self::Netns(error) => error.hint(),
            Self::Loopback(_) => None,
        }
    }
}

/// The state of the prepared namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NamespaceState {
    /// It has the addresses that the profile needs.
    Ready,
    /// The kernel refused an IPv6 address that the profile needs.
    WithoutIpv6(Errno),
}

/// Runs `work` in a namespace created for it, which the kernel frees afterwards.
fn in_prepared_namespace<T: Send>(
    profile: Profile,
    work: impl FnOnce(NamespaceState) -> T + Send,
) -> Result<T, ProbeError> {
    Netns::create()?.run(|| Ok(work(prepare(profile)?)))?
}

fn prepare(profile: Profile) -> Result<NamespaceState, ProbeError> {
    let mut rtnetlink = Rtnetlink::open()?;
    rtnetlink.raise_loopback()?;
    for address in [HOME, EXCLUDED] {
        rtnetlink.add_to_loopback(address)?;
    }
    if profile.policy().families == Families::V4Only {
        return Ok(NamespaceState::Ready);
    }
    match rtnetlink.add_to_loopback(HOME_V6) {
        Ok(()) => Ok(NamespaceState::Ready),
        Err(RoutesError::Refused(source)) => Ok(NamespaceState::WithoutIpv6(source)),
        Err(error) => Err(error.into()),
    }
}
