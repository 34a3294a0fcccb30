//! The backend for a namespace's rules: selected by the configured backend, the node's probe findings and
//! the rules that are there. The plugin and the command line both select here.
//!
//! A backend is selected before the first write. What the kernel then refuses is an error, and never a
//! reason to try another backend.

use crate::conf::{PluginConf, ProbeHint};
use crate::probe_cache::{MaxAge, ProbeCache, ProbeCacheError, ProbeReport};
use gybe_netfilter::apply::ApplyError;
use gybe_netfilter::apply::backend::{Backend, BackendError, BackendKind};
use gybe_netfilter::apply::presence::Presence;
use gybe_netfilter::apply::redirection::{Redirection, RedirectionError, RuleVariant};
use gybe_netfilter::iptables::IptablesError;
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::policy::{AmbientPolicy, RedirectPolicy};
use gybe_netfilter::probe::choose::{
    BackendSetting, Choice, NoBackend, UnsupportedPolicy, choose, does, next,
};
use gybe_netfilter::probe::{Capabilities, Profile};
use std::borrow::Cow;

/// A backend, and how it writes a policy on this node.
pub struct SelectedBackend {
    /// The backend.
    pub backend: Box<dyn Backend>,
    coverage: Coverage,
}

/// What a backend can write on this node.
enum Coverage {
    /// Every policy: the configuration names the backend, or its findings say so.
    Everything,
    /// What the probe found to work.
    ProbeHint(Choice),
    /// The policy as the rules in the namespace have it: the findings of that time are not kept.
    AsWritten,
}

/// Why no backend can be used.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// The programs of a backend are missing: the configuration names it, or its rules are in the pod.
    #[error("this node cannot use backend {kind}")]
    Programs {
        /// The backend.
        kind: BackendKind,
        /// The missing program.
        source: BackendError,
    },
    /// The probe could not run.
    #[error(transparent)]
    Probe(#[from] ProbeCacheError),
    /// No backend that the configuration allows works on this node.
    #[error(transparent)]
    NoBackend(#[from] NoBackend),
    /// The selected backend cannot write the pod's policy.
    #[error(transparent)]
    UnsupportedPolicy(#[from] UnsupportedPolicy),
    /// The rules that are in the namespace cannot be read.
    #[error("cannot read which backend has rules in the pod's namespace")]
    Presence(#[source] BackendError),
    /// The routes or rules that are in the namespace cannot be compared with the policy.
    #[error("the pod cannot be redirected")]
    Redirection(#[from] RedirectionError),
}

impl Hint for SelectError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Programs { .. } => Some("install it, or set backend to nft, which needs no program".into()),
            Self::Probe(error) => error.hint(),
            Self::NoBackend(error) => error.hint(),
            Self::UnsupportedPolicy(error) => error.hint(),
            Self::Presence(error) => error.hint(),
            Self::Redirection(error) => error.hint(),
        }
    }
}

/// How a backend is selected where the configuration does not name one.
#[derive(Debug, Clone, Copy)]
pub struct Selection<'a> {
    /// The configured backend.
    pub setting: BackendSetting,
    /// The backend that is probed first when no findings are kept.
    pub probed: &'a ProbeHint,
    /// How old findings may be.
    pub age: MaxAge,
}

impl<'a> Selection<'a> {
    /// Returns the selection of an ADD and of STATUS.
    pub(crate) fn of(conf: &'a PluginConf) -> Self {
        Self { setting: conf.backend, probed: &conf.probed, age: MaxAge::Any }
    }

    /// Returns the backend that writes: a configured one without probing it.
    ///
    /// # Errors
    /// When no backend works here, or the programs of the configured one are missing.
    pub fn to_write(self) -> Result<SelectedBackend, SelectError> {
        match self.setting.named() {
            Some(kind) => Ok(SelectedBackend { backend: find(kind)?, coverage: Coverage::Everything }),
            None => self.by_findings(),
        }
    }

    /// Returns the backend that would write, a configured one only if the probe found that it works.
    ///
    /// # Errors
    /// When no backend works here, or the configured one does not.
    pub(crate) fn verified(self) -> Result<SelectedBackend, SelectError> {
        if let Some(kind) = self.setting.named() {
            // An error that names the missing programs says more than the findings made without them.
            find(kind)?;
        }
        self.by_findings()
    }

    /// Selects by the findings. If the programs of the chosen backend have been removed since the probe, the
    /// first of many concurrent calls probes it again, and another backend is chosen.
    fn by_findings(self) -> Result<SelectedBackend, SelectError> {
        let choice = self.choose(|_| None)?;
        if let Ok(backend) = choice.backend.find() {
            return Ok(SelectedBackend { backend, coverage: Coverage::ProbeHint(choice) });
        }
        let choice = self.choose(|known| without_programs(known, self.setting))?;
        Ok(SelectedBackend { backend: find(choice.backend)?, coverage: Coverage::ProbeHint(choice) })
    }

    /// Chooses by the findings, after probing what is unknown or what `doubted` names.
    fn choose(self, doubted: impl Fn(&Capabilities) -> Option<BackendKind>) -> Result<Choice, SelectError> {
        let lacking = |known: &Capabilities| {
            self.first(known).or_else(|| doubted(known)).or_else(|| next(known, self.setting))
        };
        let ProbeReport { capabilities, store_error, .. } =
            ProbeCache::default().get_or_probe(self.age, lacking)?;
        if let Some(cause) = store_error {
            tracing::warn!(%cause, "gybe-cni: cannot keep the findings of the probe");
        }
        Ok(choose(&capabilities, self.setting)?)
    }

    /// Returns the backend to probe first when nothing is known. It is probed like any other.
    fn first(self, known: &Capabilities) -> Option<BackendKind> {
        if !known.backends.is_empty() || *self.probed == ProbeHint::default() {
            return None;
        }
        let kernel = nix::sys::utsname::uname().ok()?.release().to_string_lossy().into_owned();
        self.probed.on(&kernel).filter(|kind| self.setting.order().contains(kind))
    }
}

impl SelectedBackend {
    /// Returns the backend that reads, in the network namespace of the calling thread: the one with rules
    /// there, whatever is configured by now; if none has, the first that `setting` allows.
    ///
    /// # Errors
    /// When the rules cannot be read, or the backend's programs are missing.
    pub(crate) fn to_read(setting: BackendSetting) -> Result<Self, SelectError> {
        let present = Presence::look().map_err(SelectError::Presence)?.ours;
        let kind = *present.first().or(setting.order().first()).unwrap_or(&BackendKind::Nft);
        let known = ProbeCache::default().load();
        let has_zones = known.is_some_and(|known| does(&known, kind, Profile::Dns));
        let coverage = if has_zones { Coverage::Everything } else { Coverage::AsWritten };
        Ok(Self { backend: find(kind)?, coverage })
    }

    /// Returns the rules and routes for `policy`, and whether anything was left out.
    ///
    /// # Errors
    /// When the backend cannot write the policy on this node.
    pub fn redirection(&self, policy: &RedirectPolicy) -> Result<(Redirection, RuleVariant), SelectError> {
        self.writable(Redirection::of(policy), &|choice| choice.variant(policy))
    }

    /// [`SelectedBackend::redirection`] of an ambient pod.
    ///
    /// # Errors
    /// When the backend cannot write the policy on this node.
    pub fn redirection_of_ambient(
        &self,
        policy: &AmbientPolicy,
    ) -> Result<(Redirection, RuleVariant), SelectError> {
        self.writable(Redirection::of_ambient(policy), &|choice| choice.variant_of_ambient(policy))
    }

    fn writable(
        &self,
        redirection: Redirection,
        variant: &dyn Fn(&Choice) -> Result<RuleVariant, UnsupportedPolicy>,
    ) -> Result<(Redirection, RuleVariant), SelectError> {
        let variant = match &self.coverage {
            Coverage::Everything => RuleVariant::Complete,
            Coverage::ProbeHint(choice) => match variant(choice) {
                Ok(variant) => variant,
                Err(_) => variant(&probe_again(choice.backend)?)?,
            },
            Coverage::AsWritten => redirection.written_variant(&*self.backend)?,
        };
        Ok((redirection.with_variant(variant), variant))
    }
}

/// Forgets the findings of the probe if the kernel has refused rules that should work by them.
pub(crate) fn forget_contradicted_findings(error: &RedirectionError) {
    if contradicts_findings(error) {
        ProbeCache::default().clear();
    }
}

/// Reports whether an error is about what this node can do, and not about the pod or about other programs at work
/// in its namespace: the latter must not make the next ADDs probe every backend again.
fn contradicts_findings(error: &RedirectionError) -> bool {
    match error {
        // An iptables program fails also for what the kernel lacks; its text is not evaluated.
        RedirectionError::Rules(ApplyError::Backend(BackendError::Iptables(error))) => !matches!(
            error,
            IptablesError::Busy { .. }
                | IptablesError::NoLock(_)
                | IptablesError::TooManyRules { .. }
                | IptablesError::Chains(_)
                | IptablesError::Legacy(_)
        ),
        other => other.is_unsupported(),
    }
}

/// Probes again what a backend could not do, unless the findings are recent.
fn probe_again(kind: BackendKind) -> Result<Choice, SelectError> {
    let setting = BackendSetting::Only(kind);
    let report = ProbeCache::default().get_or_probe(MaxAge::Recent, |known| next(known, setting))?;
    Ok(choose(&report.capabilities, setting)?)
}

/// Returns the backend that would be chosen, if its programs are missing.
fn without_programs(known: &Capabilities, setting: BackendSetting) -> Option<BackendKind> {
    choose(known, setting).ok().map(|choice| choice.backend).filter(|kind| kind.find().is_err())
}

/// Finds the programs of a backend.
///
/// # Errors
/// When a program is missing.
pub fn find(kind: BackendKind) -> Result<Box<dyn Backend>, SelectError> {
    kind.find().map_err(|source| SelectError::Programs { kind, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_netfilter::model::ruleset::RuleId;
    use std::io;
    use std::time::Duration;

    #[test]
    fn findings_are_forgotten_only_after_an_error_about_the_node() {
        let program = || "/usr/sbin/iptables-nft-restore".into();
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let rule = RuleId("outbound-to-proxy-v4");
        for (error, is_forgotten) in [
            (IptablesError::NotRun { program: program(), source: denied() }, true),
            (IptablesError::Deadline { program: program(), after: Duration::from_secs(10) }, true),
            (IptablesError::UserNamespace(denied()), true),
            (IptablesError::Busy { after: Duration::from_secs(10) }, false),
            (IptablesError::NoLock(denied()), false),
            (IptablesError::TooManyRules { rule, rules: 9000 }, false),
        ] {
            let text = error.to_string();
            let error = RedirectionError::from(BackendError::Iptables(error));
            assert_eq!(contradicts_findings(&error), is_forgotten, "{text}");
        }
    }
}
