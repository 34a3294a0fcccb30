//! Times made up, for what would take minutes to wait for.

use super::*;
use crate::host::install::change::Problem;
use crate::host::install::seen::{FileName, Hash};
use crate::host::install::wanted::{Need, Place, Program, Trial};
use std::path::PathBuf;

fn undone() -> Plan {
    let network = FileName::new("n").unwrap();
    Plan { changes: vec![Change::DropIn { network, bytes: Vec::new(), mode: 0o600 }], ..Plan::default() }
}

fn judge(pace: &mut Pace, plan: &Plan, now: Instant) -> Go {
    pace.judge(plan, |_| false, now)
}

/// Each write is undone at once, until one has to wait; the number of writes.
fn until_limited(pace: &mut Pace, plan: &Plan, now: Instant) -> (usize, Duration) {
    for writes in 0.. {
        match judge(pace, plan, now) {
            Go::Now => pace.wrote(Went::Well, plan, now),
            Go::Later(wait) => return (writes, wait),
        }
    }
    unreachable!("nothing limits it")
}

#[test]
fn f05_in_a_conflict_the_entry_is_restored_at_once_and_at_most_twice_a_second_after_a_burst() {
    let (mut pace, start) = (Pace::of(Directory::Conf), Instant::now());
    let after = |millis| start + Duration::from_millis(millis);
    assert_eq!(until_limited(&mut pace, &undone(), start), (10, Duration::from_millis(500)));
    assert_eq!(judge(&mut pace, &undone(), after(100)), Go::Later(Duration::from_millis(400)));
    assert_eq!(until_limited(&mut pace, &undone(), after(500)), (1, Duration::from_millis(500)));
    // One rewrite each second leaves room for one write each second.
    for second in 10..70 {
        assert_eq!(judge(&mut pace, &undone(), after(1000 * second)), Go::Now, "{second}");
        pace.wrote(Went::Well, &Plan::default(), after(1000 * second));
        assert!(pace.is_fight(), "{second}");
    }
}

#[test]
fn f05_five_rewrites_a_minute_are_no_conflict_and_the_sixth_makes_it_one() {
    let (mut pace, start) = (Pace::of(Directory::Programs), Instant::now());
    pace.wrote(Went::Well, &Plan::default(), start);
    for n in 1..=5 {
        let now = start + Duration::from_secs(n);
        assert_eq!(judge(&mut pace, &lost(), now), Go::Now);
        pace.wrote(Went::Well, &Plan::default(), now);
    }
    let now = start + Duration::from_secs(6);
    assert_eq!(judge(&mut pace, &lost(), now), Go::Later(Duration::from_secs(4)));
    assert_eq!(
        judge(&mut pace, &lost(), now),
        Go::Later(Duration::from_secs(4)),
        "seen twice is not written twice"
    );
    assert_eq!(pace.undone(), 6);
    assert_eq!(judge(&mut pace, &lost(), start + Duration::from_secs(10)), Go::Now);
    pace.wrote(Went::Well, &Plan::default(), start + Duration::from_secs(10));
    assert_eq!(judge(&mut pace, &Plan::default(), start + Duration::from_secs(90)), Go::Now);
    assert!(!pace.is_fight(), "a quiet minute is peace");
}

#[test]
fn what_is_wanted_anew_is_nobodys_rewrite() {
    let (mut pace, start) = (Pace::of(Directory::Conf), Instant::now());
    for n in 0..20 {
        pace.wrote(Went::Well, &Plan::default(), start + Duration::from_secs(n));
        pace.begin_anew();
        assert_eq!(judge(&mut pace, &undone(), start + Duration::from_secs(n)), Go::Now);
    }
}

#[test]
fn f05_who_undoes_it_before_we_look_again_is_seen_too() {
    let (mut pace, start) = (Pace::of(Directory::Programs), Instant::now());
    assert_eq!(until_limited(&mut pace, &lost(), start), (6, Duration::from_secs(5)));
    assert_eq!(pace.tally().undone, 6);
}

#[test]
fn what_we_could_not_do_is_nobodys_rewrite() {
    let (mut pace, start) = (Pace::of(Directory::Conf), Instant::now());
    for n in 0..20 {
        assert_eq!(judge(&mut pace, &undone(), start + Duration::from_secs(n)), Go::Now);
        pace.wrote(Went::Badly, &undone(), start + Duration::from_secs(n));
    }
}

fn lost() -> Plan {
    let (name, source) = (FileName::new("gybe-cni").unwrap(), PathBuf::new());
    let hash = Hash::of(b"");
    let (trial, place, need) = (Trial::CniVersion, Place::Always, Need::BeforeEntry);
    let program = Program { name, source, hash, trial, place, need };
    Plan { changes: vec![Change::Place { program }], ..Plan::default() }
}

#[test]
fn f05_each_directory_has_a_pace_of_its_own() {
    let start = Instant::now();
    for (directory, mine, others) in
        [(Directory::Conf, undone(), lost()), (Directory::Programs, lost(), undone())]
    {
        let mut pace = Pace::of(directory);
        pace.wrote(Went::Well, &others, start);
        for n in 1..=20 {
            assert_eq!(judge(&mut pace, &others, start), Go::Now, "{directory} {n}");
        }
        for _ in 1..=5 {
            assert_eq!(judge(&mut pace, &mine, start), Go::Now);
            pace.wrote(Went::Well, &others, start);
        }
        judge(&mut pace, &mine, start);
        assert!(pace.is_fight(), "{directory}");
    }
}

#[test]
fn a_heal_is_what_puts_back_what_somebody_undid_and_nothing_else() {
    let (mut pace, start) = (Pace::of(Directory::Conf), Instant::now());
    let counts = |pace: &Pace| (pace.tally().undone, pace.tally().healed, pace.tally().is_undone);
    judge(&mut pace, &undone(), start);
    pace.wrote(Went::Well, &Plan::default(), start);
    assert_eq!(counts(&pace), (0, 0, false), "to come in");
    pace.begin_anew();
    judge(&mut pace, &undone(), start);
    pace.wrote(Went::Well, &Plan::default(), start);
    assert_eq!(counts(&pace), (0, 0, false), "another wish");
    judge(&mut pace, &undone(), start);
    pace.wrote(Went::Badly, &undone(), start);
    assert_eq!(counts(&pace), (1, 0, true), "a full disk");
    judge(&mut pace, &undone(), start);
    pace.wrote(Went::Overtaken, &undone(), start);
    assert_eq!(counts(&pace), (2, 0, true), "they were faster than our write");
    judge(&mut pace, &undone(), start);
    pace.wrote(Went::Well, &undone(), start);
    assert_eq!(counts(&pace), (3, 1, true), "they were faster than our look");
    pace.begin_anew();
    judge(&mut pace, &undone(), start);
    pace.wrote(Went::Well, &Plan::default(), start);
    assert_eq!(counts(&pace), (3, 2, false), "what was undone is put back, whatever else is new");
    judge(&mut pace, &undone(), start);
    judge(&mut pace, &Plan::default(), start);
    assert_eq!(counts(&pace), (4, 2, false), "they put it back themselves");
}

#[test]
fn f05_a_file_that_goes_and_comes_again_was_undone_once() {
    let (mut pace, start) = (Pace::of(Directory::Conf), Instant::now());
    let waits = Plan { problems: vec![Problem::Waiting], ..Plan::default() };
    judge(&mut pace, &waits, start);
    judge(&mut pace, &undone(), start);
    pace.wrote(Went::Well, &Plan::default(), start);
    assert_eq!(pace.tally().undone, 0, "the first time it was waited for");
    for n in 1..=6 {
        judge(&mut pace, &waits, start);
        judge(&mut pace, &undone(), start);
        pace.wrote(Went::Well, &Plan::default(), start);
        assert_eq!((pace.tally().undone, pace.tally().healed), (n, n));
    }
    assert!(pace.is_fight());
}

#[test]
fn f05_what_stands_in_the_way_beside_it_hides_no_fight() {
    let (mut pace, start) = (Pace::of(Directory::Conf), Instant::now());
    let file = || FileName::new("10.conflist").unwrap();
    let beside = || vec![Problem::Preempted { file: file(), by: FileName::new("05.conflist").unwrap() }];
    let (well, rewritten) =
        (Plan { problems: beside(), ..Plan::default() }, Plan { problems: beside(), ..undone() });
    judge(&mut pace, &rewritten, start);
    pace.wrote(Went::Well, &well, start);
    for _ in 1..=5 {
        assert_eq!(judge(&mut pace, &rewritten, start), Go::Now);
        pace.wrote(Went::Well, &well, start);
    }
    judge(&mut pace, &rewritten, start);
    assert_eq!((pace.is_fight(), pace.tally().healed), (true, 5));
}
