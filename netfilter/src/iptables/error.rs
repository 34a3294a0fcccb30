//! What can go wrong with iptables, and what helps.

use super::layout::MAX_RULES;
use super::programs::DIRECTORIES;
use super::save::SaveError;
use crate::hint::Hint;
use crate::nft::error::NftError;
use crate::ruleset::{Family, RuleId};
use crate::xt::legacy::LegacyError;
use std::borrow::Cow;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// Why rules were not written, read or removed by iptables.
#[derive(Debug, thiserror::Error)]
pub enum IptablesError {
    /// No program of this variant on this node.
    #[error("no {variant} programs for {family} on this node")]
    ProgramMissing {
        /// Which variant.
        variant: &'static str,
        /// For which family.
        family: Family,
    },
    /// The kernel did not list the nftables chains, and so not the tables of iptables-nft.
    #[error("cannot list the nftables chains of this network namespace")]
    Chains(#[source] NftError),
    /// The policy's lists come to more rules than are written.
    #[error(
        "the policy comes to more than {MAX_RULES} iptables rules, {rules} of them by the lists of {rule}"
    )]
    TooManyRules {
        /// The rule with the longest lists.
        rule: RuleId,
        /// How many iptables rules it comes to.
        rules: usize,
    },
    /// The kernel did not return iptables-legacy's rules.
    #[error("cannot tell which rules of iptables-legacy are there")]
    Legacy(#[from] LegacyError),
    /// The program printed what cannot be judged.
    #[error("cannot tell which rules are there from {}", program.display())]
    Unreadable {
        /// Which program.
        program: PathBuf,
        /// What is wrong with its output.
        source: SaveError,
    },
    /// Somebody else is at work in this network namespace, and has not come to an end.
    #[error("somebody else has been at work in this network namespace for {after:?}")]
    Busy {
        /// How long was waited.
        after: Duration,
    },
    /// The kernel would not lock it.
    #[error("cannot keep others from writing in this network namespace")]
    NoLock(#[source] std::io::Error),
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
    /// The user namespace that owns this network namespace could not be found or entered.
    #[error("cannot enter the user namespace that owns this network namespace as its root")]
    UserNamespace(#[source] std::io::Error),
    /// The rules are as they were before.
    #[error("rules for {family} could not be written, and everything was put back as it was")]
    PutBack {
        /// The family whose rules were refused.
        family: Family,
        /// Why.
        source: Box<IptablesError>,
    },
    /// The rules are neither as they were nor as they should be.
    #[error("rules for {family} could not be written, nor what was there before put back ({undo})")]
    HalfWritten {
        /// The family whose rules were refused.
        family: Family,
        /// Why they could not be put back.
        undo: String,
        /// Why they were refused.
        source: Box<IptablesError>,
    },
}

fn at(rule: Option<&str>) -> String {
    rule.map(|rule| format!(" at rule {rule:?}")).unwrap_or_default()
}

impl Hint for IptablesError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::ProgramMissing { .. } => Some(
                format!(
                "install iptables in one of {}, or choose the backend \"nft\", which needs no program",
                DIRECTORIES.join(", ")
            )
            .into()),
            Self::TooManyRules { .. } => Some(
                "shorten the pod's lists of networks, ports and interfaces, or choose nft: there a list is one rule".into(),
            ),
            Self::Chains(error) => error.hint(),
            Self::Legacy(error) => error.hint(),
            Self::Unreadable { source: SaveError::Incompatible(_), .. } => {
                Some("choose the backend \"nft\"".into())
            }
            Self::Busy { .. } => Some(
                "another call holds the namespace's lock, or a program that takes it for its xtables lock: \
                 lslocks names it".into(),
            ),
            Self::Deadline { .. } => Some(
                "somebody holds the xtables lock, a name service is slow, or the node is overloaded".into(),
            ),
            Self::Failed { stderr, .. } => explain(stderr).map(Cow::Borrowed),
            Self::UserNamespace(_) => Some(
                "the pod runs in a user namespace (hostUsers: false); choose the backend \"nft\"".into(),
            ),
            Self::PutBack { source, .. } => source.hint(),
            Self::HalfWritten { source, .. } => Some(match source.hint() {
                Some(hint) => format!("{hint}; then apply again, which repairs what is half written").into(),
                None => "apply again: it repairs what is half written".into(),
            }),
            Self::Unreadable { .. } | Self::NotRun { .. } | Self::NoThread(_) | Self::NoLock(_) => None,
        }
    }
}

/// What iptables says, and what it means. The first that is found in its words counts.
const EXPLANATIONS: [(&str, &str); 9] = [
    ("holding the xtables lock", "another program holds the xtables lock of this namespace"),
    ("missing kernel module", "the kernel lacks the match or target it names; load it, or choose \"nft\""),
    ("Couldn't load", "this iptables lacks the extension it names; install it, or choose \"nft\""),
    ("unrecognized option", TOO_OLD),
    ("unknown option", TOO_OLD),
    ("you must be root", "it takes CAP_NET_ADMIN in the user namespace that owns the network namespace"),
    ("initialize table", "the kernel has no such table; load ip_tables and its tables, or choose \"nft\""),
    ("does not exist", "the kernel has no such table; load ip_tables and its tables, or choose \"nft\""),
    // Legacy says only "line 12 failed", nft an errno: xt_owner gives EINVAL, what is missing ENOENT.
    (
        "failed",
        "the kernel refused a rule: it lacks a match or target (xt_owner, xt_REDIRECT, xt_comment, xt_multiport, \
         xt_TPROXY, xt_CT; for iptables-nft nft_compat); load it, or choose the backend \"nft\"",
    ),
];

const TOO_OLD: &str = "this iptables is too old; choose the backend \"nft\"";

fn explain(stderr: &str) -> Option<&'static str> {
    EXPLANATIONS.iter().find(|(said, _)| stderr.contains(said)).map(|(_, means)| *means)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What iptables 1.8.9 said when these things were done to it.
    #[test]
    fn what_the_programs_say_is_explained() {
        for (said, meant) in [
            ("Another app is currently holding the xtables lock. Stopped waiting after 2s.", "lock"),
            ("Couldn't load target `NOSUCH':No such file or directory", "extension"),
            ("iptables-restore v1.8.9 (legacy): unknown option \"--zoneeee\"", "too old"),
            ("iptables-restore: line 6 failed", "xt_owner"),
            ("line 4: RULE_APPEND failed (Invalid argument): rule in chain X", "xt_owner"),
            ("Could not fetch rule set generation id: Permission denied (you must be root)", "CAP_NET_ADMIN"),
            ("iptables-restore: unable to initialize table 'raw'", "no such table"),
        ] {
            assert!(explain(said).is_some_and(|hint| hint.contains(meant)), "{said}: {:?}", explain(said));
        }
    }
}
