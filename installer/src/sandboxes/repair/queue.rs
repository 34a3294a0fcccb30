//! Which sandbox is judged next, and when: those whose judgement took long wait behind all others, and one of them is
//! judged at a time, so that a namespace with many rules delays no other.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The judgements that run at the same time while none of them takes long.
const AT_ONCE: usize = 4;
/// The threads: half of them are for judgements that take long.
pub(super) const THREADS: usize = 2 * AT_ONCE;
/// A judgement that takes longer takes long. Most take milliseconds.
pub(super) const LONG: Duration = Duration::from_secs(1);

/// A sandbox that waits for its judgement.
#[derive(Debug)]
pub(super) struct JudgementJob<T> {
    pub(super) key: String,
    /// Whether its last judgement took long.
    pub(super) is_long: bool,
    pub(super) work: T,
}

#[derive(Debug)]
pub(super) struct JudgementQueue<T> {
    state: Mutex<QueueState<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct QueueState<T> {
    /// Those that take long are last.
    waiting: VecDeque<JudgementJob<T>>,
    running: BTreeMap<String, Running>,
    has_ended: bool,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    since: Instant,
    is_long: bool,
}

impl Running {
    fn takes_long(self, now: Instant) -> bool {
        self.is_long || now.duration_since(self.since) >= LONG
    }
}

impl<T> Default for JudgementQueue<T> {
    fn default() -> Self {
        let state = QueueState { waiting: VecDeque::new(), running: BTreeMap::new(), has_ended: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl<T> JudgementQueue<T> {
    /// Replaces the jobs that wait; one that runs is not added again.
    pub(super) fn replace(&self, jobs: impl IntoIterator<Item = JudgementJob<T>>) {
        let mut state = self.lock();
        let (last, first): (Vec<_>, Vec<_>) =
            jobs.into_iter().filter(|job| !state.running.contains_key(&job.key)).partition(|job| job.is_long);
        state.waiting = first.into_iter().chain(last).collect();
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for a job and starts it; none after the end.
    pub(super) fn start(&self) -> Option<JudgementJob<T>> {
        let mut state = self.lock();
        loop {
            if state.has_ended {
                return None;
            }
            if let Some(job) = state.start(Instant::now()) {
                return Some(job);
            }
            // A judgement that runs may take long meanwhile, and makes room for another one.
            state = self.changed.wait_timeout(state, LONG).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends a job that was started.
    pub(super) fn finish(&self, key: &str) {
        self.lock().running.remove(key);
        self.changed.notify_all();
    }

    /// Waits until only judgements are left that take long, for this time at most; reports whether none is left.
    pub(super) fn wait(&self, at_most: Duration) -> bool {
        let until = Instant::now() + at_most;
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            if now >= until || !state.has_short(now) {
                return state.waiting.is_empty() && state.running.is_empty();
            }
            let left = (until - now).min(LONG);
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends every wait. Jobs that run are finished, and no other is started.
    pub(super) fn end(&self) {
        self.lock().has_ended = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> QueueState<T> {
    fn start(&mut self, now: Instant) -> Option<JudgementJob<T>> {
        let long = self.running.values().filter(|it| it.takes_long(now)).count();
        let short = self.running.len() - long;
        let has_room = |job: &JudgementJob<T>| if job.is_long { long == 0 } else { short < AT_ONCE };
        let next = self.waiting.iter().position(has_room)?;
        let job = self.waiting.remove(next)?;
        self.running.insert(job.key.clone(), Running { since: now, is_long: job.is_long });
        Some(job)
    }

    fn has_short(&self, now: Instant) -> bool {
        self.waiting.iter().any(|job| !job.is_long) || self.running.values().any(|it| !it.takes_long(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(jobs: &[(&str, bool)]) -> JudgementQueue<()> {
        let queue = JudgementQueue::default();
        queue.replace(jobs.iter().map(|(key, is_long)| JudgementJob {
            key: (*key).to_owned(),
            is_long: *is_long,
            work: (),
        }));
        queue
    }

    fn started(queue: &JudgementQueue<()>, now: Instant) -> Vec<String> {
        let mut state = queue.lock();
        std::iter::from_fn(|| state.start(now).map(|job| job.key)).collect()
    }

    #[test]
    fn sandboxes_that_take_long_start_last_and_one_at_a_time() {
        let queue = queue(&[("slow-1", true), ("slow-2", true), ("a", false), ("b", false)]);
        let now = Instant::now();
        assert_eq!(started(&queue, now), ["a", "b", "slow-1"]);
        queue.finish("slow-1");
        assert_eq!(started(&queue, now), ["slow-2"]);
    }

    #[test]
    fn judgements_that_take_long_make_room_for_others() {
        let names: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        let jobs: Vec<_> = names.iter().map(|name| (name.as_str(), false)).collect();
        let (queue, now) = (queue(&jobs), Instant::now());
        assert_eq!(started(&queue, now), ["0", "1", "2", "3"]);
        assert!(started(&queue, now + LONG / 2).is_empty());
        assert_eq!(started(&queue, now + LONG), ["4", "5", "6", "7"]);
        assert!(queue.lock().has_short(now + LONG));
        queue.lock().waiting.clear();
        assert!(!queue.lock().has_short(now + LONG * 2), "all that is left takes long");
    }

    #[test]
    fn a_job_that_runs_is_not_added_again_and_none_starts_after_the_end() {
        let queue = queue(&[("a", false)]);
        assert_eq!(queue.start().map(|job| job.key).as_deref(), Some("a"));
        queue.replace(["a", "b"].map(|key| JudgementJob { key: key.to_owned(), is_long: false, work: () }));
        assert_eq!(started(&queue, Instant::now()), ["b"]);
        queue.finish("a");
        queue.finish("b");
        assert!(queue.wait(LONG));
        queue.replace([JudgementJob { key: "c".to_owned(), is_long: false, work: () }]);
        queue.end();
        assert!(queue.start().is_none() && !queue.wait(Duration::ZERO));
    }
}
