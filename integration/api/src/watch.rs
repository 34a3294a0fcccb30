//! A watch: what changes, told to one listener until the time is up.

use crate::answer::{Answer, Cut, Failure, stream};
use crate::contents::Contents;
use crate::list::selector;
use crate::objects::{Change, Objects};
use crate::resource::Resource;
use crate::selector::Selector;
use crate::wish::Wish;
use http_body_util::channel::{Channel, Sender};
use hyper::body::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::time::{Instant, interval_at, sleep};

/// What a test makes every running watch do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nudge {
    /// Tell the version, where the listener wants to be told.
    Bookmark,
    /// Break off in the middle of an event.
    Cut,
    /// Tell that the version is gone, and end.
    Expire,
    /// End, as when the time is up.
    End,
}

/// A server's own limit is drawn from half an hour to an hour (`--min-request-timeout`).
const LONGEST: Duration = Duration::from_secs(1800);

/// About as often as kube-apiserver's watch cache sends one.
const BETWEEN_BOOKMARKS: Duration = Duration::from_secs(60);

/// One listener's watch.
struct Watch {
    objects: Arc<Objects>,
    resource: Resource,
    selector: Selector,
    bookmarks: bool,
    version: u64,
    to: Sender<Bytes, Cut>,
}

/// The listener went away.
struct Gone;

/// Answers with a watch.
pub(crate) fn watch(
    objects: &Arc<Objects>,
    resource: Resource,
    wish: &Wish,
    nudges: Receiver<Nudge>,
) -> Result<Answer, Failure> {
    only_as_older_servers_do(wish)?;
    let seconds = wish.parameter("timeoutSeconds").parse().ok().filter(|seconds| *seconds > 0);
    let longest = seconds.map_or(LONGEST, Duration::from_secs);
    let asked = wish.parameter("resourceVersion").parse().unwrap_or(0);
    let (to, body) = Channel::new(16);
    let watch = Watch {
        objects: Arc::clone(objects),
        resource,
        selector: selector(wish)?,
        bookmarks: wish.parameter("allowWatchBookmarks") == "true",
        version: asked,
        to,
    };
    tokio::spawn(watch.run(nudges, longest));
    Ok(stream("watch-stream", body))
}

/// A server that cannot begin a watch with a list of events refuses the words for it: apimachinery's
/// `pkg/apis/meta/internalversion/validation/validation.go`.
fn only_as_older_servers_do(wish: &Wish) -> Result<(), Failure> {
    if wish.parameter("resourceVersionMatch").is_empty() {
        return Ok(());
    }
    let why = "Forbidden: resourceVersionMatch is forbidden for watch";
    let message = format!("ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: {why}");
    let cause = json!({ "reason": "FieldValueForbidden", "message": why, "field": "resourceVersionMatch" });
    let details = json!({ "group": "meta.k8s.io", "kind": "ListOptions", "causes": [cause] });
    Err(Failure::other(422, "Invalid", &message).with(details))
}

impl Watch {
    async fn run(mut self, mut nudges: Receiver<Nudge>, longest: Duration) {
        let end = sleep(longest);
        tokio::pin!(end);
        let mut minute = interval_at(Instant::now() + BETWEEN_BOOKMARKS, BETWEEN_BOOKMARKS);
        let mut newest = self.objects.follow();
        if self.begin().await.is_err() {
            return;
        }
        loop {
            let nudge = tokio::select! {
                biased;
                changed = newest.changed() => if changed.is_ok() { None } else { return },
                nudge = nudges.recv() => nudge.ok(),
                _ = minute.tick() => Some(Nudge::Bookmark),
                () = &mut end => Some(Nudge::End),
            };
            if self.catch_up().await.is_err() {
                return;
            }
            let done = match nudge {
                None => Ok(()),
                Some(Nudge::Bookmark) if !self.bookmarks => Ok(()),
                Some(Nudge::Bookmark) => self.tell(&self.bookmark()).await,
                Some(Nudge::Expire) => self.expire().await,
                Some(Nudge::End) => return,
                Some(Nudge::Cut) => return self.cut().await,
            };
            if done.is_err() {
                return;
            }
        }
    }

    /// From version 0 on all there is is new; from any other, what came after it.
    async fn begin(&mut self) -> Result<(), Gone> {
        if self.version == 0 {
            self.version = self.objects.newest();
            for object in Contents::of(&self.objects, (self.resource, self.version), &self.selector, None) {
                self.tell(&json!({ "type": "ADDED", "object": *object })).await?;
            }
        }
        if self.objects.has_forgotten(self.version) {
            return self.expire().await;
        }
        self.catch_up().await
    }

    async fn catch_up(&mut self) -> Result<(), Gone> {
        for change in self.objects.since(self.resource, self.version) {
            self.version = change.version;
            if let Some(event) = seen(&change, &self.selector) {
                self.tell(&event).await?;
            }
        }
        Ok(())
    }

    async fn expire(&mut self) -> Result<(), Gone> {
        let message = format!("too old resource version: {} ({})", self.version, self.objects.oldest());
        self.tell(&Failure::expired(&message, None).event()).await?;
        Err(Gone)
    }

    async fn cut(mut self) {
        let mut half = self.bookmark().to_string();
        half.truncate(half.len() / 2);
        if self.to.send_data(half.into()).await.is_ok() {
            // What is not written yet when the end comes is never written.
            tokio::task::yield_now().await;
            self.to.abort(Cut);
        }
    }

    /// As recorded: an object with nothing but its version.
    fn bookmark(&self) -> Value {
        let (kind, api) = (self.resource.kind(), self.resource.api_version());
        let metadata = json!({ "resourceVersion": self.version.to_string(), "creationTimestamp": null });
        let spec = if self.resource == Resource::Pods { json!({ "containers": null }) } else { json!({}) };
        json!({ "type": "BOOKMARK", "object": {
            "kind": kind, "apiVersion": api, "metadata": metadata, "spec": spec, "status": {},
        } })
    }

    async fn tell(&mut self, event: &Value) -> Result<(), Gone> {
        self.to.send_data(format!("{event}\n").into()).await.map_err(|_| Gone)
    }
}

/// How a change looks through a selector: what begins to match is new, what ceases to is gone.
fn seen(change: &Change, selector: &Selector) -> Option<Value> {
    let before = change.before.as_ref().filter(|object| selector.matches(object));
    let after = change.after.as_ref().filter(|object| selector.matches(object));
    let (word, mut object) = match (before, after) {
        (None, None) => return None,
        (None, Some(after)) => ("ADDED", Value::clone(after)),
        (Some(_), Some(after)) => ("MODIFIED", Value::clone(after)),
        (Some(before), None) => ("DELETED", Value::clone(before)),
    };
    if let Some(version) = object.pointer_mut("/metadata/resourceVersion") {
        *version = change.version.to_string().into();
    }
    Some(json!({ "type": word, "object": object }))
}
