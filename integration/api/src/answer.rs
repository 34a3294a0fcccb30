//! How an answer looks: the recorded headers, and a `Status` wherever something is refused.

use crate::recorded::{Recorded, recorded};
use crate::wish::Wish;
use http_body_util::channel::Channel;
use http_body_util::{Either, Full};
use hyper::body::Bytes;
use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

/// A connection is cut before its answer is complete.
#[derive(Debug, thiserror::Error)]
#[error("the connection is cut, as the test wants it")]
pub(crate) struct Cut;

/// At once, or piece by piece.
pub(crate) type Body = Either<Full<Bytes>, Channel<Bytes, Cut>>;

/// All of an answer.
pub(crate) type Answer = Response<Body>;

/// How JSON is laid out: for `curl` in lines, for everybody else not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    Compact,
    Pretty,
}

impl Layout {
    /// As kube-apiserver decides it: `isPrettyPrint` in apiserver's
    /// `pkg/endpoints/handlers/responsewriters/writers.go`.
    pub(crate) fn of(user_agent: Option<&HeaderValue>) -> Self {
        let agent = user_agent.and_then(|agent| agent.to_str().ok()).unwrap_or_default();
        let pretty = ["curl", "Wget", "Mozilla/5.0"].iter().any(|prefix| agent.starts_with(prefix));
        if pretty { Self::Pretty } else { Self::Compact }
    }

    fn text(self, value: &Value) -> String {
        match self {
            Self::Compact => format!("{value}\n"),
            Self::Pretty => serde_json::to_string_pretty(value).unwrap_or_default(),
        }
    }
}

/// Something that was not done, as a `Status` tells it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failure {
    code: u16,
    recording: &'static str,
    status: Value,
}

impl Failure {
    /// No token that counts.
    pub(crate) fn unauthorized() -> Self {
        Self { code: 401, recording: "pod-401", status: like("pod-401", json!({})) }
    }

    /// RBAC.
    pub(crate) fn forbidden(wish: &Wish, user: &str) -> Self {
        let place = wish.namespace.as_ref().map_or("at the cluster scope".to_owned(), |namespace| {
            format!("in the namespace \"{namespace}\"")
        });
        let message = format!(
            "{} is forbidden: User \"{user}\" cannot {} resource \"{}\" in API group \"{}\" {place}",
            wish.named(),
            wish.verb.word(),
            wish.resource,
            wish.group
        );
        let status = json!({ "message": message, "details": wish.details() });
        Self { code: 403, recording: "secrets-403", status: like("secrets-403", status) }
    }

    pub(crate) fn not_found(wish: &Wish) -> Self {
        let message = format!("{} not found", wish.named());
        let status = json!({ "message": message, "details": wish.details() });
        Self { code: 404, recording: "pod-404", status: like("pod-404", status) }
    }

    /// A version that is forgotten; with the token by which the rest of a list can still be had.
    pub(crate) fn expired(message: &str, go_on: Option<String>) -> Self {
        let metadata = go_on.map_or(json!({}), |token| json!({ "continue": token }));
        let status = json!({ "metadata": metadata, "message": message, "reason": "Expired", "code": 410 });
        Self { code: 410, recording: "pod-404", status: like("watch-410", json!({ "object": status })) }
    }

    /// Any other.
    pub(crate) fn other(code: u16, reason: &str, message: &str) -> Self {
        let status = json!({ "message": message, "reason": reason, "code": code, "details": null });
        Self { code, recording: "pod-404", status: like("pod-404", status) }
    }

    /// What is wrong, in more detail.
    pub(crate) fn with(mut self, details: Value) -> Self {
        if let Some(status) = self.status.as_object_mut() {
            status.insert("details".into(), details);
        }
        self
    }

    pub(crate) fn answer(&self, layout: Layout) -> Answer {
        answer(self.code, self.recording, layout.text(&self.status))
    }

    /// The same within a watch.
    pub(crate) fn event(&self) -> Value {
        json!({ "type": "ERROR", "object": self.status })
    }
}

/// A recorded body, with other members; null takes one out.
fn like(recording: &str, other: Value) -> Value {
    let mut body = recorded(recording).map(|it| it.body.clone()).unwrap_or_default();
    let mut other = other;
    if let Some(object) = body.get_mut("object").map(Value::take) {
        (body, other) = (object, other.get_mut("object").map(Value::take).unwrap_or_default());
    }
    if let (Some(body), Value::Object(other)) = (body.as_object_mut(), other) {
        body.extend(other);
        body.retain(|_, value| !value.is_null());
    }
    body
}

/// One object.
pub(crate) fn object(object: &Value, layout: Layout) -> Answer {
    answer(200, "pod-200", layout.text(object))
}

/// A body that comes piece by piece, with the headers of that recording.
pub(crate) fn stream(recording: &str, body: Channel<Bytes, Cut>) -> Answer {
    with_headers(200, recording, Either::Right(body))
}

/// What an overloaded server says: `tooManyRequests` in apiserver's `pkg/server/filters/maxinflight.go`.
pub(crate) fn too_many_requests(retry_after: u64) -> Answer {
    let mut answer = plain(429, "Too many requests, please try again later.\n");
    answer.headers_mut().insert(RETRY_AFTER, retry_after.into());
    answer
}

/// What Go's `http.Error` makes.
pub(crate) fn plain(code: u16, text: &str) -> Answer {
    let mut answer = with_headers(code, "", Either::Left(Full::from(text.to_owned())));
    for (name, value) in
        [("content-type", "text/plain; charset=utf-8"), ("x-content-type-options", "nosniff")]
    {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

fn answer(code: u16, recording: &str, text: String) -> Answer {
    with_headers(code, recording, Either::Left(Full::from(text)))
}

fn with_headers(code: u16, recording: &str, body: Body) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = recorded(recording).map(|Recorded { headers, .. }| headers.clone());
    answer.headers_mut().extend(headers.unwrap_or_default());
    answer
}
