//! The word an operator has for a way of writing rules.

use super::answer::Failure;
use crate::init_args::Tool;
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

/// The backend for what `istio-iptables` was told to use.
pub(super) fn of(tool: Tool) -> Result<Box<dyn Backend>, Failure> {
    match tool {
        Tool::Any | Tool::Nftables => Ok(Box::new(Nft)),
        Tool::IptablesLegacy => iptables(Variant::Legacy),
    }
}

/// Every backend there is here: nftables needs nothing, iptables its programs.
pub(super) fn all_here() -> Vec<Box<dyn Backend>> {
    let programs = [Variant::Nft, Variant::Legacy].into_iter().filter_map(|variant| iptables(variant).ok());
    let nft: Box<dyn Backend> = Box::new(Nft);
    [nft].into_iter().chain(programs).collect()
}

fn iptables(variant: Variant) -> Result<Box<dyn Backend>, Failure> {
    let cannot =
        |why| Failure::hinted(format!("cannot use backend {}", variant.name()), BackendError::from(why));
    Ok(Box::new(Iptables::find(variant).map_err(cannot)?))
}
