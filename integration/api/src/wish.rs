//! What a request wants, read from its line.

use crate::resource::Resource;
use hyper::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What is to be done with an object, in RBAC's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// Read one.
    Get,
    /// Read all.
    List,
    /// Be told what changes.
    Watch,
    /// Make one.
    Create,
    /// Write one anew.
    Update,
    /// Change one.
    Patch,
    /// Take one away.
    Delete,
}

impl Verb {
    pub(crate) fn word(self) -> &'static str {
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

/// A request for objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) verb: Verb,
    pub(crate) group: String,
    pub(crate) resource: String,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    parameters: BTreeMap<String, String>,
}

impl Wish {
    /// `None` when nothing like it is served.
    pub(crate) fn parse(method: &Method, path: &str, query: &str) -> Option<Self> {
        let mut parts = path.strip_prefix('/')?.split('/');
        let group = match (parts.next()?, parts.next()?) {
            ("api", "v1") => String::new(),
            ("apis", group) if parts.next() == Some("v1") => group.to_owned(),
            _ => return None,
        };
        let rest: Vec<&str> = parts.collect();
        let (namespace, resource, name) = match *rest.as_slice() {
            ["namespaces", namespace, resource] => (Some(namespace), resource, None),
            ["namespaces", namespace, resource, name] => (Some(namespace), resource, Some(name)),
            [resource] => (None, resource, None),
            [resource, name] => (None, resource, Some(name)),
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
            parameters,
        })
    }

    /// The kind that is meant, when it is one of those kept here.
    pub(crate) fn kind(&self) -> Option<Resource> {
        Resource::of_path(&self.group, &self.resource)
    }

    /// A parameter of the query, empty when it is not there.
    pub(crate) fn parameter(&self, name: &str) -> &str {
        self.parameters.get(name).map(String::as_str).unwrap_or_default()
    }

    /// As messages call it: `daemonsets.apps "gybe-node"`.
    pub(crate) fn named(&self) -> String {
        let dot = if self.group.is_empty() { "" } else { "." };
        let name = self.name.as_ref().map(|name| format!(" \"{name}\"")).unwrap_or_default();
        format!("{}{dot}{}{name}", self.resource, self.group)
    }

    /// As a `Status` details it.
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
