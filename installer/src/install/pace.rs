//! How fast to heal: at once, unless somebody undoes it again and again.

pub mod rivals;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::change::Change;
use super::plan::Plan;

/// More foreign writes than this in a minute are a fight.
const PEACE: usize = 5;
const MINUTE: Duration = Duration::from_secs(60);
/// In a fight we write this seldom: every write makes the runtime load its networks anew.
const SLOW: Duration = Duration::from_secs(5);

/// What happened lately.
#[derive(Debug, Default)]
pub struct Pace {
    undone: VecDeque<Instant>,
    /// When we last left all as wanted, and nobody has undone it since.
    was_done: bool,
    wrote: Option<Instant>,
    total: u64,
}

/// Whether to write now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Go {
    /// At once.
    Now,
    /// It is a fight: after this time, and say so.
    Later(Duration),
}

/// How the writing went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Went {
    /// All of it, up to where somebody else was faster.
    Well,
    /// Something was refused.
    Badly,
}

impl Pace {
    /// Judges a plan made now.
    pub fn judge(&mut self, plan: &Plan, now: Instant) -> Go {
        let writes = plan.changes.iter().any(is_conf);
        if self.was_done && writes {
            self.undo(now);
        }
        self.was_done = plan.is_done();
        self.undone.retain(|at| now.saturating_duration_since(*at) < MINUTE);
        let since = self.wrote.map(|at| now.saturating_duration_since(at));
        match since {
            Some(since) if writes && self.is_fight() && since < SLOW => Go::Later(SLOW - since),
            _ => Go::Now,
        }
    }

    /// What was planned has been written, unless something was refused. If it is not there all the
    /// same, somebody was so fast that no look found it done in between.
    pub fn wrote(&mut self, went: Went, left: &Plan, now: Instant) {
        self.wrote = Some(now);
        self.was_done = left.is_done();
        if went == Went::Well && left.changes.iter().any(is_conf) {
            self.undo(now);
        }
    }

    fn undo(&mut self, now: Instant) {
        self.undone.push_back(now);
        self.total += 1;
    }

    /// How often since the start.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Something else is wanted than was: what differs now, nobody has undone.
    pub fn begin_anew(&mut self) {
        self.was_done = false;
    }

    /// Whether somebody keeps undoing what we do.
    #[must_use]
    pub fn is_fight(&self) -> bool {
        self.undone.len() > PEACE
    }

    /// How often in the last minute.
    #[must_use]
    pub fn undone(&self) -> usize {
        self.undone.len()
    }
}

fn is_conf(change: &Change) -> bool {
    matches!(change, Change::Write { .. } | Change::Move { .. } | Change::DropIn { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::seen::FileName;

    fn undone() -> Plan {
        let network = FileName::new("n").unwrap();
        Plan {
            changes: vec![Change::DropIn { network, bytes: Vec::new(), mode: 0o600 }],
            problems: Vec::new(),
        }
    }

    #[test]
    fn f05_five_rewrites_a_minute_are_healed_at_once_and_the_sixth_is_a_fight() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        pace.wrote(Went::Well, &Plan::default(), start);
        for n in 1..=5 {
            let now = start + Duration::from_secs(n);
            assert_eq!(pace.judge(&undone(), now), Go::Now);
            pace.wrote(Went::Well, &Plan::default(), now);
        }
        let now = start + Duration::from_secs(6);
        assert_eq!(pace.judge(&undone(), now), Go::Later(Duration::from_secs(4)));
        assert_eq!(
            pace.judge(&undone(), now),
            Go::Later(Duration::from_secs(4)),
            "seen twice is not written twice"
        );
        assert_eq!(pace.undone(), 6);
        assert_eq!(pace.judge(&undone(), start + Duration::from_secs(10)), Go::Now);
        pace.wrote(Went::Well, &Plan::default(), start + Duration::from_secs(10));
        assert_eq!(pace.judge(&Plan::default(), start + Duration::from_secs(90)), Go::Now);
        assert!(!pace.is_fight(), "a quiet minute is peace");
    }

    #[test]
    fn what_is_wanted_anew_is_nobodys_rewrite() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        for n in 0..20 {
            pace.wrote(Went::Well, &Plan::default(), start + Duration::from_secs(n));
            pace.begin_anew();
            assert_eq!(pace.judge(&undone(), start + Duration::from_secs(n)), Go::Now);
        }
    }

    #[test]
    fn f05_who_undoes_it_before_we_look_again_is_seen_too() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        for n in 1..=6 {
            assert_eq!(pace.judge(&undone(), start), Go::Now, "{n}");
            pace.wrote(Went::Well, &undone(), start);
        }
        assert_eq!((pace.judge(&undone(), start), pace.total()), (Go::Later(SLOW), 6));
    }

    #[test]
    fn what_we_could_not_do_is_nobodys_rewrite() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        for n in 0..20 {
            assert_eq!(pace.judge(&undone(), start + Duration::from_secs(n)), Go::Now);
            pace.wrote(Went::Badly, &undone(), start + Duration::from_secs(n));
        }
    }
}
