//! What came of the ADDs of one kind under one fault: a row of the table, and what may stand in it.

use crate::kind::Kind;
use std::collections::BTreeSet;
use std::time::Duration;

/// All that asking may take (`facts.deadline_ms`), and what starting, writing and a machine with other
/// work add.
const BUDGET: Duration = Duration::from_secs(2);
const SLACK: Duration = Duration::from_secs(1);

/// What no ADD ever takes unless it hangs, however late it came to run.
const HANGS: Duration = Duration::from_secs(10);

/// One ADD.
#[derive(Debug, Clone)]
pub(crate) struct Added {
    pub(crate) took: Duration,
    /// Code and message, where it was refused.
    pub(crate) refused: Option<(Option<u64>, String)>,
}

pub(crate) struct Row {
    fault: &'static str,
    pub(crate) kind: Kind,
    added: Vec<Added>,
}

impl Row {
    /// One of the table, which is printed row by row.
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

    /// Each one once.
    fn refusals(&self) -> BTreeSet<&str> {
        let refused = self.added.iter().filter_map(|added| added.refused.as_ref());
        refused.map(|(_, message)| message.as_str()).collect()
    }

    fn failed(&self) -> usize {
        self.added.iter().filter(|added| added.refused.is_some()).count()
    }

    /// The time in which so many of a hundred were done.
    fn within(&self, percent: usize) -> Duration {
        let mut times: Vec<Duration> = self.added.iter().map(|added| added.took).collect();
        times.sort_unstable();
        times[(times.len() * percent).div_ceil(100).saturating_sub(1)]
    }

    /// None was refused, and none was late.
    pub(crate) fn none_fails(&self) {
        self.none_is_late();
        let refused = self.added.iter().find(|added| added.refused.is_some());
        assert!(refused.is_none(), "{}, {}: {refused:?}", self.fault, self.kind.words());
    }

    /// All were refused, each in words that name the cause and help.
    pub(crate) fn all_are_refused(&self) {
        self.refusals_are_clear();
        assert_eq!(self.failed(), self.added.len(), "{}, {}", self.fault, self.kind.words());
    }

    /// Some passed.
    pub(crate) fn some_pass(&self) {
        assert!(self.failed() < self.added.len(), "{}, {}", self.fault, self.kind.words());
    }

    /// Whoever was refused was told to come again, and by whom.
    pub(crate) fn refusals_are_clear(&self) {
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
