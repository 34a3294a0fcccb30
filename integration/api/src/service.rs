//! Answers a request in the order of a real server: authentication, authorization, then the resource.

use crate::faults::{FaultKind, Faults};
use crate::list::list;
use crate::objects::Objects;
use crate::request::{ApiRequest, PROXY, Resource, Verb};
use crate::request_log::{Request, RequestLog};
use crate::response::{ApiResponse, ConnectionCut, JsonLayout, StatusError, created, object, plain};
use crate::tokens::{Authentication, Bearer, SERVICE_ACCOUNT, Tokens};
use crate::watch::{WatchCommand, watch};
use crate::write::{self, Written};
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use hyper::http::request::Parts;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::broadcast;

/// The state of the server that requests use.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) objects: Arc<Objects>,
    pub(crate) tokens: Tokens,
    pub(crate) faults: Faults,
    pub(crate) log: RequestLog,
    pub(crate) watch_commands: broadcast::Sender<WatchCommand>,
    /// Pages of pods by `NAME:PORT`.
    pub(crate) pages: Mutex<BTreeMap<String, String>>,
    rights: Mutex<BTreeSet<(Verb, &'static str)>>,
}

/// The rights in the agent's ClusterRole.
const RIGHTS: [(Verb, &str); 7] = [
    (Verb::Get, "pods"),
    (Verb::List, "pods"),
    (Verb::Watch, "pods"),
    (Verb::Watch, "nodes"),
    (Verb::Get, "daemonsets"),
    (Verb::Create, "events"),
    (Verb::Patch, "events"),
];

impl Service {
    pub(crate) fn new() -> Self {
        Self {
            objects: Arc::new(Objects::new()),
            tokens: Tokens::default(),
            faults: Faults::default(),
            log: RequestLog::default(),
            watch_commands: broadcast::Sender::new(64),
            pages: Mutex::default(),
            rights: Mutex::new(BTreeSet::from(RIGHTS)),
        }
    }

    pub(crate) fn permit(&self, verb: Verb, resource: &'static str) {
        self.rights.lock().unwrap_or_else(PoisonError::into_inner).insert((verb, resource));
    }

    pub(crate) fn forbid(&self, verb: Verb, resource: &'static str) {
        self.rights.lock().unwrap_or_else(PoisonError::into_inner).remove(&(verb, resource));
    }

    /// Answers or closes the connection. `reused_connection`: an earlier request came on it.
    pub(crate) async fn answer(
        self: Arc<Self>,
        request: Parts,
        body: &[u8],
        reused_connection: bool,
    ) -> Result<ApiResponse, ConnectionCut> {
        let Parts { method, uri, headers, .. } = request;
        let query = uri.query().unwrap_or_default();
        let request = ApiRequest::parse(&method, uri.path(), query);
        let authentication = self.authenticate(&headers);
        let index = self.log.record(Request {
            method: method.to_string(),
            path: uri.path().to_owned(),
            query: query.to_owned(),
            body: String::from_utf8_lossy(body).into_owned(),
            bearer: authentication.bearer,
            code: None,
        });
        let layout = JsonLayout::of(headers.get(USER_AGENT));
        let response = match self.faults.next(request.as_ref().map(|request| request.verb), reused_connection)
        {
            Some(FaultKind::Disconnects) => return Err(ConnectionCut),
            Some(FaultKind::Silent) => std::future::pending().await,
            Some(FaultKind::Slow(delay)) => {
                tokio::time::sleep(delay).await;
                None
            }
            Some(fault) => fault.response(layout),
            None => None,
        };
        let content_type =
            headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let written = Written { content_type, body };
        let respond = || self.respond(request.as_ref(), authentication, layout, written);
        let response = response.unwrap_or_else(respond);
        self.log.set_code(index, response.status().as_u16());
        Ok(response)
    }

    fn authenticate(&self, headers: &HeaderMap) -> Authentication {
        let Some(header) = headers.get(AUTHORIZATION) else {
            return Authentication { bearer: Bearer::Anonymous, accepted: true };
        };
        let token = header.to_str().ok().and_then(|header| header.strip_prefix("Bearer "));
        self.tokens.authenticate(token.unwrap_or_default().trim())
    }

    fn respond(
        &self,
        request: Option<&ApiRequest>,
        Authentication { bearer, accepted }: Authentication,
        layout: JsonLayout,
        written: Written<'_>,
    ) -> ApiResponse {
        if !accepted {
            return StatusError::unauthorized().response(layout);
        }
        let Some(request) = request else { return plain(404, "404 page not found\n") };
        let user = match bearer {
            Bearer::Token(_) => format!("system:serviceaccount:{}:{}", SERVICE_ACCOUNT.0, SERVICE_ACCOUNT.1),
            Bearer::Anonymous | Bearer::Unknown => "system:anonymous".to_owned(),
        };
        if !self.is_authorized(bearer, request) {
            return StatusError::forbidden(request, &user).response(layout);
        }
        if request.resource == PROXY {
            return self.serve_page(request, layout);
        }
        self.serve_resource(request, layout, written).unwrap_or_else(|refusal| refusal.response(layout))
    }

    fn is_authorized(&self, bearer: Bearer, request: &ApiRequest) -> bool {
        let rights = self.rights.lock().unwrap_or_else(PoisonError::into_inner);
        let resource = request.rbac_resource();
        let granted = |(verb, name): &(Verb, &str)| *verb == request.verb && *name == resource;
        matches!(bearer, Bearer::Token(_)) && rights.iter().any(granted)
    }

    /// Returns the page of a pod, or what a real server returns when the pod does not answer.
    fn serve_page(&self, request: &ApiRequest, layout: JsonLayout) -> ApiResponse {
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        match request.name.as_ref().and_then(|name| pages.get(name)) {
            Some(page) => plain(200, page),
            None => {
                let message =
                    "error trying to reach service: dial tcp 10.0.0.1:15014: connect: connection refused";
                StatusError::new(503, "ServiceUnavailable", message).response(layout)
            }
        }
    }

    fn serve_resource(
        &self,
        request: &ApiRequest,
        layout: JsonLayout,
        written: Written<'_>,
    ) -> Result<ApiResponse, StatusError> {
        let resource = request.known_resource().ok_or_else(|| StatusError::not_found(request))?;
        match (request.verb, &request.name) {
            (Verb::Get, Some(name)) => {
                let key = (request.namespace.clone().unwrap_or_default(), name.clone());
                let found =
                    self.objects.get(resource, &key).ok_or_else(|| StatusError::not_found(request))?;
                Ok(object(&found, layout))
            }
            (Verb::List, None) => list(&self.objects, resource, request),
            (Verb::Watch, None) => watch(&self.objects, resource, request, self.watch_commands.subscribe()),
            (Verb::Create, None) if resource == Resource::Events => {
                let event = write::create(&self.objects, resource, request, written)?;
                Ok(created(&event, layout))
            }
            (Verb::Delete, Some(_)) if resource == Resource::Pods && request.subresource.is_none() => {
                let deleted = write::delete(&self.objects, resource, request, written)?;
                Ok(object(&deleted, layout))
            }
            (Verb::Patch, Some(_)) if is_patched(resource, request.subresource.as_deref()) => {
                let patched = write::patch(&self.objects, resource, request, written)?;
                Ok(object(&patched, layout))
            }
            // Clients cannot write other objects to this server.
            _ => Err(StatusError::new(405, "MethodNotAllowed", "the server does not allow this method")),
        }
    }
}

/// Reports whether clients can patch the resource or its subresource.
fn is_patched(resource: Resource, subresource: Option<&str>) -> bool {
    match subresource {
        None => matches!(resource, Resource::Events | Resource::Nodes | Resource::ConfigMaps),
        Some(subresource) => (resource, subresource) == (Resource::Pods, "status"),
    }
}
