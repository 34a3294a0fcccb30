//! What of ours one family's tables hold, or shall hold: the same value for rules that were
//! rendered and rules that were read back.

use super::expand::Line;
use super::save::words;
use crate::ruleset::Stage;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Ours in each table; a table that holds nothing of ours is not in it.
pub(super) type Holdings = BTreeMap<Stage, Holding>;

/// Ours in one table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Holding {
    /// Our chains, the mark among them, and their rules.
    pub chains: BTreeMap<String, Vec<Entry>>,
    /// Rules elsewhere that lead into our chains, by the chain they stand in.
    pub hooks: BTreeMap<String, Vec<Entry>>,
}

/// One rule: its words as restore input has them after `-A CHAIN`. In one text, as there may be thousands.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    text: Box<str>,
    /// What the kernel has counted, when this was read.
    pub counters: Option<Counters>,
    /// Its number in its chain from 1, when this was read.
    pub number: usize,
}

/// How much has met a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counters {
    pub packets: u64,
    pub bytes: u64,
}

/// Equal when they are the same rule, whatever they have counted.
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Entry {}

impl From<Line> for Entry {
    fn from(line: Line) -> Self {
        Self::read(&line.words(), None, 0)
    }
}

/// The options our own rules are written with: see `token.rs`.
const OUR_OPTIONS: [&str; 28] = [
    "!",
    "-s",
    "-d",
    "-i",
    "-o",
    "-p",
    "-m",
    "-j",
    "-g",
    "--sport",
    "--dport",
    "--sports",
    "--dports",
    "--uid-owner",
    "--gid-owner",
    "--mark",
    "--ctstate",
    "--comment",
    "--to-ports",
    "--on-port",
    "--on-ip",
    "--tproxy-mark",
    "--set-xmark",
    "--save-mark",
    "--restore-mark",
    "--nfmask",
    "--ctmask",
    "--zone",
];

impl Entry {
    /// A rule that was read.
    pub(super) fn read(words: &[String], counters: Option<Counters>, number: usize) -> Self {
        let text = words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        Self { text: text.into(), counters, number }
    }

    /// Its comment: the id of the rule it carries out, or empty.
    pub(super) fn comment(&self) -> String {
        self.after(&["--comment"]).unwrap_or_default()
    }

    /// The chain or target it leads to, or empty.
    pub(super) fn target(&self) -> String {
        self.after(&["-j", "-g"]).unwrap_or_default()
    }

    fn words(&self) -> Vec<String> {
        words(&self.text).unwrap_or_default()
    }

    fn after(&self, options: &[&str]) -> Option<String> {
        let words = self.words();
        // A comment may look like an option.
        let is_comment = |at: usize| {
            at.checked_sub(1).and_then(|at| words.get(at)).is_some_and(|word| word == "--comment")
        };
        let mut places = words.iter().enumerate();
        let (at, _) = places.find(|(at, word)| options.contains(&word.as_str()) && !is_comment(*at))?;
        words.get(at + 1).cloned()
    }

    /// Its words in one line, as restore input takes them.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// May it be written back? Only with the options of our own rules and with plain values: text
    /// that somebody in the pod left in a rule must not reach a program that runs as root outside
    /// (`--modprobe=...`, or a comment with a line break that begins a line of its own).
    pub(super) fn is_writable(&self) -> bool {
        let plain = |word: &str| {
            !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.,:/".contains(&b))
        };
        self.words()
            .iter()
            .all(|word| OUR_OPTIONS.contains(&word.as_str()) || (plain(word) && !word.starts_with('-')))
    }
}

/// As `xtables_save_string` writes a word: bare when it is plain, else in double quotes.
fn quoted(word: &str) -> Cow<'_, str> {
    if word.is_empty() || word.contains([' ', '\n', '"', '\'', '\\']) {
        let escaped: String = word
            .chars()
            .flat_map(|c| ['"', '\'', '\\'].contains(&c).then_some('\\').into_iter().chain([c]))
            .collect();
        format!("\"{escaped}\"").into()
    } else {
        word.into()
    }
}

impl Holding {
    /// The same without the rules that may not be written back, and how many those are.
    pub(super) fn writable(&self) -> (Self, usize) {
        let mut kept = self.clone();
        let lists = kept.chains.values_mut().chain(kept.hooks.values_mut());
        let dropped = lists
            .map(|entries| {
                let before = entries.len();
                entries.retain(Entry::is_writable);
                before - entries.len()
            })
            .sum();
        (kept, dropped)
    }
}
