//! A watch: sends changes to one client until its time is up.

use crate::objects::{Change, Objects, SelectedObjects};
use crate::request::{ApiRequest, Resource, Selector};
use crate::response::{ApiResponse, ConnectionCut, StatusError, selector, stream};
use http_body_util::channel::{Channel, Sender};
use hyper::body::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::time::{Instant, interval_at, sleep};

/// A test's command to every running watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchCommand {
    /// Send a bookmark to clients that requested bookmarks.
    Bookmark,
    /// Close the connection in the middle of an event.
    Cut,
    /// Send error 410 and end.
    Expire,
    /// End as at the time limit.
    End,
}

/// The time limit of a watch without `timeoutSeconds`. A real server draws it from half an hour to an hour
/// (`--min-request-timeout`).
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1800);

/// About the interval of kube-apiserver's watch cache.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);

struct Watch {
    objects: Arc<Objects>,
    resource: Resource,
    selector: Selector,
    bookmarks: bool,
    version: u64,
    body: Sender<Bytes, ConnectionCut>,
}

/// The client closed the connection, or the watch has ended.
struct WatchEnded;

pub(crate) fn watch(
    objects: &Arc<Objects>,
    resource: Resource,
    request: &ApiRequest,
    watch_commands: Receiver<WatchCommand>,
) -> Result<ApiResponse, StatusError> {
    refuse_initial_events(request)?;
    let seconds = request.parameter("timeoutSeconds").parse().ok().filter(|seconds| *seconds > 0);
    let timeout = seconds.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
    let (sender, body) = Channel::new(16);
    let watch = Watch {
        objects: Arc::clone(objects),
        resource,
        selector: selector(request)?,
        bookmarks: request.parameter("allowWatchBookmarks") == "true",
        version: request.parameter("resourceVersion").parse().unwrap_or(0),
        body: sender,
    };
    tokio::spawn(watch.run(watch_commands, timeout));
    Ok(stream("watch-stream", body))
}

/// Refuses `resourceVersionMatch`, as a server does that cannot begin a watch with a list: apimachinery's
/// `pkg/apis/meta/internalversion/validation/validation.go`.
fn refuse_initial_events(request: &ApiRequest) -> Result<(), StatusError> {
    if request.parameter("resourceVersionMatch").is_empty() {
        return Ok(());
    }
    let reason = "Forbidden: resourceVersionMatch is forbidden for watch";
    let message = format!("ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: {reason}");
    let cause =
        json!({ "reason": "FieldValueForbidden", "message": reason, "field": "resourceVersionMatch" });
    let details = json!({ "group": "meta.k8s.io", "kind": "ListOptions", "causes": [cause] });
    Err(StatusError::new(422, "Invalid", &message).with_details(details))
}

impl Watch {
    async fn run(mut self, mut watch_commands: Receiver<WatchCommand>, timeout: Duration) {
        let end = sleep(timeout);
        tokio::pin!(end);
        let mut bookmarks = interval_at(Instant::now() + BOOKMARK_INTERVAL, BOOKMARK_INTERVAL);
        let mut newest = self.objects.subscribe();
        if self.send_initial().await.is_err() {
            return;
        }
        loop {
            let command = tokio::select! {
                biased;
                changed = newest.changed() => if changed.is_ok() { None } else { return },
                command = watch_commands.recv() => command.ok(),
                _ = bookmarks.tick() => Some(WatchCommand::Bookmark),
                () = &mut end => Some(WatchCommand::End),
            };
            if self.send_changes().await.is_err() {
                return;
            }
            let done = match command {
                None => Ok(()),
                Some(WatchCommand::Bookmark) if !self.bookmarks => Ok(()),
                Some(WatchCommand::Bookmark) => self.send(&self.bookmark()).await,
                Some(WatchCommand::Expire) => self.expire().await,
                Some(WatchCommand::End) => return,
                Some(WatchCommand::Cut) => return self.cut().await,
            };
            if done.is_err() {
                return;
            }
        }
    }

    /// Sends all objects as added for version 0, or the changes after any other version.
    async fn send_initial(&mut self) -> Result<(), WatchEnded> {
        if self.version == 0 {
            self.version = self.objects.newest();
            for object in
                SelectedObjects::new(&self.objects, self.resource, self.version, &self.selector, None)
            {
                self.send(&json!({ "type": "ADDED", "object": *object })).await?;
            }
        }
        if self.objects.is_compacted(self.version) {
            return self.expire().await;
        }
        self.send_changes().await
    }

    async fn send_changes(&mut self) -> Result<(), WatchEnded> {
        for change in self.objects.since(self.resource, self.version) {
            self.version = change.version;
            if let Some(event) = event_for(&change, &self.selector) {
                self.send(&event).await?;
            }
        }
        Ok(())
    }

    async fn expire(&mut self) -> Result<(), WatchEnded> {
        let message = format!("too old resource version: {} ({})", self.version, self.objects.oldest());
        self.send(&StatusError::expired(&message, None).event()).await?;
        Err(WatchEnded)
    }

    async fn cut(mut self) {
        let mut half = self.bookmark().to_string();
        half.truncate(half.len() / 2);
        if self.body.send_data(half.into()).await.is_ok() {
            // The abort discards data that hyper has not written yet.
            tokio::task::yield_now().await;
            self.body.abort(ConnectionCut);
        }
    }

    /// An object with only its version, as recorded.
    fn bookmark(&self) -> Value {
        let (kind, api) = (self.resource.kind(), self.resource.api_version());
        let metadata = json!({ "resourceVersion": self.version.to_string(), "creationTimestamp": null });
        let spec = if self.resource == Resource::Pods { json!({ "containers": null }) } else { json!({}) };
        json!({ "type": "BOOKMARK", "object": {
            "kind": kind, "apiVersion": api, "metadata": metadata, "spec": spec, "status": {},
        } })
    }

    async fn send(&mut self, event: &Value) -> Result<(), WatchEnded> {
        self.body.send_data(format!("{event}\n").into()).await.map_err(|_| WatchEnded)
    }
}

/// Returns a change as an event of a selector: an object that begins to match is added, one that ceases to
/// match is deleted.
fn event_for(change: &Change, selector: &Selector) -> Option<Value> {
    let before = change.before.as_ref().filter(|object| selector.matches(object));
    let after = change.after.as_ref().filter(|object| selector.matches(object));
    let (event_type, mut object) = match (before, after) {
        (None, None) => return None,
        (None, Some(after)) => ("ADDED", Value::clone(after)),
        (Some(_), Some(after)) => ("MODIFIED", Value::clone(after)),
        (Some(before), None) => ("DELETED", Value::clone(before)),
    };
    if let Some(version) = object.pointer_mut("/metadata/resourceVersion") {
        *version = change.version.to_string().into();
    }
    Some(json!({ "type": event_type, "object": object }))
}
