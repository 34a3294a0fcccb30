//! Rules of another mesh's making: a namespace that has them is not ours to redirect.

use crate::hint::Hint;
use crate::ruleset::Family;
use std::borrow::Cow;
use std::fmt;

/// Whose rules stand where ours should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// Chains with the names of a sidecar's redirect, and without our mark.
    #[error("chain {chain} in table {table} ({}) was not written by gybe", Name(*family))]
    Chain {
        /// The family of the table.
        family: Family,
        /// The table.
        table: &'static str,
        /// The first chain of theirs.
        chain: String,
    },
    /// Istio's own nftables tables.
    #[error("nftables table inet {table} belongs to istio-cni")]
    Table {
        /// Their first table.
        table: String,
    },
}

impl Hint for Foreign {
    fn hint(&self) -> Option<Cow<'static, str>> {
        Some(match self {
            Self::Chain { table, .. } => format!(
                "istio-cni or istio-init has redirected this pod (its table {table} has no empty chain GYBE); \
                 take the pod out of their hands, or leave it to them"
            )
            .into(),
            Self::Table { .. } => "take the pod out of istio-cni's hands, or leave it to istio-cni".into(),
        })
    }
}

/// A family as people write it.
pub(crate) struct Name(pub(crate) Family);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}
