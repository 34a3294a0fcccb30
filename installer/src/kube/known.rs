//! What is known of this node's pods, and how well: filled by the watch, read by who asks. When the API
//! server is away it stays as it was.

use super::error::ApiError;
use gybe_plugin::args::PodRef;
use gybe_plugin::facts::means;
use gybe_plugin::pod::PodFacts;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How the watch is, for health and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchState {
    /// Whether the list was whole at least once: from then on it answers, however old it is.
    pub synced: bool,
    /// How long ago the API server last gave a sign of life: an answer, an event, a bookmark. A server
    /// sends a bookmark about every minute; before the first sign it counts from the start.
    pub silent: Duration,
    /// What stands in the way of the watch now; none while it is open.
    pub trouble: Option<Trouble>,
    /// How many pods are known.
    pub pods: usize,
    /// How often the watch was opened again.
    pub reconnects: u64,
}

/// What stands in the way of the watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// HTTP's status code, where the server answered.
    pub status: Option<u16>,
    /// In words; never a credential.
    pub sentence: String,
}

/// By `<namespace>/<name>`, of which there is only one at any time.
pub(super) type Pods = BTreeMap<String, PodFacts>;

/// What is known, shared between the watch and who asks.
#[derive(Debug)]
pub(super) struct Known {
    now: Mutex<Now>,
    changed: Condvar,
}

#[derive(Debug)]
struct Now {
    pods: Pods,
    synced: bool,
    heard: Instant,
    trouble: Option<Trouble>,
    openings: u64,
}

impl Default for Known {
    fn default() -> Self {
        let now = Now { pods: Pods::new(), synced: false, heard: Instant::now(), trouble: None, openings: 0 };
        Self { now: Mutex::new(now), changed: Condvar::new() }
    }
}

pub(super) fn key(facts: &PodFacts) -> String {
    format!("{}/{}", facts.namespace, facts.name)
}

impl Known {
    /// The pod that is meant, waited for until then. One of that name with another uid is an earlier
    /// life, or a later one, and as good as none.
    pub(super) fn wait_for(&self, pod: &PodRef, until: Instant) -> Option<PodFacts> {
        let name = pod.to_string();
        let found = |now: &Now| now.pods.get(&name).filter(|facts| means(facts, pod)).cloned();
        let mut now = self.lock();
        loop {
            if let Some(facts) = found(&now) {
                return Some(facts);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            now = self.changed.wait_timeout(now, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The list is whole: nothing else is there.
    pub(super) fn replace(&self, pods: Pods) {
        self.change(|now| {
            now.pods = pods;
            now.synced = true;
        });
    }

    /// A pod is there, or another than before.
    pub(super) fn hold(&self, facts: PodFacts) {
        self.change(|now| drop(now.pods.insert(key(&facts), facts)));
    }

    /// A pod is gone. A later life of its name is not.
    pub(super) fn forget(&self, facts: &PodFacts) {
        self.change(|now| {
            let name = key(facts);
            if now.pods.get(&name).is_some_and(|known| known.uid == facts.uid) {
                now.pods.remove(&name);
            }
        });
    }

    /// The server gave a sign of life.
    pub(super) fn heard(&self) {
        self.lock().heard = Instant::now();
    }

    /// The watch is open. Says whether it had not been well.
    pub(super) fn open(&self) -> bool {
        let mut now = self.lock();
        now.openings = now.openings.saturating_add(1);
        now.heard = Instant::now();
        now.trouble.take().is_some()
    }

    /// The watch is not open. Says whether that is news.
    pub(super) fn lost(&self, fault: &ApiError) -> bool {
        let trouble = Trouble { status: fault.status(), sentence: fault.to_string() };
        let mut now = self.lock();
        if fault.status().is_some() {
            now.heard = Instant::now();
        }
        let news = now.trouble.as_ref() != Some(&trouble);
        now.trouble = Some(trouble);
        news
    }

    pub(super) fn state(&self) -> WatchState {
        let now = self.lock();
        WatchState {
            synced: now.synced,
            silent: now.heard.elapsed(),
            trouble: now.trouble.clone(),
            pods: now.pods.len(),
            reconnects: now.openings.saturating_sub(1),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Now)) {
        let mut now = self.lock();
        change(&mut now);
        now.heard = Instant::now();
        drop(now);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_plugin::facts::wire;
    use std::thread;

    fn asked(name: &str, uid: &str) -> PodRef {
        let question = format!(r#"{{"version": 1, "namespace": "shop", "name": "{name}", "uid": "{uid}"}}"#);
        wire::asked(question.as_bytes()).unwrap()
    }

    fn facts(name: &str, uid: &str) -> PodFacts {
        let (namespace, name, uid) = ("shop".to_owned(), name.to_owned(), uid.to_owned());
        PodFacts { namespace, name, uid, ..PodFacts::default() }
    }

    fn uid(known: &Known, name: &str, uid: &str) -> Option<String> {
        known.wait_for(&asked(name, uid), Instant::now()).map(|facts| facts.uid)
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
        known.replace(Pods::from([("shop/cart-1".to_owned(), facts("cart-1", "u2"))]));
        assert_eq!((uid(&known, "cart-0", "u1"), uid(&known, "cart-1", "u2")), (None, Some("u2".into())));
        assert!(known.state().synced);
    }

    #[test]
    fn who_waits_is_woken_by_its_pod_and_by_no_other() {
        let known = &Known::default();
        thread::scope(|scope| {
            let far = Instant::now() + Duration::from_secs(60);
            let waiting = scope.spawn(move || known.wait_for(&asked("cart-0", "u2"), far));
            for (name, uid) in [("cart-1", "u2"), ("cart-0", "u1"), ("cart-0", "u2")] {
                assert!(!waiting.is_finished());
                known.hold(facts(name, uid));
            }
            assert_eq!(waiting.join().unwrap().map(|facts| facts.uid), Some("u2".into()));
        });
    }

    #[test]
    fn trouble_is_news_once_and_gone_when_the_watch_is_open() {
        let known = Known::default();
        let refused = ApiError::Refused { status: 403, sentence: "no".into(), retry_after: None };
        assert!(known.lost(&refused) && !known.lost(&refused));
        assert_eq!(known.state().trouble.unwrap().status, Some(403));
        assert!(known.lost(&ApiError::Late(Duration::from_secs(1))));
        assert!(known.open() && !known.open());
        assert_eq!((known.state().trouble, known.state().reconnects), (None, 1));
    }
}
