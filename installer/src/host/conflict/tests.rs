//! Tests the tracker with synthetic times: real ones would take minutes.

use super::*;
use crate::host::desired::{Placement, PlacementOrder, Program, Trial};
use crate::host::observe::{FileName, Hash};
use crate::host::problem::Problem;
use std::path::PathBuf;

fn undone() -> Plan {
    let network = FileName::new("n").unwrap();
    Plan { changes: vec![Change::WriteDropIn { network, bytes: Vec::new(), mode: 0o600 }], ..Plan::default() }
}

fn observe(tracker: &mut ConflictTracker, plan: &Plan, now: Instant) -> Option<Duration> {
    tracker.observe(plan, |_| false, now)
}

/// Undoes each write at once until one has to wait; returns the number of writes and the wait.
fn until_limited(tracker: &mut ConflictTracker, plan: &Plan, now: Instant) -> (usize, Duration) {
    for writes in 0.. {
        match observe(tracker, plan, now) {
            None => tracker.wrote(WriteOutcome::Complete, plan, now),
            Some(wait) => return (writes, wait),
        }
    }
    unreachable!("no write was limited")
}

#[test]
fn f05_in_a_conflict_the_entry_is_restored_at_once_and_at_most_twice_a_second_after_a_burst() {
    let (mut tracker, start) = (ConflictTracker::new(Directory::Conf), Instant::now());
    let after = |millis| start + Duration::from_millis(millis);
    assert_eq!(until_limited(&mut tracker, &undone(), start), (10, Duration::from_millis(500)));
    assert_eq!(observe(&mut tracker, &undone(), after(100)), Some(Duration::from_millis(400)));
    assert_eq!(until_limited(&mut tracker, &undone(), after(500)), (1, Duration::from_millis(500)));
    // One rewrite each second leaves room for one write each second.
    for second in 10..70 {
        assert_eq!(observe(&mut tracker, &undone(), after(1000 * second)), None, "{second}");
        tracker.wrote(WriteOutcome::Complete, &Plan::default(), after(1000 * second));
        assert!(tracker.is_conflict(), "{second}");
    }
}

#[test]
fn f05_after_a_rewrite_within_ten_seconds_of_a_repair_another_one_is_expected_for_ten_seconds() {
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    // When each rewrite is noticed and when it is repaired; the disk may be slow.
    for (rewrites, is_expected) in [
        (&[][..], false),
        (&[(0, 0)], false),
        (&[(0, 0), (1, 1)], true),
        (&[(0, 0), (9, 9)], true),
        (&[(0, 0), (10, 10)], false),
        (&[(0, 0), (1, 1), (2, 2), (3, 3)], true),
        (&[(0, 0), (1, 1), (30, 30)], false),
        (&[(0, 12), (13, 30)], true),
        (&[(0, 0), (1, 90)], true),
    ] {
        let mut tracker = ConflictTracker::new(Directory::Conf);
        tracker.wrote(WriteOutcome::Complete, &Plan::default(), start);
        let mut last = 0;
        for (noticed, repaired) in rewrites {
            for second in *noticed..=*repaired {
                observe(&mut tracker, &undone(), after(second));
            }
            tracker.wrote(WriteOutcome::Complete, &Plan::default(), after(*repaired));
            last = *repaired;
        }
        let expected_for = |seconds| tracker.expected_for(after(last + seconds));
        assert_eq!(expected_for(0), is_expected.then(|| Duration::from_secs(10)), "{rewrites:?}");
        assert_eq!(expected_for(9), is_expected.then(|| Duration::from_secs(1)), "{rewrites:?}");
        assert_eq!(expected_for(10), None, "{rewrites:?}");
    }
}

#[test]
fn f05_while_a_rewriters_last_rewrite_is_not_repaired_another_one_is_expected() {
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    for outcome in [WriteOutcome::Overtaken, WriteOutcome::Failed] {
        let mut tracker = ConflictTracker::new(Directory::Conf);
        tracker.wrote(WriteOutcome::Complete, &Plan::default(), start);
        for second in 0..2 {
            observe(&mut tracker, &undone(), after(second));
            tracker.wrote(WriteOutcome::Complete, &Plan::default(), after(second));
        }
        observe(&mut tracker, &undone(), after(2));
        tracker.wrote(outcome, &undone(), after(14));
        assert!(tracker.expected_for(after(60)).is_some(), "{outcome:?}");
    }
}

#[test]
fn f05_five_rewrites_a_minute_are_no_conflict_and_the_sixth_makes_it_one() {
    let (mut tracker, start) = (ConflictTracker::new(Directory::Programs), Instant::now());
    tracker.wrote(WriteOutcome::Complete, &Plan::default(), start);
    for n in 1..=5 {
        let now = start + Duration::from_secs(n);
        assert_eq!(observe(&mut tracker, &lost(), now), None);
        tracker.wrote(WriteOutcome::Complete, &Plan::default(), now);
    }
    let now = start + Duration::from_secs(6);
    assert_eq!(observe(&mut tracker, &lost(), now), Some(Duration::from_secs(4)));
    assert_eq!(
        observe(&mut tracker, &lost(), now),
        Some(Duration::from_secs(4)),
        "the same rewrite is not counted twice"
    );
    assert_eq!(tracker.rewritten_at.len(), 6);
    assert_eq!(observe(&mut tracker, &lost(), start + Duration::from_secs(10)), None);
    tracker.wrote(WriteOutcome::Complete, &Plan::default(), start + Duration::from_secs(10));
    assert_eq!(observe(&mut tracker, &Plan::default(), start + Duration::from_secs(90)), None);
    assert!(!tracker.is_conflict(), "a minute without a rewrite ends the conflict");
}

#[test]
fn a_change_of_the_desired_state_is_no_foreign_rewrite() {
    let (mut tracker, start) = (ConflictTracker::new(Directory::Conf), Instant::now());
    for n in 0..20 {
        tracker.wrote(WriteOutcome::Complete, &Plan::default(), start + Duration::from_secs(n));
        tracker.desired_state_changed();
        assert_eq!(observe(&mut tracker, &undone(), start + Duration::from_secs(n)), None);
    }
}

#[test]
fn f05_a_rewrite_between_our_write_and_the_next_observation_is_counted() {
    let (mut tracker, start) = (ConflictTracker::new(Directory::Programs), Instant::now());
    assert_eq!(until_limited(&mut tracker, &lost(), start), (6, Duration::from_secs(5)));
    assert_eq!(tracker.counts().rewrites, 6);
}

#[test]
fn a_write_of_ours_that_failed_is_no_foreign_rewrite() {
    let (mut tracker, start) = (ConflictTracker::new(Directory::Conf), Instant::now());
    for n in 0..20 {
        assert_eq!(observe(&mut tracker, &undone(), start + Duration::from_secs(n)), None);
        tracker.wrote(WriteOutcome::Failed, &undone(), start + Duration::from_secs(n));
    }
}

fn lost() -> Plan {
    let (name, source) = (FileName::new("gybe-cni").unwrap(), PathBuf::new());
    let hash = Hash::of(b"");
    let (trial, place, need) = (Trial::CniVersion, Placement::Always, PlacementOrder::BeforeEntry);
    let program = Program { name, source, hash, trial, place, need };
    Plan { changes: vec![Change::PlaceProgram { program }], ..Plan::default() }
}

#[test]
fn f05_each_directory_has_a_tracker_of_its_own() {
    let start = Instant::now();
    for (directory, own, other) in
        [(Directory::Conf, undone(), lost()), (Directory::Programs, lost(), undone())]
    {
        let mut tracker = ConflictTracker::new(directory);
        tracker.wrote(WriteOutcome::Complete, &other, start);
        for n in 1..=20 {
            assert_eq!(observe(&mut tracker, &other, start), None, "{directory} {n}");
        }
        for _ in 1..=5 {
            assert_eq!(observe(&mut tracker, &own, start), None);
            tracker.wrote(WriteOutcome::Complete, &other, start);
        }
        observe(&mut tracker, &own, start);
        assert!(tracker.is_conflict(), "{directory}");
    }
}

#[test]
fn only_a_write_that_restores_an_undone_change_counts_as_a_repair() {
    let (mut tracker, start) = (ConflictTracker::new(Directory::Conf), Instant::now());
    let counts = |tracker: &ConflictTracker| {
        (tracker.counts().rewrites, tracker.counts().repairs, tracker.counts().is_undone)
    };
    observe(&mut tracker, &undone(), start);
    tracker.wrote(WriteOutcome::Complete, &Plan::default(), start);
    assert_eq!(counts(&tracker), (0, 0, false), "the first write");
    tracker.desired_state_changed();
    observe(&mut tracker, &undone(), start);
    tracker.wrote(WriteOutcome::Complete, &Plan::default(), start);
    assert_eq!(counts(&tracker), (0, 0, false), "another desired state");
    observe(&mut tracker, &undone(), start);
    tracker.wrote(WriteOutcome::Failed, &undone(), start);
    assert_eq!(counts(&tracker), (1, 0, true), "a full disk");
    observe(&mut tracker, &undone(), start);
    tracker.wrote(WriteOutcome::Overtaken, &undone(), start);
    assert_eq!(counts(&tracker), (2, 0, true), "the other program wrote before us");
    observe(&mut tracker, &undone(), start);
    tracker.wrote(WriteOutcome::Complete, &undone(), start);
    assert_eq!(counts(&tracker), (3, 1, true), "the other program wrote before our next observation");
    tracker.desired_state_changed();
    observe(&mut tracker, &undone(), start);
    tracker.wrote(WriteOutcome::Complete, &Plan::default(), start);
    assert_eq!(counts(&tracker), (3, 2, false), "a repair counts although the desired state changed");
    observe(&mut tracker, &undone(), start);
    observe(&mut tracker, &Plan::default(), start);
    assert_eq!(counts(&tracker), (4, 2, false), "the other program restored it");
}

#[test]
fn f05_a_file_that_is_removed_and_comes_back_counts_as_one_rewrite() {
    let (mut tracker, start) = (ConflictTracker::new(Directory::Conf), Instant::now());
    let waits = Plan { problems: vec![Problem::Waiting], ..Plan::default() };
    observe(&mut tracker, &waits, start);
    observe(&mut tracker, &undone(), start);
    tracker.wrote(WriteOutcome::Complete, &Plan::default(), start);
    assert_eq!(tracker.counts().rewrites, 0, "before the first write the agent only waited for the file");
    for n in 1..=6 {
        observe(&mut tracker, &waits, start);
        observe(&mut tracker, &undone(), start);
        tracker.wrote(WriteOutcome::Complete, &Plan::default(), start);
        assert_eq!((tracker.counts().rewrites, tracker.counts().repairs), (n, n));
    }
    assert!(tracker.is_conflict());
}

#[test]
fn f05_another_problem_in_the_directory_does_not_hide_a_conflict() {
    let (mut tracker, start) = (ConflictTracker::new(Directory::Conf), Instant::now());
    let file = || FileName::new("10.conflist").unwrap();
    let preempted = || vec![Problem::Preempted { file: file(), by: FileName::new("05.conflist").unwrap() }];
    let (well, rewritten) =
        (Plan { problems: preempted(), ..Plan::default() }, Plan { problems: preempted(), ..undone() });
    observe(&mut tracker, &rewritten, start);
    tracker.wrote(WriteOutcome::Complete, &well, start);
    for _ in 1..=5 {
        assert_eq!(observe(&mut tracker, &rewritten, start), None);
        tracker.wrote(WriteOutcome::Complete, &well, start);
    }
    observe(&mut tracker, &rewritten, start);
    assert_eq!((tracker.is_conflict(), tracker.counts().repairs), (true, 5));
}
