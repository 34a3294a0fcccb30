//! A client of the API server, and waiting for a condition.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use futures::StreamExt;
use gybe_integration::failure::Failure;
use hyper::{Method, Request};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::core::WatchEvent;
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{timeout, timeout_at};

/// The deadline of [`wait_until`]: longer than any of its waits takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);
/// How long a setting may take until it shows on a node: the kubelet updates a mounted ConfigMap every 60 to 90 s
/// (`workerResyncIntervalJitterFactor`, pkg/kubelet/pod_workers.go, v1.36), and the agent writes its node at most once
/// a minute.
pub(crate) const SETTING: Duration = Duration::from_secs(150);
/// The time between two looks at the API server.
const INTERVAL: Duration = Duration::from_millis(100);
/// More than a pod's application takes to connect to an address of each family, and to receive an answer.
const REQUEST: Duration = Duration::from_secs(60);

/// A connection to the API server as its administrator. Each thread has its own.
pub(crate) struct Api {
    config: Config,
    runtime: Runtime,
    client: Client,
}

impl Api {
    pub(crate) fn connect(kubeconfig: &Path) -> Result<Api, Failure> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
        let options = KubeConfigOptions::default();
        let config = runtime.block_on(Config::from_custom_kubeconfig(kubeconfig, &options))?;
        Api::with(config, runtime)
    }

    fn with(config: Config, runtime: Runtime) -> Result<Api, Failure> {
        let client = runtime.block_on(async { Client::try_from(config.clone()) })?;
        Ok(Api { config, runtime, client })
    }

    /// Opens another connection, for another thread.
    pub(crate) fn another(&self) -> Result<Api, Failure> {
        Api::with(self.config.clone(), Builder::new_current_thread().enable_all().build()?)
    }

    /// Opens a connection with this token instead of the administrator's certificate.
    pub(crate) fn with_token(&self, token: &str) -> Result<Api, Failure> {
        let mut config = self.config.clone();
        config.auth_info = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
        Api::with(config, Builder::new_current_thread().enable_all().build()?)
    }

    pub(crate) fn is_ready(&self) -> Result<bool, Failure> {
        let request = Request::get("/readyz").body(Vec::new())?;
        let answer =
            self.runtime.block_on(async { timeout(REQUEST, self.client.request_text(request)).await });
        Ok(matches!(answer, Ok(Ok(_))))
    }

    /// Returns an object or a list; nothing if it does not exist.
    pub(crate) fn get(&self, path: &str) -> Result<Option<Value>, Failure> {
        match self.request(Method::GET, path, "application/json", &Value::Null)? {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            result => Ok(result.map(Some)?),
        }
    }

    /// Returns the items of a list.
    pub(crate) fn list(&self, path: &str) -> Result<Vec<Value>, Failure> {
        let list = self.get(path)?.unwrap_or_default();
        Ok(list.get("items").and_then(Value::as_array).cloned().unwrap_or_default())
    }

    pub(crate) fn create(&self, path: &str, object: &Value) -> Result<Value, Failure> {
        Ok(self.request(Method::POST, path, "application/json", object)??)
    }

    pub(crate) fn patch(&self, path: &str, patch: &Value) -> Result<Value, Failure> {
        Ok(self.request(Method::PATCH, path, "application/merge-patch+json", patch)??)
    }

    /// Merges lists by their keys, such as conditions by their types.
    pub(crate) fn patch_strategically(&self, path: &str, patch: &Value) -> Result<Value, Failure> {
        Ok(self.request(Method::PATCH, path, "application/strategic-merge-patch+json", patch)??)
    }

    /// Deletes an object, or the objects of a list.
    pub(crate) fn delete(&self, path: &str) -> Result<(), Failure> {
        self.request(Method::DELETE, path, "application/json", &Value::Null)??;
        Ok(())
    }

    /// Deletes the object of this uid, and none that was created later with its name.
    pub(crate) fn delete_uid(&self, path: &str, uid: &str) -> Result<(), Failure> {
        let options = json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": uid } });
        self.request(Method::DELETE, path, "application/json", &options)??;
        Ok(())
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: &Value,
    ) -> Result<Result<Value, kube::Error>, Failure> {
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let late = format!("{method} {path}: no answer of the API server within {REQUEST:?}");
        let request = Request::builder().method(method).uri(path).header("Content-Type", kind).body(bytes)?;
        let answer = self.runtime.block_on(async { timeout(REQUEST, self.client.request(request)).await });
        answer.map_err(|_elapsed| Failure::new(late))
    }

    /// Calls `observe` with each version of the objects of a list, as the API server sends them, until it returns
    /// true or the deadline passes. Reports whether it returned true.
    pub(crate) fn watch(
        &self,
        path: &str,
        deadline: Instant,
        mut observe: impl FnMut(&Value) -> bool,
    ) -> Result<bool, Failure> {
        let separator = if path.contains('?') { '&' } else { '?' };
        let uri = format!("{path}{separator}watch=1&resourceVersion=0");
        self.runtime.block_on(async {
            let request = Request::get(uri).body(Vec::new())?;
            let events = self.client.request_events::<Value>(request);
            let Ok(events) = timeout_at(deadline.into(), events).await else { return Ok(false) };
            let mut events = std::pin::pin!(events?);
            while let Ok(Some(event)) = timeout_at(deadline.into(), events.next()).await {
                match event? {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                        if observe(&object) {
                            return Ok(true);
                        }
                    }
                    WatchEvent::Error(status) => return Err(Failure::new(format!("{path}: {status}"))),
                    WatchEvent::Deleted(_) | WatchEvent::Bookmark(_) => {}
                }
            }
            Ok(false)
        })
    }
}

/// Waits until `condition` holds.
pub(crate) fn wait_until(
    what: &str,
    condition: impl FnMut() -> Result<bool, Failure>,
) -> Result<(), Failure> {
    wait_at_most(PATIENCE, what, condition)
}

/// Waits until `condition` holds, for at most `limit`.
pub(crate) fn wait_at_most(
    limit: Duration,
    what: &str,
    mut condition: impl FnMut() -> Result<bool, Failure>,
) -> Result<(), Failure> {
    wait_for(limit, what, || Ok(condition()?.then_some(())))
}

/// Waits until `observe` returns a value, for at most `limit`, and returns that.
pub(crate) fn wait_for<T>(
    limit: Duration,
    what: &str,
    observe: impl FnMut() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    wait_for_every(INTERVAL, limit, what, observe)
}

/// As [`wait_for`], with this time between two observations.
pub(crate) fn wait_for_every<T>(
    interval: Duration,
    limit: Duration,
    what: &str,
    mut observe: impl FnMut() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(observed) = observe()? {
            return Ok(observed);
        }
        if Instant::now() >= deadline {
            return Err(Failure::new(format!("not within {limit:?}: {what}")));
        }
        sleep(interval);
    }
}
