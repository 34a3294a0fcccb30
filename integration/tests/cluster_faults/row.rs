//! A row of the table: the results of the ADDs of one kind during one fault, and assertions about them.

use crate::kind::{DEADLINE_MS, Kind};
use std::collections::BTreeSet;
use std::time::Duration;

/// The deadline of a query, and what process start, writing the rules and a busy machine add.
const BUDGET: Duration = Duration::from_millis(DEADLINE_MS);
const SLACK: Duration = Duration::from_secs(1);

/// An ADD that takes longer hangs.
const HANGS: Duration = Duration::from_secs(10);

/// One ADD.
#[derive(Debug, Clone)]
pub(crate) struct Added {
    pub(crate) took: Duration,
    /// The CNI error's code and message, if the ADD was refused.
    pub(crate) refused: Option<(Option<u64>, String)>,
}

pub(crate) struct Row {
    fault: &'static str,
    kind: Kind,
    added: Vec<Added>,
}

impl Row {
    /// Creates a row and prints it.
    pub(crate) fn of(fault: &'static str, kind: Kind, added: Vec<Added>) -> Self {
        let row = Self { fault, kind, added };
        row.print();
        row
    }

    fn print(&self) {
        let [half, most, all] = [50, 99, 100].map(|percent| self.within(percent).as_secs_f64() * 1e3);
        let (fault, kind, failed, count) = (self.fault, self.kind.words(), self.failed(), self.added.len());
        println!(
            "{fault:<50} | {kind:<25} | {failed:>4} of {count:>4} | {half:>7.1} | {most:>7.1} | {all:>7.1}"
        );
        for message in self.refusals() {
            println!("{:<50} | {message}", "");
        }
    }

    /// Returns the distinct messages of refused ADDs.
    fn refusals(&self) -> BTreeSet<&str> {
        let refused = self.added.iter().filter_map(|added| added.refused.as_ref());
        refused.map(|(_, message)| message.as_str()).collect()
    }

    fn failed(&self) -> usize {
        self.added.iter().filter(|added| added.refused.is_some()).count()
    }

    /// Returns the time within which this percentage of the ADDs ended.
    fn within(&self, percent: usize) -> Duration {
        let mut times: Vec<Duration> = self.added.iter().map(|added| added.took).collect();
        times.sort_unstable();
        times[(times.len() * percent).div_ceil(100).saturating_sub(1)]
    }

    /// Asserts that no ADD was refused or late.
    pub(crate) fn none_fails(&self) {
        self.none_is_late();
        let refused = self.added.iter().find(|added| added.refused.is_some());
        assert!(refused.is_none(), "{}, {}: {refused:?}", self.fault, self.kind.words());
    }

    /// Asserts that all ADDs were refused, each with a message that names the cause and the remedy.
    pub(crate) fn all_are_refused(&self) {
        self.refusals_are_clear();
        assert_eq!(self.failed(), self.added.len(), "{}, {}", self.fault, self.kind.words());
    }

    /// Asserts that every refusal has code 11 (try again later) and names the node agent.
    fn refusals_are_clear(&self) {
        self.none_is_late();
        for (code, message) in self.added.iter().filter_map(|added| added.refused.as_ref()) {
            assert_eq!(*code, Some(11), "{message}");
            let named = message.starts_with("gybe-cni cmdAdd GYBE-ADD-") && message.contains("node agent at");
            assert!(named, "{}: {message}", self.fault);
        }
    }

    fn none_is_late(&self) {
        let (most, all) = (self.within(99), self.within(100));
        let (fault, kind) = (self.fault, self.kind.words());
        assert!(most < BUDGET + SLACK && all < HANGS, "{fault}, {kind}: {most:?}, {all:?}");
    }
}
