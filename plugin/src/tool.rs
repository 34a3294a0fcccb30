//! Which backend writes a pod's rules, and how: the operator's word, or what is known about this node.
//!
//! Decided before anything is written. What the kernel then refuses is an error, and never a reason to
//! try another backend.

use crate::conf::{BackendChoice, PluginConf, Probed};
use crate::error::PluginError;
use crate::probe_cache::{Age, Learnt, ProbeCache};
use gybe_netfilter::backend::{Backend, BackendError, BackendKind};
use gybe_netfilter::choose::{Choice, Override, Way, choose, does, next};
use gybe_netfilter::iptables::IptablesError;
use gybe_netfilter::policy::RedirectPolicy;
use gybe_netfilter::presence::Presence;
use gybe_netfilter::probe::{Capabilities, Profile};
use gybe_netfilter::redirection::{Redirection, RedirectionError};

/// A backend, and how it writes a policy.
pub(crate) struct Tool {
    pub(crate) backend: Box<dyn Backend>,
    how: How,
}

enum How {
    /// Whole: at the operator's word, or because it is known to.
    Whole,
    /// As far as that works here.
    By(Choice),
    /// It has written, and by what was known then: that is kept nowhere.
    AsFound,
}

impl Tool {
    /// The one to write with.
    pub(crate) fn to_write(conf: &PluginConf) -> Result<Self, PluginError> {
        match conf.backend.wish() {
            // At their word.
            Override::Only(kind) => Ok(Self { backend: find(kind)?, how: How::Whole }),
            wish => Self::chosen(conf, wish),
        }
    }

    /// The same for who only asks: a word is good where it is known to work.
    pub(crate) fn known(conf: &PluginConf) -> Result<Self, PluginError> {
        let wish = conf.backend.wish();
        if let Override::Only(kind) = wish {
            // Programs that are not there say more than what was found out with them.
            find(kind)?;
        }
        Self::chosen(conf, wish)
    }

    /// The one that is known to work here. Where the programs it was tried out with have gone since, it is
    /// tried again, and refused, and another one chosen: by the first of many calls at once.
    fn chosen(conf: &PluginConf, wish: Override) -> Result<Self, PluginError> {
        let choice = decided(conf, wish, |_| None)?;
        if let Ok(backend) = choice.backend.find() {
            return Ok(Self { backend, how: How::By(choice) });
        }
        let choice = decided(conf, wish, |known| gone(known, wish))?;
        Ok(Self { backend: find(choice.backend)?, how: How::By(choice) })
    }

    /// The one to read with, in the namespace of the calling thread: whichever has written there,
    /// whatever the word is by now; where none has, the one that the word names first.
    pub(crate) fn to_read(word: BackendChoice) -> Result<Self, PluginError> {
        let there = Presence::look().map_err(PluginError::Presence)?.ours;
        let kind = *there.first().or(word.wish().order().first()).unwrap_or(&BackendKind::Nft);
        let known = ProbeCache::default().recall();
        let does_zones = known.is_some_and(|known| does(&known, kind, Profile::Dns));
        Ok(Self { backend: find(kind)?, how: if does_zones { How::Whole } else { How::AsFound } })
    }

    /// What makes `policy` true here, and whether anything was left out.
    pub(crate) fn redirection(&self, policy: &RedirectPolicy) -> Result<(Redirection, Way), PluginError> {
        let way = match &self.how {
            How::Whole => Way::Whole,
            How::By(choice) => match choice.way(policy) {
                Ok(way) => way,
                Err(_) => ask_again(choice.backend)?.way(policy)?,
            },
            How::AsFound => Redirection::way_written(policy, &*self.backend)?,
        };
        Ok((Redirection::by_way(policy, way), way))
    }

    /// Takes note that the kernel would not have rules that were to work here: what is known is wrong.
    pub(crate) fn note(refusal: &PluginError) {
        if contradicts_findings(refusal) {
            ProbeCache::default().forget();
        }
    }
}

/// Whether a refusal is about what this node can do, and not about the pod or about others who are at work
/// in its namespace: one of those must not make the next ADDs try out everything again.
fn contradicts_findings(refusal: &PluginError) -> bool {
    let PluginError::Redirection(error) = refusal else { return false };
    match error {
        // What a program of iptables' complains of may be the kernel's lack; its text decides nothing.
        RedirectionError::Rules(BackendError::Iptables(fault)) => !matches!(
            fault,
            IptablesError::Busy { .. }
                | IptablesError::NoLock(_)
                | IptablesError::TooManyRules { .. }
                | IptablesError::Foreign(_)
                | IptablesError::Neighbours(_)
                | IptablesError::Legacy(_)
        ),
        other => other.is_unsupported(),
    }
}

/// What is chosen by what is known here, found out first where it is not, or is `doubted`.
fn decided(
    conf: &PluginConf,
    wish: Override,
    doubted: impl Fn(&Capabilities) -> Option<BackendKind>,
) -> Result<Choice, PluginError> {
    let lacking = |known: &Capabilities| {
        begin(known, wish, conf).or_else(|| doubted(known)).or_else(|| next(known, wish))
    };
    let Learnt { capabilities, not_kept, .. } = ProbeCache::default().learn(Age::Any, lacking)?;
    if let Some(cause) = not_kept {
        tracing::warn!(%cause, "gybe-cni: what was found out about this node cannot be kept");
    }
    Ok(choose(&capabilities, wish)?)
}

/// What a backend cannot do is asked again by whom it refuses, unless that was just found out.
fn ask_again(kind: BackendKind) -> Result<Choice, PluginError> {
    let wish = Override::Only(kind);
    let learnt = ProbeCache::default().learn(Age::Recent, |known| next(known, wish))?;
    Ok(choose(&learnt.capabilities, wish)?)
}

/// Where to begin when nothing is known. Only where: it is tried out like any other.
fn begin(known: &Capabilities, wish: Override, conf: &PluginConf) -> Option<BackendKind> {
    if !known.backends.is_empty() || conf.probed == Probed::default() {
        return None;
    }
    let kernel = nix::sys::utsname::uname().ok()?.release().to_string_lossy().into_owned();
    conf.probed.on(&kernel).filter(|kind| wish.order().contains(kind))
}

/// The one that would be chosen, where its programs are not there.
fn gone(known: &Capabilities, wish: Override) -> Option<BackendKind> {
    choose(known, wish).ok().map(|choice| choice.backend).filter(|kind| kind.find().is_err())
}

fn find(kind: BackendKind) -> Result<Box<dyn Backend>, PluginError> {
    kind.find().map_err(|source| PluginError::Backend { kind, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_netfilter::ruleset::RuleId;
    use std::io;
    use std::time::Duration;

    #[test]
    fn findings_are_forgotten_for_what_the_node_refuses_and_for_nothing_else() {
        let program = || "/usr/sbin/iptables-nft-restore".into();
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let rule = RuleId("outbound-to-proxy-v4");
        for (fault, is_forgotten) in [
            (IptablesError::NotRun { program: program(), source: denied() }, true),
            (IptablesError::Deadline { program: program(), after: Duration::from_secs(10) }, true),
            (IptablesError::UserNamespace(denied()), true),
            (IptablesError::Busy { after: Duration::from_secs(10) }, false),
            (IptablesError::NoLock(denied()), false),
            (IptablesError::TooManyRules { rule, rules: 9000 }, false),
        ] {
            let text = fault.to_string();
            let refusal = PluginError::Redirection(RedirectionError::Rules(BackendError::Iptables(fault)));
            assert_eq!(contradicts_findings(&refusal), is_forgotten, "{text}");
        }
    }
}
