//! Why the API server told nothing: one kind for everything that is asked of it.
//!
//! Of what libraries say only such words are kept as cannot hold a credential.

use http_body_util::LengthLimitError;
use hyper::StatusCode;
use hyper_util::client::legacy;
use std::error::Error;
use std::io;
use std::time::Duration;

/// Why a question to the API server has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// No connection, or it broke: refused, unreachable, no TLS we believe.
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
    /// There is somebody, and nothing comes.
    #[error("the API server did not answer within {} ms", .0.as_millis())]
    Late(Duration),
    /// It said no.
    #[error("the API server said {status}: {sentence}")]
    Refused {
        /// HTTP's status code.
        status: u16,
        /// The reason in its `Status`, a word for programs; empty where it sent none.
        reason: String,
        /// Its own words, cut.
        sentence: String,
        /// How long it wants to be left alone (RFC 9110, Retry-After, in seconds).
        retry_after: Option<Duration>,
    },
    /// It said what nobody understands.
    #[error("the API server's answer {0}")]
    Nonsense(&'static str),
    /// There is nothing to show it.
    #[error("the token {path} cannot be used: {cause}")]
    Token {
        /// The file.
        path: String,
        /// What is wrong with it.
        cause: String,
    },
}

impl ApiError {
    /// HTTP's status code, where there was an answer.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether it is asked about something that is not there.
    pub fn is_missing(&self) -> bool {
        self.status() == Some(StatusCode::NOT_FOUND.as_u16())
    }

    /// Whether the API server itself says so. Something in between, or a server that lacks the whole kind,
    /// says 404 too, but not that (apimachinery's `StatusReasonNotFound`, with details of the object).
    pub fn is_not_found(&self) -> bool {
        self.is_missing() && matches!(self, Self::Refused { reason, .. } if reason == "NotFound")
    }

    /// Whether it does not know us, or does not let us.
    pub fn is_forbidden(&self) -> bool {
        matches!(self.status(), Some(401 | 403))
    }

    /// How long it wants to be left alone.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// What broke a body off.
    pub(super) fn broken(fault: &(dyn Error + 'static)) -> Self {
        if layers(fault).any(<dyn Error>::is::<LengthLimitError>) {
            return Self::Nonsense("is longer than any we take");
        }
        Self::Unreachable(told(fault))
    }
}

impl From<kube::Error> for ApiError {
    fn from(fault: kube::Error) -> Self {
        match fault {
            // What `line` says goes through kube as it is.
            kube::Error::Service(fault) => match fault.downcast::<Self>() {
                Ok(ours) => *ours,
                Err(other) => Self::Unreachable(told(&*other)),
            },
            kube::Error::Api(status) => {
                let (reason, sentence) = (cut(&status.reason), cut(&status.message));
                Self::Refused { status: status.code, reason, sentence, retry_after: None }
            }
            kube::Error::HyperError(fault) => Self::Unreachable(told(&fault)),
            _ => Self::Nonsense("is none that can be read"),
        }
    }
}

/// Whether the other side closed a connection that stood, with no answer begun that can be read.
pub(super) fn has_hung_up(fault: &legacy::Error) -> bool {
    let closed = |layer: &(dyn Error + 'static)| match layer.downcast_ref::<hyper::Error>() {
        Some(fault) => fault.is_incomplete_message() || fault.is_canceled() || fault.is_closed(),
        None => layer.downcast_ref::<io::Error>().is_some_and(|fault| {
            use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
            matches!(fault.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
        }),
    };
    !fault.is_connect() && layers(fault).any(closed)
}

/// So much of a sentence goes on; the plugin passes on even less.
const LONGEST: usize = 200;

pub(super) fn cut(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST).collect()
}

/// The inner layers say it; the outermost only that something failed, some repeat the next one's words,
/// and rustls recommends a page to read.
fn told(fault: &(dyn Error + 'static)) -> String {
    let mut said: Vec<String> = Vec::new();
    for layer in layers(fault).map(ToString::to_string) {
        let words = layer.split(": http").next().unwrap_or_default();
        let news = said.last().is_none_or(|before| !before.contains(words));
        if news && !(words.starts_with("client error") && fault.source().is_some()) {
            said.push(words.to_owned());
        }
    }
    cut(&said.join(": "))
}

fn layers<'a>(fault: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(fault), |&fault| fault.source())
}
