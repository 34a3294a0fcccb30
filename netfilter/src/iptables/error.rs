//! What can go wrong with iptables, and what helps.

use super::programs::DIRECTORIES;
use super::save::SaveError;
use crate::ruleset::Family;
use std::fmt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// Why rules were not written, read or removed by iptables.
#[derive(Debug, thiserror::Error)]
pub enum IptablesError {
    /// No program of this variant on this node.
    #[error("no {variant} programs for {} on this node", Name(*family))]
    ProgramMissing {
        /// Which variant.
        variant: &'static str,
        /// For which family.
        family: Family,
    },
    /// Somebody else redirects this namespace.
    #[error("chain {chain} in table {table} ({}) was not written by gybe", Name(*family))]
    Foreign {
        /// The family of the table.
        family: Family,
        /// The table.
        table: &'static str,
        /// The first chain of theirs.
        chain: String,
    },
    /// The program printed what cannot be judged.
    #[error("cannot tell which rules are there from {}", program.display())]
    Unreadable {
        /// Which program.
        program: PathBuf,
        /// What is wrong with its output.
        source: SaveError,
    },
    /// The program could not be started or watched.
    #[error("cannot run {}", program.display())]
    NotRun {
        /// Which program.
        program: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The program did not come to an end.
    #[error("{} had not finished after {after:?} and was killed", program.display())]
    Deadline {
        /// Which program.
        program: PathBuf,
        /// How long it was given.
        after: Duration,
    },
    /// The program refused.
    #[error("{} failed ({status}){}: {stderr}", program.display(), at(rule.as_deref()))]
    Failed {
        /// Which program.
        program: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// The rule it stopped at, where it says.
        rule: Option<String>,
        /// What it said, cut to a few lines.
        stderr: String,
    },
    /// The private thread the programs are run from could not be made.
    #[error("cannot make a thread to run iptables from")]
    NoThread(#[source] std::io::Error),
    /// The user namespace that owns this network namespace could not be found.
    #[error("cannot find the user namespace that owns this network namespace")]
    UserNamespace(#[source] std::io::Error),
    /// The rules are as they were before.
    #[error("rules for {} could not be written, and everything was put back as it was", Name(*family))]
    PutBack {
        /// The family whose rules were refused.
        family: Family,
        /// Why.
        source: Box<IptablesError>,
    },
    /// The rules are neither as they were nor as they should be.
    #[error("rules for {} could not be written, nor what was there before put back ({undo})", Name(*family))]
    HalfWritten {
        /// The family whose rules were refused.
        family: Family,
        /// Why they could not be put back.
        undo: String,
        /// Why they were refused.
        source: Box<IptablesError>,
    },
}

struct Name(Family);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

fn at(rule: Option<&str>) -> String {
    rule.map(|rule| format!(" at rule {rule:?}")).unwrap_or_default()
}

impl IptablesError {
    /// What the reader can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::ProgramMissing { .. } => Some(format!(
                "install iptables in one of {}, or choose the backend \"nft\", which needs no program",
                DIRECTORIES.join(", ")
            )),
            Self::Foreign { table, .. } => Some(format!(
                "istio-cni or istio-init has redirected this pod (its table {table} has no empty chain GYBE); \
                 take the pod out of their hands, or leave it to them"
            )),
            Self::Unreadable { source: SaveError::Incompatible(_), .. } => {
                Some("choose the backend \"nft\"".to_owned())
            }
            Self::Deadline { .. } => Some(
                "somebody holds the xtables lock, a name service is slow, or the node is overloaded"
                    .to_owned(),
            ),
            Self::Failed { stderr, .. } => explain(stderr).map(str::to_owned),
            Self::UserNamespace(_) => Some(
                "the pod runs in a user namespace (hostUsers: false); choose the backend \"nft\"".to_owned(),
            ),
            Self::PutBack { source, .. } => source.hint(),
            Self::HalfWritten { source, .. } => Some(match source.hint() {
                Some(hint) => format!("{hint}; then apply again, which repairs what is half written"),
                None => "apply again: it repairs what is half written".to_owned(),
            }),
            Self::Unreadable { .. } | Self::NotRun { .. } | Self::NoThread(_) => None,
        }
    }
}

/// What iptables says, and what it means. The first that is found in its words counts.
const EXPLANATIONS: [(&str, &str); 12] = [
    ("holding the xtables lock", "another program holds the xtables lock of this namespace"),
    ("owner", "the kernel lacks xt_owner; load it, or choose the backend \"nft\""),
    ("REDIRECT", "the kernel lacks xt_REDIRECT; load it, or choose the backend \"nft\""),
    ("TPROXY", "the kernel lacks xt_TPROXY; load it, or choose the backend \"nft\""),
    ("multiport", "the kernel lacks xt_multiport; load it, or choose the backend \"nft\""),
    ("comment", "the kernel lacks xt_comment; load it, or choose the backend \"nft\""),
    ("unrecognized option", "this iptables is too old; choose the backend \"nft\""),
    ("unknown option", "this iptables is too old; choose the backend \"nft\""),
    ("Permission denied", "it takes CAP_NET_ADMIN in the user namespace that owns the network namespace"),
    ("initialize table", "the kernel has no such table; load ip_tables, or choose the backend \"nft\""),
    ("does not exist", "the kernel lacks a module for this rule; choose the backend \"nft\""),
    (
        "Invalid argument",
        "the kernel refused a match: a module is missing, or the pod is in a user namespace of its own; \
         choose the backend \"nft\"",
    ),
];

fn explain(stderr: &str) -> Option<&'static str> {
    EXPLANATIONS.iter().find(|(said, _)| stderr.contains(said)).map(|(_, means)| *means)
}
