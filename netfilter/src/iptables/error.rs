//! The errors of the iptables backends, and their hints.

use super::layout::{DIRECTORIES, MAX_RULES};
use super::save::SaveError;
use crate::hint::Hint;
use crate::nft::error::NftError;
use crate::ruleset::{Family, RuleId};
use crate::xt::legacy::LegacyError;
use std::borrow::Cow;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// The error of writing, reading or removing rules with iptables.
#[derive(Debug, thiserror::Error)]
pub enum IptablesError {
    /// The node lacks the programs of this variant.
    #[error("no {variant} programs for {family} on this node")]
    ProgramMissing {
        /// The variant.
        variant: &'static str,
        /// The family.
        family: Family,
    },
    /// The kernel did not list the nftables chains, and so not the tables of iptables-nft.
    #[error("cannot list the nftables chains of this network namespace")]
    Chains(#[source] NftError),
    /// The policy has more rules than the backend writes.
    #[error("the policy takes more than {MAX_RULES} iptables rules, {rules} of them for the lists of {rule}")]
    TooManyRules {
        /// The rule with the longest lists.
        rule: RuleId,
        /// The number of its iptables rules.
        rules: usize,
    },
    /// The kernel did not return iptables-legacy's rules.
    #[error("cannot read the rules of iptables-legacy")]
    Legacy(#[from] LegacyError),
    /// The output of the program cannot be parsed.
    #[error("cannot parse the rules that {} printed", program.display())]
    Unreadable {
        /// The program.
        program: PathBuf,
        /// The error of the parser.
        source: SaveError,
    },
    /// Another process has held the namespace's lock for too long.
    #[error("another process has held the lock of this network namespace for {after:?}")]
    Busy {
        /// The time waited.
        after: Duration,
    },
    /// The kernel refused to lock the namespace.
    #[error("cannot lock this network namespace")]
    NoLock(#[source] std::io::Error),
    /// The program could not be started or waited for.
    #[error("cannot run {}", program.display())]
    NotRun {
        /// The program.
        program: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The program missed the deadline.
    #[error("{} had not finished after {after:?} and was killed", program.display())]
    Deadline {
        /// The program.
        program: PathBuf,
        /// The time it had.
        after: Duration,
    },
    /// The program failed.
    #[error("{} failed ({status}){}: {stderr}", program.display(), at(rule.as_deref()))]
    Failed {
        /// The program.
        program: PathBuf,
        /// Its exit status.
        status: ExitStatus,
        /// The rule it refused, where stderr names the line.
        rule: Option<String>,
        /// The first lines of stderr.
        stderr: String,
    },
    /// The private thread for the programs could not be started.
    #[error("cannot start a thread to run iptables from")]
    NoThread(#[source] std::io::Error),
    /// The user namespace that owns this network namespace could not be found or entered.
    #[error("cannot enter the user namespace that owns this network namespace as its root")]
    UserNamespace(#[source] std::io::Error),
    /// The write failed; the rules are as they were before.
    #[error("rules for {family} could not be written; the rules from before were restored")]
    PutBack {
        /// The family whose rules were refused.
        family: Family,
        /// The refusal.
        source: Box<IptablesError>,
    },
    /// The write failed, and the rules from before could not be restored.
    #[error(
        "rules for {family} could not be written, and the rules from before could not be restored ({undo})"
    )]
    HalfWritten {
        /// The family whose rules were refused.
        family: Family,
        /// Why they could not be put back.
        undo: String,
        /// The refusal.
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
                "another Gybe process holds the namespace's lock, or a program that uses the same file as its xtables lock: \
                 lslocks shows the process".into(),
            ),
            Self::Deadline { .. } => Some(
                "another program holds the xtables lock, a name service is slow, or the node is overloaded".into(),
            ),
            Self::Failed { stderr, .. } => explain(stderr).map(Cow::Borrowed),
            Self::UserNamespace(_) => Some(
                "the pod runs in a user namespace (hostUsers: false); choose the backend \"nft\"".into(),
            ),
            Self::PutBack { source, .. } => source.hint(),
            Self::HalfWritten { source, .. } => Some(match source.hint() {
                Some(hint) => format!("{hint}; then apply again, which repairs the partly written rules").into(),
                None => "apply again: it repairs the partly written rules".into(),
            }),
            Self::Unreadable { .. } | Self::NotRun { .. } | Self::NoThread(_) | Self::NoLock(_) => None,
        }
    }
}

/// Texts of stderr and what they mean; the first that occurs counts.
const EXPLANATIONS: [(&str, &str); 9] = [
    ("holding the xtables lock", "another program holds the xtables lock of this namespace"),
    ("missing kernel module", "the kernel lacks the match or target it names; load it, or choose \"nft\""),
    ("Couldn't load", "this iptables lacks the extension it names; install it, or choose \"nft\""),
    ("unrecognized option", TOO_OLD),
    ("unknown option", TOO_OLD),
    ("you must be root", "it takes CAP_NET_ADMIN in the user namespace that owns the network namespace"),
    ("initialize table", "the kernel has no such table; load ip_tables and its tables, or choose \"nft\""),
    ("does not exist", "the kernel has no such table; load ip_tables and its tables, or choose \"nft\""),
    // iptables-legacy prints only "line 12 failed", iptables-nft an errno: EINVAL from xt_owner, ENOENT for a missing
    // part.
    (
        "failed",
        "the kernel refused a rule: it lacks a match or target (xt_owner, xt_REDIRECT, xt_comment, xt_multiport, \
         xt_TPROXY, xt_CT; for iptables-nft nft_compat); load it, or choose the backend \"nft\"",
    ),
];

const TOO_OLD: &str = "this iptables is too old; choose the backend \"nft\"";

fn explain(stderr: &str) -> Option<&'static str> {
    EXPLANATIONS.iter().find(|(text, _)| stderr.contains(text)).map(|(_, means)| *means)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of iptables 1.8.9.
    #[test]
    fn stderr_of_the_programs_is_explained() {
        for (stderr, expected) in [
            ("Another app is currently holding the xtables lock. Stopped waiting after 2s.", "lock"),
            ("Couldn't load target `NOSUCH':No such file or directory", "extension"),
            ("iptables-restore v1.8.9 (legacy): unknown option \"--zoneeee\"", "too old"),
            ("iptables-restore: line 6 failed", "xt_owner"),
            ("line 4: RULE_APPEND failed (Invalid argument): rule in chain X", "xt_owner"),
            ("Could not fetch rule set generation id: Permission denied (you must be root)", "CAP_NET_ADMIN"),
            ("iptables-restore: unable to initialize table 'raw'", "no such table"),
        ] {
            assert!(
                explain(stderr).is_some_and(|hint| hint.contains(expected)),
                "{stderr}: {:?}",
                explain(stderr)
            );
        }
    }
}
