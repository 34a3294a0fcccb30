//! Errors of requests to the API server. From a library's error they keep only text that cannot contain a credential.

use http_body_util::LengthLimitError;
use hyper::StatusCode;
use hyper_util::client::legacy;
use std::error::Error;
use std::io;
use std::time::Duration;

/// Why a request to the API server has no usable response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// There is no connection, or it broke: refused, unreachable, or its certificate is not trusted.
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
    /// No response arrived before the deadline.
    #[error("the API server did not answer within {} ms", .0.as_millis())]
    Late(Duration),
    /// The status is an error.
    #[error("the API server responded {status}: {sentence}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The reason in its `Status`, for programs; empty if it sent none.
        reason: String,
        /// The server's message, truncated.
        sentence: String,
        /// The delay that the server requests (RFC 9110, Retry-After, in seconds).
        retry_after: Option<Duration>,
    },
    /// The response cannot be parsed.
    #[error("the API server's answer {0}")]
    Unreadable(&'static str),
    /// There is no token to send.
    #[error("the token {path} cannot be used: {cause}")]
    Token { path: String, cause: String },
}

impl ApiError {
    /// Returns the HTTP status, if there was a response.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Reports whether the object does not exist.
    pub fn is_missing(&self) -> bool {
        self.status() == Some(StatusCode::NOT_FOUND.as_u16())
    }

    /// Reports whether the API server stated that the object does not exist. A proxy, or a server that does not know
    /// the kind, also responds 404, but without that reason (apimachinery's `StatusReasonNotFound`, with details of the
    /// object).
    pub fn is_not_found(&self) -> bool {
        self.is_missing() && matches!(self, Self::Refused { reason, .. } if reason == "NotFound")
    }

    /// Reports whether the response is a `Status` with a reason, as the API server sends it.
    pub(crate) fn has_reason(&self) -> bool {
        matches!(self, Self::Refused { reason, .. } if !reason.is_empty())
    }

    /// Reports whether the server refused our identity or our rights.
    pub fn is_forbidden(&self) -> bool {
        matches!(self.status(), Some(401 | 403))
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Converts the error of a body that ended early.
    pub(crate) fn broken(fault: &(dyn Error + 'static)) -> Self {
        if layers(fault).any(<dyn Error>::is::<LengthLimitError>) {
            return Self::Unreadable("is longer than the limit");
        }
        Self::Unreachable(describe(fault))
    }
}

impl From<kube::Error> for ApiError {
    fn from(fault: kube::Error) -> Self {
        match fault {
            // An error of `client` passes through kube unchanged.
            kube::Error::Service(fault) => match fault.downcast::<Self>() {
                Ok(ours) => *ours,
                Err(other) => Self::Unreachable(describe(&*other)),
            },
            kube::Error::Api(status) => {
                let (reason, sentence) = (truncate(&status.reason), truncate(&status.message));
                Self::Refused { status: status.code, reason, sentence, retry_after: None }
            }
            kube::Error::HyperError(fault) => Self::Unreachable(describe(&fault)),
            _ => Self::Unreadable("cannot be read"),
        }
    }
}

/// Reports whether the server closed an established connection before it responded.
pub(crate) fn has_hung_up(fault: &legacy::Error) -> bool {
    let closed = |layer: &(dyn Error + 'static)| match layer.downcast_ref::<hyper::Error>() {
        Some(fault) => fault.is_incomplete_message() || fault.is_canceled() || fault.is_closed(),
        None => layer.downcast_ref::<io::Error>().is_some_and(|fault| {
            use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
            matches!(fault.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
        }),
    };
    !fault.is_connect() && layers(fault).any(closed)
}

/// The length of a message in characters; the plugin truncates it further.
const MAX_MESSAGE: usize = 200;

pub(crate) fn truncate(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_MESSAGE).collect()
}

/// Joins the layers of an error. The outermost often states only that a request failed, some repeat the next one's
/// text, and rustls appends a URL.
fn describe(fault: &(dyn Error + 'static)) -> String {
    let mut parts: Vec<String> = Vec::new();
    for layer in layers(fault).map(ToString::to_string) {
        let text = layer.split(": http").next().unwrap_or_default();
        let is_new = parts.last().is_none_or(|before| !before.contains(text));
        if is_new && !(text.starts_with("client error") && fault.source().is_some()) {
            parts.push(text.to_owned());
        }
    }
    truncate(&parts.join(": "))
}

fn layers<'a>(fault: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(fault), |&fault| fault.source())
}
