//! Which events about the node a turn causes: redirection is lost or restored, a conflict begins or ends. Pure.

use crate::agent::events::{Event, Reason};
use crate::agent::status::Status;
use crate::host::observe::{Directory, PerDirectory};

/// The conditions that have had an event and still hold.
#[derive(Debug, Default)]
pub(super) struct NodeEvents {
    was_redirected: bool,
    is_lost: bool,
    conflicts: PerDirectory<bool>,
}

impl NodeEvents {
    /// Returns the events of the last turn.
    pub(super) fn observe(&mut self, status: &Status) -> Vec<Event> {
        let redirection = self.observe_redirection(status);
        redirection.into_iter().chain(self.observe_conflicts(status)).collect()
    }

    /// A rewrite that is repaired within a second causes no event, nor does the time before the first installation.
    fn observe_redirection(&mut self, status: &Status) -> Option<Event> {
        let report = &status.report;
        self.was_redirected |= report.is_redirected == Some(true);
        let is_lost = status.is_unredirected() && self.was_redirected;
        match (std::mem::replace(&mut self.is_lost, is_lost), is_lost) {
            (false, true) => Some(Event::of_node(Reason::RedirectionLost, &report.missing.join("; "))),
            (true, false) if report.is_redirected == Some(true) => {
                Some(Event::of_node(Reason::RedirectionRestored, "a pod started now is redirected again"))
            }
            _ => None,
        }
    }

    fn observe_conflicts(&mut self, status: &Status) -> Vec<Event> {
        let changed = |directory: Directory| {
            let conflict = status.report.conflicts.of(directory);
            let was_conflict = std::mem::replace(self.conflicts.of_mut(directory), conflict.is_some());
            match (was_conflict, conflict) {
                (false, Some(why)) => Some(Event::of_node(Reason::ConflictBegan, why)),
                (true, None) => {
                    let what = match directory {
                        Directory::Conf => {
                            "no other program undoes Gybe's entry in the conf directory any more"
                        }
                        Directory::Programs => "no other program replaces Gybe's programs any more",
                    };
                    Some(Event::of_node(Reason::ConflictEnded, what))
                }
                _ => None,
            }
        };
        Directory::BOTH.into_iter().filter_map(changed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::status::TurnReport;
    use std::time::{Duration, Instant};

    fn report(is_redirected: Option<bool>, conflict: Option<&str>) -> TurnReport {
        let conf = conflict.map(str::to_owned);
        TurnReport {
            is_redirected,
            missing: vec!["the entry is missing".to_owned()],
            conflicts: PerDirectory { conf, programs: None },
            ..TurnReport::default()
        }
    }

    #[test]
    fn redirection_that_is_lost_for_a_second_or_restored_and_conflicts_are_events() {
        let (mut status, mut events) = (Status::default(), NodeEvents::default());
        let start = Instant::now().checked_sub(Duration::from_secs(100)).unwrap();
        let restored = Event::of_node(Reason::RedirectionRestored, "a pod started now is redirected again");
        let ended = "no other program undoes Gybe's entry in the conf directory any more";
        for (what, seconds_ago, is_redirected, conflict, expected) in [
            ("before the first installation", 100, Some(false), None, vec![]),
            ("installed", 90, Some(true), None, vec![]),
            ("a rewrite that is repaired at once", 0, Some(false), None, vec![]),
            ("repaired", 0, Some(true), None, vec![]),
            (
                "lost",
                50,
                Some(false),
                None,
                vec![Event::of_node(Reason::RedirectionLost, "the entry is missing")],
            ),
            ("still lost", 40, Some(false), None, vec![]),
            ("unknown", 30, None, None, vec![]),
            (
                "a conflict",
                20,
                Some(true),
                Some("why"),
                vec![restored, Event::of_node(Reason::ConflictBegan, "why")],
            ),
            ("the conflict lasts", 20, Some(true), Some("other file"), vec![]),
            ("it ends", 10, Some(true), None, vec![Event::of_node(Reason::ConflictEnded, ended)]),
        ] {
            let now = start + Duration::from_secs(100 - seconds_ago);
            status.update(report(is_redirected, conflict), now);
            assert_eq!(events.observe(&status), expected, "{what}");
        }
    }
}
