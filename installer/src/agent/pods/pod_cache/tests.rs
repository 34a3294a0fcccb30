//! Which queries are answered, with what, and when.

use super::*;
use gybe_plugin::facts::wire;
use gybe_test_support::wait_until;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const LAG: Duration = Duration::from_millis(20);
const FOREVER: Duration = Duration::from_secs(600);

fn pod_ref(name: &str, uid: &str) -> PodRef {
    let query = format!(r#"{{"version": 1, "namespace": "shop", "name": "{name}", "uid": "{uid}"}}"#);
    wire::decode_request(query.as_bytes()).unwrap().pod
}

fn facts(name: &str, uid: &str) -> PodFacts {
    let (namespace, name, uid) = ("shop".to_owned(), name.to_owned(), uid.to_owned());
    PodFacts { namespace, name, uid, ..PodFacts::default() }
}

fn pod(name: &str, uid: &str) -> FactsResponse {
    FactsResponse::Pod(Box::new(facts(name, uid)))
}

fn limits(watch_lag: Duration, until: Instant) -> WaitLimits {
    WaitLimits { watch_lag, until }
}

fn in_a_minute() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn uid(cache: &PodCache, name: &str, uid: &str) -> Option<String> {
    match cache.wait_for(&pod_ref(name, uid), limits(LAG, Instant::now()), || {
        unreachable!("the deadline has passed")
    }) {
        FactsResponse::Pod(facts) => Some(facts.uid),
        other => {
            assert_eq!(other, timed_out());
            None
        }
    }
}

#[test]
fn f39_a_pod_with_another_uid_counts_as_unknown() {
    let cache = PodCache::default();
    cache.insert(facts("cart-0", "u1"), None);
    assert_eq!((uid(&cache, "cart-0", "u1"), uid(&cache, "cart-0", "u2")), (Some("u1".into()), None));
    cache.insert(facts("cart-0", "u2"), None);
    assert_eq!((uid(&cache, "cart-0", "u1"), uid(&cache, "cart-0", "u2")), (None, Some("u2".into())));
    // The watch delivers the end of the first after the start of the second.
    cache.remove(&facts("cart-0", "u1"));
    assert_eq!(uid(&cache, "cart-0", "u2"), Some("u2".into()));
    cache.remove(&facts("cart-0", "u2"));
    assert_eq!((uid(&cache, "cart-0", "u2"), cache.state().pods), (None, 0));
}

#[test]
fn f39_a_mirror_pod_is_found_by_the_hash_of_its_file() {
    let cache = PodCache::default();
    let mut mirror = facts("proxy-node-1", "api");
    mirror.annotations.insert("kubernetes.io/config.hash".into(), "hash".into());
    cache.insert(mirror, None);
    assert_eq!(uid(&cache, "proxy-node-1", "hash"), Some("api".into()));
    assert_eq!(uid(&cache, "proxy-node-1", "other"), None);
}

#[test]
fn the_latency_of_pods_that_are_new_after_the_first_list_is_measured_and_their_assignment_is_taken_once() {
    let cache = PodCache::default();
    let ago = |seconds| Some(SystemTime::now() - Duration::from_secs(seconds));
    let list = |pods: &[(&str, &str, u64)]| {
        let pod = |(name, uid, seconds): &(&str, &str, u64)| {
            (format!("shop/{name}"), CachedPod::new(facts(name, uid), ago(*seconds)))
        };
        cache.replace(pods.iter().map(pod).collect());
    };
    let count = || cache.state().latency.count;
    cache.insert_before_sync(&facts("cart-0", "u0"), ago(9));
    list(&[("cart-0", "u0", 9)]);
    assert_eq!(count(), 0, "it may have been assigned before the agent started");
    // The watch, and a later list, deliver new pods; a change of a pod is no new one.
    cache.insert(facts("cart-1", "u1"), ago(3));
    cache.insert(facts("cart-1", "u1"), ago(3));
    list(&[("cart-0", "u0", 9), ("cart-1", "u1", 9), ("cart-2", "u2", 20)]);
    let latency = cache.state().latency;
    assert_eq!((latency.count, latency.counts[4], latency.counts[7]), (2, 1, 1), "{latency:?}");
    // One that had a sandbox when it was received, and another pod of the same name.
    cache.insert(facts("cart-3", "u3"), None);
    cache.insert(facts("cart-3", "u3"), ago(1));
    assert_eq!((count(), cache.take_assigned("shop/cart-3")), (2, None));
    cache.insert(facts("cart-3", "u4"), ago(1));
    assert_eq!(count(), 3);
    for (pod, is_known) in
        [("shop/cart-0", true), ("shop/cart-0", false), ("shop/cart-3", true), ("shop/x", false)]
    {
        assert_eq!(cache.take_assigned(pod).is_some(), is_known, "{pod}");
    }
    cache.insert(facts("cart-0", "u0"), ago(9));
    assert_eq!(cache.take_assigned("shop/cart-0"), None, "a change after its first ADD");
    cache.insert(facts("cart-1", "u1"), None);
    assert_eq!(cache.take_assigned("shop/cart-1"), None, "it has had a sandbox that no ADD reported");
}

#[test]
fn a_complete_list_replaces_all_pods() {
    let cache = PodCache::default();
    cache.insert(facts("cart-0", "u1"), None);
    cache
        .replace(PodsByName::from([("shop/cart-1".to_owned(), CachedPod::new(facts("cart-1", "u2"), None))]));
    assert_eq!((uid(&cache, "cart-0", "u1"), uid(&cache, "cart-1", "u2")), (None, Some("u2".into())));
    assert!(cache.state().synced);
}

#[test]
fn a_waiting_query_is_answered_by_its_pod_and_by_no_other() {
    let cache = &PodCache::default();
    thread::scope(|scope| {
        let never = || unreachable!("the watch delivers the pod");
        let waiting = scope
            .spawn(move || cache.wait_for(&pod_ref("cart-0", "u2"), limits(FOREVER, in_a_minute()), never));
        for (name, uid) in [("cart-1", "u2"), ("cart-0", "u1"), ("cart-0", "u2")] {
            assert!(!waiting.is_finished());
            cache.insert(facts(name, uid), None);
        }
        assert_eq!(waiting.join().unwrap(), pod("cart-0", "u2"));
    });
    assert!(cache.lock().pending.is_empty());
}

#[test]
fn one_lookup_serves_all_queries_that_wait_for_a_pod() {
    let (cache, lookups) = (&PodCache::default(), &AtomicUsize::new(0));
    thread::scope(|scope| {
        let look_up = || {
            lookups.fetch_add(1, Ordering::SeqCst);
        };
        let wait = move || cache.wait_for(&pod_ref("cart-0", "u1"), limits(LAG, in_a_minute()), look_up);
        let waiting: Vec<_> = (0..20).map(|_| scope.spawn(wait)).collect();
        while cache
            .lock()
            .pending
            .values()
            .next()
            .is_none_or(|pending| pending.waiting < 20 || !pending.lookup_started)
        {
            thread::yield_now();
        }
        cache.record_lookup(&pod_ref("cart-0", "another"), FactsResponse::Unknown);
        cache.record_lookup(&pod_ref("cart-0", "u1"), pod("cart-0", "u1"));
        for one in waiting {
            assert_eq!(one.join().unwrap(), pod("cart-0", "u1"));
        }
    });
    assert_eq!(lookups.load(Ordering::SeqCst), 1);
    // Nothing is kept of the lookup: a later query starts another.
    assert!(cache.lock().pending.is_empty());
    assert_eq!(uid(cache, "cart-0", "u1"), None);
}

#[test]
fn a_pod_from_the_watch_ends_the_wait_for_its_lookup() {
    let cache = &PodCache::default();
    thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            cache.wait_for(&pod_ref("cart-0", "u1"), limits(Duration::ZERO, in_a_minute()), || {})
        });
        let has_started =
            || cache.lock().pending.values().next().is_some_and(|pending| pending.lookup_started);
        wait_until("the lookup", has_started);
        cache.insert(facts("cart-0", "u1"), None);
        assert_eq!(waiting.join().unwrap(), pod("cart-0", "u1"));
    });
}

#[test]
fn a_refused_request_does_not_count_as_an_event_of_the_watch() {
    let cache = PodCache::default();
    cache.insert(facts("cart-0", "u1"), None);
    let some = Duration::from_millis(20);
    wait_until("some silence", || cache.state().silent >= some);
    cache.failed(&ApiError::Refused {
        status: 401,
        reason: String::new(),
        sentence: "no".into(),
        retry_after: None,
    });
    assert!(cache.state().silent >= some);
    cache.opened();
    assert!(cache.state().silent < some);
}

#[test]
fn a_problem_is_new_once_and_gone_when_the_watch_is_open() {
    let cache = PodCache::default();
    let refused =
        ApiError::Refused { status: 403, reason: String::new(), sentence: "no".into(), retry_after: None };
    assert!(cache.failed(&refused) && !cache.failed(&refused));
    assert_eq!(cache.state().problem.unwrap().status, Some(403));
    assert!(cache.failed(&ApiError::Late(Duration::from_secs(1))));
    assert!(cache.opened() && !cache.opened());
    assert_eq!((cache.state().problem, cache.state().reconnects), (None, 1));
}
