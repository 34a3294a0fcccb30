//! The word an operator has for a way of writing rules.

use super::answer::Failure;
use clap::{Args, ValueEnum};
use gybe_netfilter::backend::{Backend, BackendError};
use gybe_netfilter::iptables::{Iptables, Variant};
use gybe_netfilter::nft::Nft;

/// Which tool writes and reads the rules.
#[derive(Debug, Args)]
pub(super) struct BackendArg {
    /// What writes the rules: auto, nft, iptables-nft or iptables-legacy
    #[arg(long, value_name = "BACKEND", default_value = "auto", hide_possible_values = true)]
    backend: BackendWord,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BackendWord {
    Auto,
    Nft,
    IptablesNft,
    #[value(alias = "legacy")]
    IptablesLegacy,
    /// Whichever variant the node has; iptables-nft when it has both.
    Iptables,
}

impl BackendArg {
    pub(super) fn choose(&self) -> Result<Box<dyn Backend>, Failure> {
        match self.backend {
            BackendWord::Auto | BackendWord::Nft => Ok(Box::new(Nft)),
            BackendWord::IptablesNft => iptables(Variant::Nft),
            BackendWord::IptablesLegacy => iptables(Variant::Legacy),
            BackendWord::Iptables => iptables(Variant::Nft).or_else(|_| iptables(Variant::Legacy)),
        }
    }
}

fn iptables(variant: Variant) -> Result<Box<dyn Backend>, Failure> {
    let cannot =
        |why| Failure::hinted(format!("cannot use backend {}", variant.name()), BackendError::from(why));
    Ok(Box::new(Iptables::find(variant).map_err(cannot)?))
}
