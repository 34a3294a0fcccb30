//! The word an operator has for a way of writing rules.

use super::answer::Failure;
use clap::{Args, ValueEnum};
use gybe_netfilter::backend::Backend;
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
    Iptables,
}

impl BackendArg {
    pub(super) fn choose(&self) -> Result<Box<dyn Backend>, Failure> {
        match self.backend {
            BackendWord::Auto | BackendWord::Nft => Ok(Box::new(Nft)),
            BackendWord::IptablesNft | BackendWord::IptablesLegacy | BackendWord::Iptables => {
                Err(Failure::new("this gybe writes nftables only")
                    .hinting(Some("use --backend nft".to_owned())))
            }
        }
    }
}
