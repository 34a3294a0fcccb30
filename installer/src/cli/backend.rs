//! `--backend`, and the backends that a sub-command writes and reads with.

use super::namespace::OpenNamespace;
use super::output::CommandError;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use gybe_netfilter::apply::backend::{Backend, BackendKind};
use gybe_netfilter::apply::presence::{OtherNat, Presence};
use gybe_netfilter::apply::redirection::{Redirection, RuleVariant};
use gybe_netfilter::model::policy::Policy;
use gybe_netfilter::probe::choose::BackendSetting;
use gybe_plugin::backend::{SelectedBackend, Selection, find};
use gybe_plugin::conf::ProbeHint;
use gybe_plugin::probe_cache::MaxAge;

/// The configured backend.
#[derive(Debug, Args)]
pub(super) struct BackendArg {
    /// The backend: auto, nft, iptables-nft, iptables-legacy or iptables
    #[arg(id = "backend", long, value_name = "BACKEND", default_value = "auto", value_parser = settings(), hide_possible_values = true)]
    pub(super) setting: BackendSetting,
}

/// Parses a backend setting; `legacy` is an alias of `iptables-legacy`.
fn settings() -> impl TypedValueParser<Value = BackendSetting> {
    const LEGACY: BackendSetting = BackendSetting::Only(BackendKind::IptablesLegacy);
    let value = |setting: BackendSetting| match setting {
        LEGACY => PossibleValue::new(setting.as_str()).alias("legacy"),
        setting => PossibleValue::new(setting.as_str()),
    };
    let values = PossibleValuesParser::new(BackendSetting::ALL.map(value));
    values.try_map(|text| if text == "legacy" { Ok(LEGACY) } else { text.parse::<BackendSetting>() })
}

impl BackendArg {
    /// Returns the backend that writes. The findings must be recent: the operator may just have repaired what an
    /// earlier probe found not to work.
    pub(super) fn writer(&self) -> Result<SelectedBackend, CommandError> {
        let selection =
            Selection { setting: self.setting, probed: &ProbeHint::default(), age: MaxAge::Recent };
        selection.to_write().map_err(|why| CommandError::hinted("cannot choose a backend", why))
    }

    /// Returns the backends that read: the configured one, or all that have rules in the namespace; if none has, the
    /// first that the setting allows. Never empty.
    pub(super) fn readers(&self, namespace: &OpenNamespace) -> Result<Vec<Box<dyn Backend>>, CommandError> {
        let kinds = match self.setting.named() {
            Some(kind) => vec![kind],
            None => presence(namespace)?.ours,
        };
        let first = self.setting.order().iter().copied().take(1);
        let kinds = if kinds.is_empty() { first.collect() } else { kinds };
        kinds.into_iter().map(named).collect()
    }
}

/// Returns the rules and routes for `policy`, and notes for the operator about them.
pub(super) fn redirection(
    backend: &SelectedBackend,
    policy: &Policy,
) -> Result<(Redirection, Vec<String>), CommandError> {
    let chosen = match policy {
        Policy::Sidecar(policy) => backend.redirection(policy),
        Policy::Ambient(policy) => backend.redirection_of_ambient(policy),
    };
    let (redirection, variant) = chosen.map_err(|why| CommandError::hinted("cannot redirect", why))?;
    let notes = match variant {
        RuleVariant::Complete => Vec::new(),
        RuleVariant::WithoutZones => {
            vec!["note: this kernel has no conntrack zones, so DNS is captured without them".to_owned()]
        }
    };
    Ok((redirection, notes))
}

/// Reads which programs have rules in a namespace.
pub(super) fn presence(namespace: &OpenNamespace) -> Result<Presence, CommandError> {
    let found = namespace.inside(Presence::look)?;
    found.map_err(|why| {
        CommandError::hinted(
            format!("cannot determine which programs have rules in {}", namespace.path()),
            why,
        )
    })
}

/// Returns notes about other owners' rules that translate addresses in the namespace.
pub(super) fn notes(other_nat: &[OtherNat]) -> Vec<String> {
    let notes = other_nat.iter();
    notes.map(|other| format!("note: another program translates addresses there: {other}")).collect()
}

/// Returns every backend that can be used here: nftables needs nothing, iptables its programs.
pub(super) fn all_here() -> Vec<Box<dyn Backend>> {
    BackendKind::ALL.into_iter().filter_map(|kind| kind.find().ok()).collect()
}

/// Returns the backend of this kind. Nothing is probed: `gybe init` runs where no namespace may be created.
pub(super) fn named(kind: BackendKind) -> Result<Box<dyn Backend>, CommandError> {
    find(kind).map_err(|why| CommandError::hinted("cannot use the configured backend", why))
}
