//! Who is told what, and when.

use super::*;
use gybe_plugin::facts::wire;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const LAG: Duration = Duration::from_millis(20);
const FOREVER: Duration = Duration::from_secs(600);

fn asked(name: &str, uid: &str) -> PodRef {
    let question = format!(r#"{{"version": 1, "namespace": "shop", "name": "{name}", "uid": "{uid}"}}"#);
    wire::decode_request(question.as_bytes()).unwrap().pod
}

fn facts(name: &str, uid: &str) -> PodFacts {
    let (namespace, name, uid) = ("shop".to_owned(), name.to_owned(), uid.to_owned());
    PodFacts { namespace, name, uid, ..PodFacts::default() }
}

fn pod(name: &str, uid: &str) -> FactsResponse {
    FactsResponse::Pod(Box::new(facts(name, uid)))
}

fn patience(lag: Duration, until: Instant) -> Patience {
    Patience { lag, until }
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn uid(known: &Known, name: &str, uid: &str) -> Option<String> {
    match known.learn(&asked(name, uid), patience(LAG, Instant::now()), || unreachable!("it is too late")) {
        FactsResponse::Pod(facts) => Some(facts.uid),
        other => {
            assert_eq!(other, late());
            None
        }
    }
}

#[test]
fn f39_a_pod_of_an_earlier_or_a_later_life_is_as_good_as_none() {
    let known = Known::default();
    known.hold(facts("cart-0", "u1"));
    assert_eq!((uid(&known, "cart-0", "u1"), uid(&known, "cart-0", "u2")), (Some("u1".into()), None));
    known.hold(facts("cart-0", "u2"));
    assert_eq!((uid(&known, "cart-0", "u1"), uid(&known, "cart-0", "u2")), (None, Some("u2".into())));
    // The end of the first is told after the second's beginning.
    known.forget(&facts("cart-0", "u1"));
    assert_eq!(uid(&known, "cart-0", "u2"), Some("u2".into()));
    known.forget(&facts("cart-0", "u2"));
    assert_eq!((uid(&known, "cart-0", "u2"), known.state().pods), (None, 0));
}

#[test]
fn f39_a_mirror_is_found_by_the_hash_of_its_file() {
    let known = Known::default();
    let mut mirror = facts("proxy-node-1", "api");
    mirror.annotations.insert("kubernetes.io/config.hash".into(), "hash".into());
    known.hold(mirror);
    assert_eq!(uid(&known, "proxy-node-1", "hash"), Some("api".into()));
    assert_eq!(uid(&known, "proxy-node-1", "other"), None);
}

#[test]
fn a_list_is_the_whole_truth() {
    let known = Known::default();
    known.hold(facts("cart-0", "u1"));
    known.replace(Pods::from([("shop/cart-1".to_owned(), Held::of(facts("cart-1", "u2")))]));
    assert_eq!((uid(&known, "cart-0", "u1"), uid(&known, "cart-1", "u2")), (None, Some("u2".into())));
    assert!(known.state().synced);
}

#[test]
fn who_waits_is_woken_by_its_pod_and_by_no_other() {
    let known = &Known::default();
    thread::scope(|scope| {
        let never = || unreachable!("the watch has told");
        let waiting =
            scope.spawn(move || known.learn(&asked("cart-0", "u2"), patience(FOREVER, far()), never));
        for (name, uid) in [("cart-1", "u2"), ("cart-0", "u1"), ("cart-0", "u2")] {
            assert!(!waiting.is_finished());
            known.hold(facts(name, uid));
        }
        assert_eq!(waiting.join().unwrap(), pod("cart-0", "u2"));
    });
    assert!(known.lock().awaited.is_empty());
}

#[test]
fn a_pod_is_asked_for_once_however_many_wait_for_it() {
    let (known, asks) = (&Known::default(), &AtomicUsize::new(0));
    thread::scope(|scope| {
        let ask = || {
            asks.fetch_add(1, Ordering::SeqCst);
        };
        let wait = move || known.learn(&asked("cart-0", "u1"), patience(LAG, far()), ask);
        let waiting: Vec<_> = (0..20).map(|_| scope.spawn(wait)).collect();
        while known
            .lock()
            .awaited
            .values()
            .next()
            .is_none_or(|awaited| awaited.waiting < 20 || !awaited.asked)
        {
            thread::yield_now();
        }
        known.answer(&asked("cart-0", "another"), FactsResponse::Unknown);
        known.answer(&asked("cart-0", "u1"), pod("cart-0", "u1"));
        for one in waiting {
            assert_eq!(one.join().unwrap(), pod("cart-0", "u1"));
        }
    });
    assert_eq!(asks.load(Ordering::SeqCst), 1);
    // Nothing is left of it: who comes later asks anew.
    assert!(known.lock().awaited.is_empty());
    assert_eq!(uid(known, "cart-0", "u1"), None);
}

#[test]
fn the_watch_may_still_be_faster_than_the_answer() {
    let known = &Known::default();
    thread::scope(|scope| {
        let waiting =
            scope.spawn(move || known.learn(&asked("cart-0", "u1"), patience(Duration::ZERO, far()), || {}));
        while known.lock().awaited.values().next().is_none_or(|awaited| !awaited.asked) {
            thread::yield_now();
        }
        known.hold(facts("cart-0", "u1"));
        assert_eq!(waiting.join().unwrap(), pod("cart-0", "u1"));
    });
}

#[test]
fn a_refusal_is_no_news_of_pods() {
    let known = Known::default();
    known.hold(facts("cart-0", "u1"));
    let some = Duration::from_millis(20);
    while known.state().silent < some {
        thread::sleep(Duration::from_millis(1));
    }
    known.lost(&ApiError::Refused {
        status: 401,
        reason: String::new(),
        sentence: "no".into(),
        retry_after: None,
    });
    assert!(known.state().silent >= some);
    known.open();
    assert!(known.state().silent < some);
}

#[test]
fn trouble_is_news_once_and_gone_when_the_watch_is_open() {
    let known = Known::default();
    let refused =
        ApiError::Refused { status: 403, reason: String::new(), sentence: "no".into(), retry_after: None };
    assert!(known.lost(&refused) && !known.lost(&refused));
    assert_eq!(known.state().trouble.unwrap().status, Some(403));
    assert!(known.lost(&ApiError::Late(Duration::from_secs(1))));
    assert!(known.open() && !known.open());
    assert_eq!((known.state().trouble, known.state().reconnects), (None, 1));
}
