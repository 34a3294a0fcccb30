//! The pods whose annotation `ambient.istio.io/redirection` has to be written or removed, and when. It has each pod
//! that has got into the mesh, and pods that have left it until their annotation is removed.

use crate::retry::Backoff;
use gybe_plugin::facts::ambient::{AmbientPod, PodUid};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The delay after the first failed attempt, and the longest one. A pod is reached as plain text meanwhile.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// What the annotation of a pod should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Redirection {
    /// `enabled`; an earlier agent may have written it.
    Enabled,
    /// `enabled`, after this agent has removed it: what the watch shows may be older.
    EnabledAgain,
    /// No annotation.
    Absent,
}

/// An annotation that has to be written or removed.
#[derive(Debug, Clone)]
pub(crate) struct RedirectionWrite {
    pub(crate) pod: Arc<AmbientPod>,
    pub(crate) desired: Redirection,
}

#[derive(Debug, Default)]
pub(super) struct Redirections(BTreeMap<PodUid, Pending>);

#[derive(Debug)]
struct Pending {
    write: RedirectionWrite,
    /// None when it is done.
    attempts: Option<Attempts>,
}

#[derive(Debug)]
struct Attempts {
    backoff: Backoff,
    next: Instant,
    /// When the last attempt failed, and why.
    failed: Option<(Instant, String)>,
}

impl Pending {
    fn new(pod: &Arc<AmbientPod>, desired: Redirection) -> Self {
        let attempts = Attempts { backoff: Backoff::new(FIRST_RETRY), next: Instant::now(), failed: None };
        let write = RedirectionWrite { pod: Arc::clone(pod), desired };
        Self { write, attempts: Some(attempts) }
    }
}

impl Redirections {
    /// Records that a pod is in the mesh.
    pub(super) fn enroll(&mut self, pod: &Arc<AmbientPod>) {
        let desired = match self.0.get(&pod.uid).map(|pending| pending.write.desired) {
            Some(Redirection::Enabled | Redirection::EnabledAgain) => return,
            Some(Redirection::Absent) => Redirection::EnabledAgain,
            None => Redirection::Enabled,
        };
        self.0.insert(pod.uid.clone(), Pending::new(pod, desired));
    }

    /// Records that a pod leaves the mesh.
    pub(super) fn leave(&mut self, pod: &Arc<AmbientPod>) {
        self.0.insert(pod.uid.clone(), Pending::new(pod, Redirection::Absent));
    }

    /// Forgets the other pods, except those whose annotation is still to be removed.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&PodUid) -> bool) {
        self.0.retain(|uid, Pending { write, attempts }| {
            is_kept(uid) || (write.desired == Redirection::Absent && attempts.is_some())
        });
    }

    /// Returns what is to be written next, and from when on. A pod that is not in the mesh at present gets no annotation.
    pub(super) fn next(&self, is_enrolled: impl Fn(&PodUid) -> bool) -> Option<(Instant, RedirectionWrite)> {
        let due = self.0.iter().filter_map(|(uid, Pending { write, attempts })| {
            let is_due = write.desired == Redirection::Absent || is_enrolled(uid);
            attempts.as_ref().filter(|_| is_due).map(|attempts| (attempts.next, write))
        });
        due.min_by_key(|(next, _)| *next).map(|(next, write)| (next, write.clone()))
    }

    /// Records the result of a write, unless the pod has got into the mesh or left it meanwhile.
    pub(super) fn finish(
        &mut self,
        write: &RedirectionWrite,
        result: Result<(), (String, Option<Duration>)>,
    ) {
        let pending = self.0.get_mut(&write.pod.uid).filter(|it| it.write.desired == write.desired);
        let Some(Pending { attempts, .. }) = pending else { return };
        match (result, attempts.as_mut()) {
            (Ok(()), _) | (_, None) => *attempts = None,
            (Err((why, requested)), Some(attempts)) => {
                let now = Instant::now();
                attempts.next = now + attempts.backoff.failed_at_server(LAST_RETRY, requested);
                attempts.failed = Some((now, why));
            }
        }
    }

    /// Returns the number of pods whose last attempt has failed, and why the last one of all did.
    pub(super) fn failing(&self) -> Option<(usize, String)> {
        let attempts = self.0.values().filter_map(|pending| pending.attempts.as_ref());
        let failed = attempts.filter_map(|attempts| attempts.failed.as_ref());
        let (_, why) = failed.clone().max_by_key(|(at, _)| *at)?;
        Some((failed.count(), why.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> Arc<AmbientPod> {
        Arc::new(AmbientPod::parse(uid, "shop", uid, "default").unwrap())
    }

    fn next(redirections: &Redirections) -> Option<(String, Redirection)> {
        let (_, RedirectionWrite { pod, desired }) = redirections.next(|_| true)?;
        Some((pod.uid.as_str().to_owned(), desired))
    }

    #[test]
    fn each_annotation_is_written_once_and_again_after_it_was_removed() {
        let mut all = Redirections::default();
        let mut write = |expected: Redirection, change: fn(&mut Redirections, &Arc<AmbientPod>)| {
            change(&mut all, &pod("u-1"));
            assert_eq!(next(&all), Some(("u-1".to_owned(), expected)));
            let (_, write) = all.next(|_| true).unwrap();
            all.finish(&write, Ok(()));
            assert_eq!(next(&all), None);
        };
        write(Redirection::Enabled, Redirections::enroll);
        write(Redirection::Absent, Redirections::leave);
        write(Redirection::EnabledAgain, Redirections::enroll);
        all.enroll(&pod("u-1"));
        assert_eq!(next(&all), None, "it is written");
    }

    #[test]
    fn a_failed_write_comes_after_the_others_and_the_result_of_an_older_one_is_ignored() {
        let mut all = Redirections::default();
        all.enroll(&pod("u-1"));
        let (_, first) = all.next(|_| true).unwrap();
        all.finish(&first, Err(("403".to_owned(), None)));
        all.enroll(&pod("u-2"));
        assert_eq!(next(&all), Some(("u-2".to_owned(), Redirection::Enabled)));
        let (at, second) = all.next(|uid| uid.as_str() == "u-1").unwrap();
        assert!(at > Instant::now() && second.pod.uid == first.pod.uid, "{at:?}");
        assert_eq!(all.failing(), Some((1, "403".to_owned())));
        all.leave(&pod("u-1"));
        all.finish(&first, Ok(()));
        let (_, removal) = all.next(|_| false).unwrap();
        assert_eq!((removal.desired, all.failing()), (Redirection::Absent, None));
    }

    #[test]
    fn a_pod_that_is_gone_is_forgotten_except_for_a_removal_that_is_not_done() {
        let mut all = Redirections::default();
        all.enroll(&pod("u-1"));
        all.leave(&pod("u-2"));
        all.retain(|_| false);
        assert_eq!(all.0.keys().map(PodUid::as_str).collect::<Vec<_>>(), ["u-2"]);
        let (_, removal) = all.next(|_| false).unwrap();
        all.finish(&removal, Ok(()));
        all.retain(|_| false);
        assert!(all.0.is_empty(), "{all:?}");
    }
}
