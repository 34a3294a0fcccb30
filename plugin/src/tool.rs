//! Which backend writes a pod's rules, and how: the operator's word, or what is known about this node.
//!
//! Decided before anything is written. What the kernel then refuses is an error, and never a reason to
//! try another backend.

use crate::conf::{BackendChoice, PluginConf, Probed};
use crate::error::PluginError;
use crate::probe_cache::{Age, Learnt, ProbeCache};
use gybe_netfilter::backend::{Backend, BackendError, BackendKind};
use gybe_netfilter::choose::{Choice, Override, Way, choose, next};
use gybe_netfilter::policy::RedirectPolicy;
use gybe_netfilter::presence::Presence;
use gybe_netfilter::probe::Capabilities;
use gybe_netfilter::redirection::{Redirection, RedirectionError};

/// A backend, and what is known about it.
pub(crate) struct Tool {
    pub(crate) backend: Box<dyn Backend>,
    /// None where the operator's word was taken.
    choice: Option<Choice>,
}

impl Tool {
    /// The one to write with.
    pub(crate) fn to_write(conf: &PluginConf) -> Result<Self, PluginError> {
        let word = conf.backend;
        let wish = match word.wish() {
            Override::Only(kind) => return at_their_word(word, kind),
            wish => wish,
        };
        let Learnt { capabilities, not_kept, .. } = ProbeCache::default()
            .learn(Age::Any, |known| begin(known, wish, conf).or_else(|| next(known, wish)))?;
        if let Some(cause) = not_kept {
            tracing::warn!(%cause, "gybe-cni: what was found out about this node cannot be kept");
        }
        let choice = choose(&capabilities, wish)?;
        // Its programs were there when it was chosen: the next call chooses anew.
        let backend = find(word, choice.backend).inspect_err(|_| ProbeCache::default().forget())?;
        Ok(Self { backend, choice: Some(choice) })
    }

    /// The one to read with, in the namespace of the calling thread: where the operator leaves the
    /// choice, it is whichever has written there.
    pub(crate) fn to_read(word: BackendChoice) -> Result<Self, PluginError> {
        let wish = match word.wish() {
            Override::Only(kind) => return at_their_word(word, kind),
            wish => wish,
        };
        let there = Presence::look().map_err(PluginError::Presence)?.ours.into_iter().next();
        let kind = there.unwrap_or(BackendKind::Nft);
        let known = ProbeCache::default().recall();
        let choice =
            known.and_then(|known| choose(&known, wish).ok()).filter(|choice| choice.backend == kind);
        Ok(Self { backend: find(word, kind)?, choice })
    }

    /// What makes `policy` true here, and whether anything was left out.
    pub(crate) fn redirection(&self, policy: &RedirectPolicy) -> Result<(Redirection, Way), PluginError> {
        let redirection = Redirection::of(policy);
        match self.choice.as_ref().map_or(Ok(Way::Whole), |choice| choice.way(policy))? {
            Way::Whole => Ok((redirection, Way::Whole)),
            Way::WithoutZones => Ok((redirection.without_zones(), Way::WithoutZones)),
        }
    }

    /// Takes note that the kernel would not have rules that were to work here: what is known is wrong.
    pub(crate) fn note(choice: BackendChoice, refusal: &PluginError) {
        let PluginError::Redirection(error) = refusal else { return };
        // What a program of iptables' complains of may be the kernel's lack; its text decides nothing.
        let by_iptables = matches!(error, RedirectionError::Rules(BackendError::Iptables(_)));
        if (error.is_unsupported() || by_iptables) && !matches!(choice.wish(), Override::Only(_)) {
            ProbeCache::default().forget();
        }
    }
}

/// Where to begin when nothing is known. Only where: it is tried out like any other.
fn begin(known: &Capabilities, wish: Override, conf: &PluginConf) -> Option<BackendKind> {
    if !known.backends.is_empty() || conf.probed == Probed::default() {
        return None;
    }
    let kernel = nix::sys::utsname::uname().ok()?.release().to_string_lossy().into_owned();
    conf.probed.on(&kernel).filter(|kind| wish.order().contains(kind))
}

fn at_their_word(word: BackendChoice, kind: BackendKind) -> Result<Tool, PluginError> {
    Ok(Tool { backend: find(word, kind)?, choice: None })
}

fn find(choice: BackendChoice, kind: BackendKind) -> Result<Box<dyn Backend>, PluginError> {
    kind.find().map_err(|source: BackendError| PluginError::Backend { choice, source })
}
