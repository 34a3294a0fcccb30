//! The errors of the iptables backends, and their hints.

use super::layout::{DIRECTORIES, MAX_RULES};
use super::save::SaveError;
use crate::access::ChainsError;
use crate::model::Hint;
use crate::model::ruleset::{Engine, Family, RuleId};
use crate::xt::legacy::LegacyError;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

/// The error of writing, reading or removing rules with iptables.
#[derive(Debug, thiserror::Error)]
pub enum IptablesError {
    /// The node lacks the programs of this variant.
    #[error("no {} programs for {family} on this node", engine.iptables())]
    ProgramMissing {
        /// The engine that the variant writes to.
        engine: Engine,
        /// The family.
        family: Family,
    },
    /// The kernel did not list the nftables chains, and so not the tables of iptables-nft.
    #[error("cannot list the nftables chains of this network namespace")]
    Chains(#[source] ChainsError),
    /// The kernel lacks what iptables-nft writes to.
    #[error("iptables-nft needs nftables, which this kernel does not have")]
    NoNftables,
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
            Self::NoNftables => Some(lacks("nf_tables")),
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
            Self::Failed { program, stderr, .. } => explain(program, stderr),
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
const EXPLANATIONS: [(&str, &str); 6] = [
    ("holding the xtables lock", "another program holds the xtables lock of this namespace"),
    ("Couldn't load", "this iptables lacks the extension it names; install it, or choose \"nft\""),
    ("unrecognized option", TOO_OLD),
    ("unknown option", TOO_OLD),
    ("you must be root", "it takes CAP_NET_ADMIN in the user namespace that owns the network namespace"),
    // iptables-legacy prints only "line 12 failed", iptables-nft an errno, for a rule that the kernel refuses.
    (
        "failed",
        "the kernel refused a rule: it lacks a module that the rule needs, like nft_compat or nft_counter; try another backend",
    ),
];

const TOO_OLD: &str = "this iptables is too old; choose the backend \"nft\"";

/// An event shows no hint of more than 120 characters.
fn explain(program: &Path, stderr: &str) -> Option<Cow<'static, str>> {
    let missing = missing_modules(program, stderr);
    if !missing.is_empty() {
        return Some(lacks(&missing.join(" or ")));
    }
    EXPLANATIONS.iter().find(|(text, _)| stderr.contains(text)).map(|(_, means)| (*means).into())
}

fn lacks(missing: &str) -> Cow<'static, str> {
    format!("this kernel lacks {missing}: load it, or choose another backend").into()
}

/// The kernel modules whose absence explains stderr: all of them, or one of them. Seen with iptables 1.8.9 on kernels
/// without the module (`make -C integration kernels`).
fn missing_modules(program: &Path, stderr: &str) -> Vec<String> {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let is_nft = stderr.contains("(nf_tables)") || name.contains("nft");
    if stderr.contains("CHAIN_ADD failed (No such file or directory)") {
        return vec!["nft_chain_nat".to_owned()];
    }
    if let Some(table) = table_that_is_missing(stderr) {
        let family =
            if stderr.contains("ip6tables") || name.starts_with("ip6") { "ip6table" } else { "iptable" };
        return vec![format!("{family}_{table}"), format!("{}s", family.replace("table", "_table"))];
    }
    let extensions = stderr.split("Extension ").skip(1).filter_map(|after| {
        let (extension, after) = after.split_once(' ')?;
        after.contains("missing kernel module").then_some(extension)
    });
    let mut modules: Vec<String> = Vec::new();
    for module in extensions.map(module_of) {
        if !modules.contains(&module) {
            modules.push(module);
        }
    }
    match modules.as_slice() {
        [] => Vec::new(),
        // Without nft_compat, iptables-nft finds no extension at all. Each rule has a comment.
        _ if is_nft && modules.iter().any(|module| module == "xt_comment") => vec!["nft_compat".to_owned()],
        _ if is_nft => modules.into_iter().take(1).chain(["nft_compat".to_owned()]).collect(),
        _ => modules.into_iter().take(2).collect(),
    }
}

/// The name in quotes after "initialize table" or "initialize ip6tables table".
fn table_that_is_missing(stderr: &str) -> Option<&str> {
    let (_, after) = stderr.split_once("initialize ")?;
    let (_, after) = after.split_once("table ")?;
    let name = after.trim_start_matches(['\'', '`', '"']);
    name.split(|c: char| !c.is_ascii_lowercase()).next().filter(|name| !name.is_empty())
}

/// The module of an extension, by its name in iptables.
fn module_of(extension: &str) -> String {
    match extension {
        "tcp" | "udp" => "xt_tcpudp".to_owned(),
        "MARK" | "CONNMARK" => format!("xt_{}", extension.to_lowercase()),
        other => format!("xt_{other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of iptables 1.8.9.
    #[test]
    fn stderr_of_the_programs_is_explained() {
        let owner = "Warning: Extension owner revision 0 not supported, missing kernel module?; \
                     Warning: Extension owner is not supported, missing kernel module?; ";
        let compat = "Warning: Extension tcp revision 0 not supported, missing kernel module?; \
                      Warning: Extension comment revision 0 not supported, missing kernel module?; ";
        for (program, stderr, expected) in [
            (
                "iptables-legacy-restore",
                "Another app is currently holding the xtables lock. Stopped waiting after 2s.",
                "lock",
            ),
            ("iptables-nft-restore", "Couldn't load target `NOSUCH':No such file or directory", "extension"),
            (
                "iptables-nft-restore",
                "iptables-restore v1.8.9 (legacy): unknown option \"--zoneeee\"",
                "too old",
            ),
            ("iptables-legacy-restore", "iptables-restore: line 6 failed", "refused a rule"),
            (
                "iptables-nft-restore",
                "line 4: RULE_APPEND failed (Invalid argument): rule in chain X",
                "refused a rule",
            ),
            (
                "iptables-nft-restore",
                "Could not fetch rule set generation id: Permission denied (you must be root)",
                "CAP_NET_ADMIN",
            ),
            (
                "iptables-legacy-restore",
                "iptables-restore: unable to initialize table 'raw'",
                "lacks iptable_raw or ip_tables:",
            ),
            (
                "ip6tables-legacy-restore",
                "ip6tables-restore: unable to initialize table 'nat'",
                "lacks ip6table_nat or ip6_tables:",
            ),
            (
                "iptables-legacy-restore",
                "can't initialize ip6tables table `nat': Table does not exist (do you need to insmod?)",
                "lacks ip6table_nat or ip6_tables:",
            ),
            ("iptables-legacy-restore", owner, "lacks xt_owner:"),
            ("xtables-nft-multi", owner, "lacks xt_owner or nft_compat:"),
            ("xtables-nft-multi", compat, "lacks nft_compat:"),
            ("xtables-legacy-multi", compat, "lacks xt_tcpudp or xt_comment:"),
            (
                "iptables-nft-restore",
                "line 38: CHAIN_ADD failed (No such file or directory): chain OUTPUT",
                "lacks nft_chain_nat:",
            ),
        ] {
            let hint = explain(Path::new(program), stderr).unwrap();
            assert!(hint.contains(expected) && hint.len() <= 120, "{stderr}: {hint}");
        }
    }
}
