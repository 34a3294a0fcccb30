//! How fast to heal a directory: at once; in a conflict, within a rate limit.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::change::Change;
use super::directory::Directory;
use super::plan::Plan;
use super::rate_limit::RateLimit;

/// More foreign writes than this in a minute are a fight.
const PEACE: usize = 5;
const MINUTE: Duration = Duration::from_secs(60);

/// Writes in a conflict. While the entry is missing, pods start outside the mesh, so it is restored at once
/// for as long as the rate is bearable: every write of a conf makes the runtime load its networks anew. A
/// program is megabytes, and is tried first.
fn limit(directory: Directory) -> RateLimit {
    match directory {
        Directory::Conf => RateLimit::new(10, Duration::from_millis(500)),
        Directory::Programs => RateLimit::new(1, Duration::from_secs(5)),
    }
}

/// What happened lately in one directory.
#[derive(Debug)]
pub struct Pace {
    directory: Directory,
    undone: VecDeque<Instant>,
    last: Last,
    limit: RateLimit,
    tally: Tally,
}

/// How it was found or left the last time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    /// What is wanted now never was there.
    Unknown,
    /// As wanted.
    Well,
    /// Undone by somebody, and not put back yet.
    Undone,
}

/// What was counted since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Foreign writes that undid what we did, as far as they were seen.
    pub undone: u64,
    /// Passes that put it back.
    pub healed: u64,
    /// Whether it is undone now.
    pub is_undone: bool,
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
    /// All of it.
    Well,
    /// Up to where somebody else was faster.
    Overtaken,
    /// Something was refused.
    Badly,
}

impl Pace {
    /// Of this directory, of which nothing is known yet.
    #[must_use]
    pub fn of(directory: Directory) -> Self {
        let (undone, tally) = (VecDeque::new(), Tally::default());
        Self { directory, undone, last: Last::Unknown, limit: limit(directory), tally }
    }

    /// Judges a plan made now. What failed before is still to be done, and nobody has undone it.
    pub fn judge(&mut self, plan: &Plan, failed_before: impl Fn(&Change) -> bool, now: Instant) -> Go {
        let puts = self.puts(plan);
        match self.last {
            Last::Well if self.all_put(plan).any(|change| !failed_before(change)) => self.undo(now),
            // Where something else stands in the way, such as a primary's file that has gone, nothing
            // is put back yet; what comes next shows whether it was undone.
            _ if !puts && self.is_well(plan) => self.last = Last::Well,
            _ => {}
        }
        self.undone.retain(|at| now.saturating_duration_since(*at) < MINUTE);
        match self.limit.wait(now) {
            wait if puts && self.is_fight() && !wait.is_zero() => Go::Later(wait),
            _ => Go::Now,
        }
    }

    /// What was planned has been written, unless something was refused. If it is not there all the
    /// same (`left` is without what was put off), somebody was so fast that no look found it done in between.
    pub fn wrote(&mut self, went: Went, left: &Plan, now: Instant) {
        self.limit.count(now);
        let again = self.puts(left);
        if self.last == Last::Undone && (went == Went::Well || !again) {
            self.tally.healed += 1;
            self.last = Last::Well;
        }
        match (again, went) {
            (true, Went::Well | Went::Overtaken) => self.undo(now),
            // All of it is there now, whatever else stands in the way beside it.
            (false, Went::Well) => self.last = Last::Well,
            (false, _) if self.is_well(left) => self.last = Last::Well,
            (true, Went::Badly) | (false, _) => {}
        }
    }

    fn undo(&mut self, now: Instant) {
        self.undone.push_back(now);
        self.tally.undone += 1;
        self.last = Last::Undone;
    }

    fn puts(&self, plan: &Plan) -> bool {
        self.all_put(plan).next().is_some()
    }

    fn all_put<'a>(&self, plan: &'a Plan) -> impl Iterator<Item = &'a Change> {
        let directory = self.directory;
        plan.changes.iter().filter(move |change| change.puts() && change.directory() == directory)
    }

    fn is_well(&self, plan: &Plan) -> bool {
        !plan.problems.iter().any(|problem| problem.blocks() && problem.directory() == self.directory)
    }

    /// What was counted since the start.
    #[must_use]
    pub fn tally(&self) -> Tally {
        Tally { is_undone: self.last == Last::Undone, ..self.tally }
    }

    /// Something else is wanted than was: what differs now, nobody has undone.
    pub fn begin_anew(&mut self) {
        if self.last == Last::Well {
            self.last = Last::Unknown;
        }
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

#[cfg(test)]
mod tests;
