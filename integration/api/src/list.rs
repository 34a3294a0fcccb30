//! Lists, whole or in pages.

use crate::answer::{Answer, Cut, Failure, stream};
use crate::contents::Contents;
use crate::objects::{Key, Objects, key};
use crate::resource::Resource;
use crate::selector::Selector;
use crate::wish::Wish;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http_body_util::channel::{Channel, Sender};
use hyper::body::Bytes;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// apiserver's `pkg/storage/etcd3/errors.go`, `inconsistentContinue`.
const CONTINUE_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. \
    You can start a new list without the continue parameter, or use the continue token in this response to \
    retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - \
    objects that were created, modified, or deleted between the time the first chunk was returned and now may \
    show up in the list.";

type Items = Box<dyn Iterator<Item = Arc<Value>> + Send>;

/// Where a page begins: what has been told already, and the version all pages are of.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Page {
    version: Option<u64>,
    after: Option<Key>,
}

/// Answers with a list.
pub(crate) fn list(objects: &Objects, resource: Resource, wish: &Wish) -> Result<Answer, Failure> {
    let selector = selector(wish)?;
    let page = Page::of(wish, objects)?;
    let version = page.version.unwrap_or_else(|| objects.newest());
    let items = Contents::of(objects, (resource, version), &selector, page.after.as_ref());
    let mut metadata = Map::from_iter([("resourceVersion".to_owned(), version.to_string().into())]);
    let mut items: Items = Box::new(items);
    if let Some(limit) = limit(wish) {
        let page: Vec<Arc<Value>> = items.by_ref().take(limit).collect();
        let left = items.size_hint().1.unwrap_or(0);
        if let Some(last) = page.last().filter(|_| left > 0) {
            let next = Page { version: Some(version), after: Some(key(last)) };
            metadata.insert("continue".into(), next.token().into());
            if selector.is_empty() {
                metadata.insert("remainingItemCount".into(), left.into());
            }
        }
        items = Box::new(page.into_iter());
    }
    let (sender, body) = Channel::new(16);
    tokio::spawn(write(sender, resource, metadata.into(), items));
    Ok(stream("list-200", body))
}

/// What is selected by a query.
pub(crate) fn selector(wish: &Wish) -> Result<Selector, Failure> {
    let (fields, labels) = (wish.parameter("fieldSelector"), wish.parameter("labelSelector"));
    Selector::parse(wish.namespace.clone(), fields, labels)
        .map_err(|why| Failure::other(400, "BadRequest", &why))
}

/// A list that may be as old as the server likes (version 0) comes whole, whatever limit is asked for.
fn limit(wish: &Wish) -> Option<usize> {
    if wish.parameter("resourceVersion") == "0" {
        return None;
    }
    wish.parameter("limit").parse().ok().filter(|limit| *limit > 0)
}

async fn write(mut to: Sender<Bytes, Cut>, resource: Resource, metadata: Value, items: Items) {
    let kind = resource.kind();
    let api = resource.api_version();
    let head = format!(r#"{{"kind":"{kind}List","apiVersion":"{api}","metadata":{metadata},"items":["#);
    let mut between = head;
    for item in items {
        let mut item = Value::clone(&item);
        if let Some(members) = item.as_object_mut() {
            members.remove("kind");
            members.remove("apiVersion");
        }
        // Whoever went away reads no more.
        if to.send_data(format!("{between}{item}").into()).await.is_err() {
            return;
        }
        between = ",".to_owned();
    }
    let open = if between == "," { String::new() } else { between };
    let _gone = to.send_data(format!("{open}]}}\n").into()).await;
}

impl Page {
    fn of(wish: &Wish, objects: &Objects) -> Result<Self, Failure> {
        let newest = objects.newest();
        let token = wish.parameter("continue");
        if token.is_empty() {
            return asked_version(wish, newest).map(|version| Self { version, after: None });
        }
        let Some(mut page) = Self::read(token) else {
            return Err(Failure::other(400, "BadRequest", "continue key is not valid"));
        };
        if page.version.is_some_and(|version| objects.has_forgotten(version)) {
            page.version = None;
            return Err(Failure::expired(CONTINUE_EXPIRED, Some(page.token())));
        }
        Ok(page)
    }

    /// In etcd3's way: version -1 means whatever is newest.
    fn token(&self) -> String {
        let (namespace, name) = self.after.clone().unwrap_or_default();
        let version = self.version.and_then(|version| i64::try_from(version).ok()).unwrap_or(-1);
        let token = json!({ "v": "meta.k8s.io/v1", "rv": version, "start": format!("{namespace}/{name}\0") });
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    fn read(token: &str) -> Option<Self> {
        let token: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
        let start = token.get("start")?.as_str()?.strip_suffix('\0')?;
        let (namespace, name) = start.split_once('/')?;
        let version = u64::try_from(token.get("rv")?.as_i64()?).ok();
        Some(Self { version, after: Some((namespace.to_owned(), name.to_owned())) })
    }
}

/// The version a new list is to be of, when one is asked for exactly.
fn asked_version(wish: &Wish, newest: u64) -> Result<Option<u64>, Failure> {
    let text = wish.parameter("resourceVersion");
    let Some(asked) = Some(text).filter(|text| !text.is_empty()) else { return Ok(None) };
    let Ok(asked) = asked.parse::<u64>() else {
        return Err(Failure::other(400, "BadRequest", &format!("invalid resource version \"{text}\"")));
    };
    if asked > newest {
        let message = format!("Too large resource version: {asked}, current: {newest}");
        let cause = json!({ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" });
        let details = json!({ "causes": [cause], "retryAfterSeconds": 1 });
        return Err(Failure::other(504, "Timeout", &message).with(details));
    }
    Ok(Some(asked).filter(|_| wish.parameter("resourceVersionMatch") == "Exact"))
}
