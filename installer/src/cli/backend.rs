//! The word an operator has for a way of writing rules, and which backend it comes to.

use super::answer::{Failure, Hinted};
use super::namespace::Opened;
use crate::pod::init_args;
use clap::{Args, ValueEnum};
use gybe_netfilter::backend::{Backend, BackendKind, Translator};
use gybe_netfilter::choose::{Choice, NoBackend, Override, Unserved, Way, choose, next};
use gybe_netfilter::policy::RedirectPolicy;
use gybe_netfilter::presence::Presence;
use gybe_netfilter::redirection::Redirection;
use gybe_plugin::probe_cache::{Age, LearnError, ProbeCache};

/// Which tool writes and reads the rules.
#[derive(Debug, Args)]
pub(super) struct BackendArg {
    /// What writes the rules: auto, nft, iptables-nft, iptables-legacy or iptables
    #[arg(long, value_name = "BACKEND", default_value = "auto", hide_possible_values = true)]
    backend: BackendWord,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BackendWord {
    /// What works on this node (gybe probe); for reading, whichever has written.
    Auto,
    Nft,
    IptablesNft,
    #[value(alias = "legacy")]
    IptablesLegacy,
    /// Whichever variant works on this node; iptables-nft when both do.
    Iptables,
}

/// A backend, and what is known about it.
pub(super) struct Chosen {
    pub(super) backend: Box<dyn Backend>,
    /// None where the operator's word was taken.
    choice: Option<Choice>,
}

impl BackendArg {
    /// What the operator wants.
    pub(super) fn wish(&self) -> Override {
        match self.backend {
            BackendWord::Auto => Override::Auto,
            BackendWord::Iptables => Override::Iptables,
            BackendWord::Nft => Override::Only(BackendKind::Nft),
            BackendWord::IptablesNft => Override::Only(BackendKind::IptablesNft),
            BackendWord::IptablesLegacy => Override::Only(BackendKind::IptablesLegacy),
        }
    }

    /// The one to write with, decided before anything is written.
    pub(super) fn writer(&self) -> Result<Chosen, Failure> {
        let wish = match self.wish() {
            Override::Only(kind) => return Ok(Chosen { backend: find(kind)?, choice: None }),
            wish => wish,
        };
        let cannot = || "cannot choose a backend".to_owned();
        // Whoever calls may just have mended what was refused.
        let learnt = ProbeCache::default().learn(Age::Recent, |known| next(known, wish));
        let learnt = learnt.map_err(|why| Failure::hinted(cannot(), why))?;
        let choice = choose(&learnt.capabilities, wish).map_err(|why| Failure::hinted(cannot(), why))?;
        // Its programs were there when it was chosen: the next call chooses anew.
        let backend = find(choice.backend).inspect_err(|_| ProbeCache::default().forget())?;
        Ok(Chosen { backend, choice: Some(choice) })
    }

    /// The one to read with, where a single one is named.
    pub(super) fn reads_only(&self) -> Option<BackendKind> {
        match self.wish() {
            Override::Only(kind) => Some(kind),
            Override::Auto | Override::Iptables => None,
        }
    }

    /// Those to read with: the one that was named, else all that have written there, and where none has
    /// the one that the word names first. Never none.
    pub(super) fn readers(&self, there: &Opened<'_>) -> Result<Vec<Box<dyn Backend>>, Failure> {
        let kinds = match self.reads_only() {
            Some(kind) => vec![kind],
            None => presence(there)?.ours,
        };
        let first = self.wish().order().iter().copied().take(1);
        let kinds = if kinds.is_empty() { first.collect() } else { kinds };
        kinds.into_iter().map(find).collect()
    }
}

impl Chosen {
    /// What makes `policy` true here, and what an operator should know about it.
    pub(super) fn redirection(&self, policy: &RedirectPolicy) -> Result<(Redirection, Vec<String>), Failure> {
        let way = self.choice.as_ref().map_or(Ok(Way::Whole), |choice| choice.way(policy));
        let way = way.map_err(|why| Failure::hinted("cannot redirect", why))?;
        let notes = match way {
            Way::Whole => Vec::new(),
            Way::WithoutZones => {
                vec!["note: this kernel has no conntrack zones, so DNS is captured without".to_owned()]
            }
        };
        Ok((Redirection::by_way(policy, way), notes))
    }
}

/// Who has rules there.
pub(super) fn presence(there: &Opened<'_>) -> Result<Presence, Failure> {
    let found = there.inside(Presence::look)?;
    found.map_err(|why| Failure::hinted(format!("cannot tell whose rules are in {}", there.path()), why))
}

/// What an operator should know about others who translate addresses there.
pub(super) fn notes(beside: &[Translator]) -> Vec<String> {
    let beside = beside.iter();
    beside.map(|other| format!("note: somebody else translates addresses there: {other}")).collect()
}

/// The backend for what `istio-iptables` was told to use. An init container may make no namespace to
/// probe in, so nothing is found out for it.
pub(super) fn of(tool: init_args::Tool) -> Result<Box<dyn Backend>, Failure> {
    match tool {
        init_args::Tool::Any | init_args::Tool::Nftables => find(BackendKind::Nft),
        init_args::Tool::IptablesLegacy => find(BackendKind::IptablesLegacy),
    }
}

/// Every backend there is here: nftables needs nothing, iptables its programs.
pub(super) fn all_here() -> Vec<Box<dyn Backend>> {
    BackendKind::ALL.into_iter().filter_map(|kind| kind.find().ok()).collect()
}

fn find(kind: BackendKind) -> Result<Box<dyn Backend>, Failure> {
    kind.find().map_err(|why| Failure::hinted(format!("cannot use backend {kind}"), why))
}

impl Hinted for LearnError {
    fn hint(&self) -> Option<String> {
        self.hint()
    }
}

impl Hinted for NoBackend {
    fn hint(&self) -> Option<String> {
        self.hint()
    }
}

impl Hinted for Unserved {
    fn hint(&self) -> Option<String> {
        Some(self.hint())
    }
}
