//! What applying rules met in the namespace: rules of ours, and others who translate addresses.

use std::fmt;

/// What [`super::Backend::apply`] met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// What of ours was there.
    pub before: Before,
    /// Who else translates addresses where we do. Worth a line in a log: for one connection only one
    /// translation counts, and theirs comes first when they register their chain after ours.
    pub beside: Vec<Translator>,
}

/// What of ours was there before, whichever backend had written it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// Nothing.
    Nothing,
    /// Exactly these rules, so that nothing was written.
    TheSame,
    /// Others, which are gone.
    Others,
}

/// Somebody else whose rules translate addresses at our hooks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Translator {
    /// A chain of nftables; that may be one of iptables-nft.
    Nftables {
        /// `ip`, `ip6` or `inet`.
        family: &'static str,
        /// Its table.
        table: String,
        /// Its name.
        chain: String,
        /// Where it hangs: ours hang at -100.
        priority: i32,
    },
    /// Table `nat` of iptables-legacy.
    Legacy {
        /// `ip` or `ip6`.
        family: &'static str,
    },
}

impl fmt::Display for Translator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nftables { family, table, chain, priority } => {
                write!(f, "nftables chain {family} {table} {chain} (priority {priority})")
            }
            Self::Legacy { family } => write!(f, "table nat of {family}tables-legacy"),
        }
    }
}
