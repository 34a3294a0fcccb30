//! Times made up, for what would take minutes to wait for.

use super::*;
use crate::install::change::Problem;
use crate::install::seen::{FileName, Hash};
use crate::install::wanted::{Place, Program, Trial};
use std::path::PathBuf;

fn undone() -> Plan {
    let network = FileName::new("n").unwrap();
    Plan { changes: vec![Change::DropIn { network, bytes: Vec::new(), mode: 0o600 }], ..Plan::default() }
}

fn judge(pace: &mut Pace, plan: &Plan, now: Instant) -> Go {
    pace.judge(plan, |_| false, now)
}

#[test]
fn f05_five_rewrites_a_minute_are_healed_at_once_and_the_sixth_is_a_fight() {
    let (mut pace, start) = (Pace::of(Directory::Conf), Instant::now());
    pace.wrote(Went::Well, &Plan::default(), start);
    for n in 1..=5 {
        let now = start + Duration::from_secs(n);
        assert_eq!(judge(&mut pace, &undone(), now), Go::Now);
        pace.wrote(Went::Well, &Plan::default(), now);
    }
    let now = start + Duration::from_secs(6);
    assert_eq!(judge(&mut pace, &undone(), now), Go::Later(Duration::from_secs(4)));
    assert_eq!(
        judge(&mut pace, &undone(), now),
        Go::Later(Duration::from_secs(4)),
        "seen twice is not written twice"
    );
    assert_eq!(pace.undone(), 6);
    assert_eq!(judge(&mut pace, &undone(), start + Duration::from_secs(10)), Go::Now);
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
    let (mut pace, start) = (Pace::of(Directory::Conf), Instant::now());
    for n in 1..=6 {
        assert_eq!(judge(&mut pace, &undone(), start), Go::Now, "{n}");
        pace.wrote(Went::Well, &undone(), start);
    }
    assert_eq!((judge(&mut pace, &undone(), start), pace.tally().undone), (Go::Later(SLOW), 6));
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
    let program = Program { name, source, hash, trial: Trial::CniVersion, place: Place::Always };
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
        assert_eq!((judge(&mut pace, &mine, start), pace.is_fight()), (Go::Later(SLOW), true), "{directory}");
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
    assert_eq!((judge(&mut pace, &rewritten, start), pace.tally().healed), (Go::Later(SLOW), 5));
}
