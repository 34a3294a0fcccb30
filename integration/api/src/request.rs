//! A parsed request: verb, resource, namespace, name, and the selectors of its query; the log of received requests.

use crate::credentials::Bearer;
use hyper::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A verb of RBAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// Reads one object.
    Get,
    /// Reads all objects of a kind.
    List,
    /// Receives changes.
    Watch,
    /// Makes an object.
    Create,
    /// Replaces an object.
    Update,
    /// Changes parts of an object.
    Patch,
    /// Deletes an object.
    Delete,
}

impl Verb {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }

    fn of(method: &Method, named: bool, watch: bool) -> Self {
        match *method {
            Method::POST => Self::Create,
            Method::PUT => Self::Update,
            Method::PATCH => Self::Patch,
            Method::DELETE => Self::Delete,
            _ if named => Self::Get,
            _ if watch => Self::Watch,
            _ => Self::List,
        }
    }
}

/// The subresource by which a client requests a page of a pod.
pub(crate) const PROXY: &str = "pods/proxy";

/// A request of the resource API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiRequest {
    pub(crate) verb: Verb,
    pub(crate) group: String,
    pub(crate) resource: String,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    /// Such as `status`.
    pub(crate) subresource: Option<String>,
    parameters: BTreeMap<String, String>,
}

impl ApiRequest {
    /// Returns `None` for a path outside `api/v1` and `apis/GROUP/v1`.
    pub(crate) fn parse(method: &Method, path: &str, query: &str) -> Option<Self> {
        let mut parts = path.strip_prefix('/')?.split('/');
        let group = match (parts.next()?, parts.next()?) {
            ("api", "v1") => String::new(),
            ("apis", group) if parts.next() == Some("v1") => group.to_owned(),
            _ => return None,
        };
        let rest: Vec<&str> = parts.collect();
        let (namespace, resource, name, subresource) = match *rest.as_slice() {
            ["namespaces", namespace, resource] => (Some(namespace), resource, None, None),
            ["namespaces", namespace, resource, name] => (Some(namespace), resource, Some(name), None),
            ["namespaces", namespace, "pods", name, "proxy", ..] => {
                (Some(namespace), PROXY, Some(name), None)
            }
            ["namespaces", namespace, resource, name, subresource] => {
                (Some(namespace), resource, Some(name), Some(subresource))
            }
            [resource, name, subresource] => (None, resource, Some(name), Some(subresource)),
            [resource] => (None, resource, None, None),
            [resource, name] => (None, resource, Some(name), None),
            _ => return None,
        };
        let parameters: BTreeMap<String, String> =
            form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let watch = parameters.get("watch").is_some_and(|watch| matches!(watch.as_str(), "1" | "true"));
        Some(Self {
            verb: Verb::of(method, name.is_some(), watch),
            group,
            resource: resource.to_owned(),
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            subresource: subresource.map(str::to_owned),
            parameters,
        })
    }

    /// The resource as a rule of RBAC names it: `pods`, `pods/status`.
    pub(crate) fn rbac_resource(&self) -> String {
        let subresource = self.subresource.as_ref().map(|name| format!("/{name}"));
        self.resource.clone() + &subresource.unwrap_or_default()
    }

    /// Returns `None` for a resource that this server does not store.
    pub(crate) fn known_resource(&self) -> Option<Resource> {
        Resource::of_path(&self.group, &self.resource)
    }

    /// Returns a parameter of the query, or an empty string.
    pub(crate) fn parameter(&self, name: &str) -> &str {
        self.parameters.get(name).map(String::as_str).unwrap_or_default()
    }

    /// The object's name in messages: `daemonsets.apps "gybe-node"`.
    pub(crate) fn qualified_name(&self) -> String {
        let dot = if self.group.is_empty() { "" } else { "." };
        let name = self.name.as_ref().map(|name| format!(" \"{name}\"")).unwrap_or_default();
        format!("{}{dot}{}{name}", self.resource, self.group)
    }

    /// The `details` of a `Status` about this request.
    pub(crate) fn details(&self) -> Value {
        let mut details = json!({ "kind": self.resource });
        if let Some(details) = details.as_object_mut() {
            details.extend(self.name.clone().map(|name| ("name".to_owned(), name.into())));
            let group = Some(&self.group).filter(|group| !group.is_empty());
            details.extend(group.map(|group| ("group".to_owned(), group.clone().into())));
        }
        details
    }
}

/// The field selector, label selector and namespace of a list or watch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(crate) namespace: Option<String>,
    requirements: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    pointer: String,
    equal: bool,
    value: String,
}

/// Fields that real servers accept in a selector of pods.
const FIELDS: [(&str, &str); 5] = [
    ("metadata.name", "/metadata/name"),
    ("metadata.namespace", "/metadata/namespace"),
    ("spec.nodeName", "/spec/nodeName"),
    ("spec.restartPolicy", "/spec/restartPolicy"),
    ("status.phase", "/status/phase"),
];

const NODE: &str = "/spec/nodeName";

impl Selector {
    /// # Errors
    /// The message of a real server about an unsupported field or operator.
    pub(crate) fn parse(namespace: Option<String>, fields: &str, labels: &str) -> Result<Self, String> {
        let mut requirements = Vec::new();
        for Term { name, equal, value } in terms(fields)? {
            let supported = FIELDS.iter().find(|(field, _)| *field == name);
            let (_, pointer) = supported.ok_or_else(|| format!("field label not supported: {name}"))?;
            requirements.push(Requirement { pointer: (*pointer).to_owned(), equal, value });
        }
        for Term { name, equal, value } in terms(labels)? {
            let key = name.replace('~', "~0").replace('/', "~1");
            requirements.push(Requirement { pointer: format!("/metadata/labels/{key}"), equal, value });
        }
        Ok(Self { namespace, requirements })
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let in_namespace =
            self.namespace.as_ref().is_none_or(|namespace| text("/metadata/namespace") == namespace);
        in_namespace && self.requirements.iter().all(|it| (text(&it.pointer) == it.value) == it.equal)
    }

    /// Returns the node that the selector requires in `spec.nodeName`.
    pub(crate) fn node(&self) -> Option<&str> {
        let required = self.requirements.iter().find(|it| it.pointer == NODE && it.equal);
        required.map(|it| it.value.as_str())
    }

    /// Reports whether only the namespace selects.
    pub(crate) fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }
}

/// One comma-separated part of a selector: `name=value`, `name==value` or `name!=value`.
struct Term {
    name: String,
    equal: bool,
    value: String,
}

fn terms(text: &str) -> Result<Vec<Term>, String> {
    let term = |term: &str| {
        let (name, equal, value) = if let Some((name, value)) = term.split_once("!=") {
            (name, false, value)
        } else {
            let (name, value) = term.split_once('=').ok_or_else(|| format!("invalid selector: '{term}'"))?;
            (name, true, value.strip_prefix('=').unwrap_or(value))
        };
        Ok(Term { name: name.trim().to_owned(), equal, value: value.trim().to_owned() })
    };
    text.split(',').filter(|part| !part.is_empty()).map(term).collect()
}

/// A resource that this server stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Resource {
    Pods,
    Nodes,
    Namespaces,
    DaemonSets,
    ConfigMaps,
    Events,
}

impl Resource {
    /// Returns the resource of an object's `kind`; an object without a kind is a pod.
    pub(crate) fn of_kind(kind: Option<&str>) -> Option<Self> {
        match kind {
            None | Some("Pod") => Some(Self::Pods),
            Some("Node") => Some(Self::Nodes),
            Some("Namespace") => Some(Self::Namespaces),
            Some("DaemonSet") => Some(Self::DaemonSets),
            Some("ConfigMap") => Some(Self::ConfigMaps),
            Some("Event") => Some(Self::Events),
            Some(_) => None,
        }
    }

    /// Returns the resource of a path's segment below `api/v1` or `apis/GROUP/v1`.
    pub(crate) fn of_path(group: &str, name: &str) -> Option<Self> {
        let all =
            [Self::Pods, Self::Nodes, Self::Namespaces, Self::DaemonSets, Self::ConfigMaps, Self::Events];
        all.into_iter().find(|resource| resource.group() == group && resource.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Nodes => "nodes",
            Self::Namespaces => "namespaces",
            Self::DaemonSets => "daemonsets",
            Self::ConfigMaps => "configmaps",
            Self::Events => "events",
        }
    }

    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Pods => "Pod",
            Self::Nodes => "Node",
            Self::Namespaces => "Namespace",
            Self::DaemonSets => "DaemonSet",
            Self::ConfigMaps => "ConfigMap",
            Self::Events => "Event",
        }
    }

    pub(crate) fn group(self) -> &'static str {
        match self {
            Self::Pods | Self::Nodes | Self::Namespaces | Self::ConfigMaps => "",
            Self::DaemonSets => "apps",
            Self::Events => "events.k8s.io",
        }
    }

    pub(crate) fn api_version(self) -> &'static str {
        match self {
            Self::Pods | Self::Nodes | Self::Namespaces | Self::ConfigMaps => "v1",
            Self::DaemonSets => "apps/v1",
            Self::Events => "events.k8s.io/v1",
        }
    }

    pub(crate) fn is_namespaced(self) -> bool {
        !matches!(self, Self::Nodes | Self::Namespaces)
    }
}

/// One received request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// When it was received.
    pub received: Instant,
    /// The HTTP method.
    pub method: String,
    /// The path without the query.
    pub path: String,
    /// The query as received; may be empty.
    pub query: String,
    /// The body of a request that writes; else empty.
    pub body: String,
    /// The token that came with it.
    pub bearer: Bearer,
    /// The response's status; `None` until the response begins.
    pub code: Option<u16>,
}

impl Request {
    /// Reports whether it starts a watch.
    pub fn is_watch(&self) -> bool {
        self.query.split('&').any(|pair| matches!(pair, "watch=1" | "watch=true"))
    }

    /// Returns the right that it needs: API group, resource and verb of RBAC; none for a path that is no resource.
    pub fn right(&self) -> Option<(String, String, &'static str)> {
        let method = self.method.parse().ok()?;
        let request = ApiRequest::parse(&method, &self.path, &self.query)?;
        Some((request.group.clone(), request.rbac_resource(), request.verb.name()))
    }

    /// Reports whether it reads a list of pods or a page of one.
    pub fn is_list_of_pods(&self) -> bool {
        self.path.ends_with("/pods") && !self.is_watch()
    }
}

/// All requests of one server in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct RequestLog {
    requests: Mutex<Vec<Request>>,
    changed: Condvar,
}

impl RequestLog {
    /// Appends a request and returns its index.
    pub(crate) fn record(&self, request: Request) -> usize {
        let mut requests = self.requests();
        requests.push(request);
        self.changed.notify_all();
        requests.len().saturating_sub(1)
    }

    pub(crate) fn set_code(&self, index: usize, code: u16) {
        if let Some(request) = self.requests().get_mut(index) {
            request.code = Some(code);
        }
        self.changed.notify_all();
    }

    pub(crate) fn snapshot(&self) -> Vec<Request> {
        self.requests().clone()
    }

    /// Waits until the condition holds; returns `false` when it does not hold in time.
    pub(crate) fn wait_until(&self, within: Duration, condition: impl Fn(&[Request]) -> bool) -> bool {
        let waited =
            self.changed.wait_timeout_while(self.requests(), within, |requests| !condition(requests));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn requests(&self) -> MutexGuard<'_, Vec<Request>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
