//! One question to the API server and its answer: who we are, how long it may take, and what a refusal
//! says. kube builds the requests, this carries them.
//!
//! kube's own stack is not taken because it repeats a refused request up to fifteen times for as long as
//! a server asks for, and shows a token for up to a minute after it was replaced.

use super::error::{ApiError, cut, has_hung_up};
use super::pods::LONGEST_OBJECT;
use super::token::TokenFile;
use http_body_util::{BodyExt, Collected, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, RETRY_AFTER};
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use kube::core::Status;
use kube::{Client, Config};
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tower::util::{BoxCloneService, option_layer};
use tower::{BoxError, Layer, ServiceExt, service_fn};

/// Until a connection stands.
const CONNECT: Duration = Duration::from_secs(5);
/// Until an answer begins, the connection included.
const ANSWER: Duration = Duration::from_secs(15);
/// Until what is said with a refusal has come.
const SENTENCE: Duration = Duration::from_secs(2);
/// After so long without a word the other side is asked whether it lives, this often, and given up
/// after this many times: a watch may be silent for minutes on a connection that is dead.
const KEEP_ALIVE: (Duration, Duration, u32) = (Duration::from_secs(15), Duration::from_secs(5), 3);
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);
/// An idle connection may be one that a load balancer has forgotten.
const IDLE: Duration = Duration::from_secs(5);
/// What a connection reads at once, at most: a node has better uses for memory.
const BUFFER: usize = 64 << 10;
/// Nothing that is said with a refusal is.
const LONGEST_REFUSAL: usize = 16 << 10;

/// Who carries a question, credentials of a kubeconfig included.
type Carrier = BoxCloneService<Request<Body>, Response<Incoming>, BoxError>;

/// kube's client, on a line of ours. To be called where a runtime is.
pub(super) fn client(config: &Config, token: Option<TokenFile>) -> Result<Client, kube::Error> {
    let https = config.rustls_https_connector_with_connector(tcp())?;
    let connections = |idle| {
        legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(idle)
            .http1_max_buf_size(BUFFER)
            .build::<_, Body>(https.clone())
    };
    let (kept, new) = (connections(usize::MAX), connections(0));
    let http = service_fn(move |request| carry(kept.clone(), new.clone(), request));
    let headers = config.extra_headers_layer()?.layer(http);
    // A kubeconfig's password, token or program; a token in a file is ours to read.
    let authorized = BoxCloneService::new(option_layer(config.auth_layer()?).layer(headers));
    let token = Arc::new(token);
    let line = service_fn(move |request: Request<Body>| {
        let (authorized, token) = (authorized.clone(), Arc::clone(&token));
        async move { Ok::<_, BoxError>(ask(authorized, token.as_ref().as_ref(), request).await?) }
    });
    Ok(Client::new(config.base_uri_layer().layer(line), config.default_namespace.clone()))
}

fn tcp() -> HttpConnector {
    let (after, every, times) = KEEP_ALIVE;
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.set_keepalive(Some(after));
    tcp.set_keepalive_interval(Some(every));
    tcp.set_keepalive_retries(Some(times));
    tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    tcp
}

/// Carries a question over a connection that was kept, if there is one; and once more over a new one when
/// it was closed before a word came back: a server may do that at any moment, and with that very one.
async fn carry<C>(
    kept: legacy::Client<C, Body>,
    new: legacy::Client<C, Body>,
    request: Request<Body>,
) -> Result<Response<Incoming>, BoxError>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    // Only GETs leave this program: there is no body, and to ask twice is to ask once.
    let (question, _) = request.into_parts();
    let asked =
        |by: legacy::Client<C, Body>| by.request(Request::from_parts(question.clone(), Body::empty()));
    match asked(kept).await {
        Err(fault) if has_hung_up(&fault) => Ok(asked(new).await?),
        answer => Ok(answer?),
    }
}

/// Asks, and asks once more when the token was refused and the file has another by now.
async fn ask(
    carrier: Carrier,
    token: Option<&TokenFile>,
    request: Request<Body>,
) -> Result<Response<Incoming>, ApiError> {
    let (mut question, _) = request.into_parts();
    let mut shown = None;
    loop {
        if let Some(token) = token {
            question.headers.insert(AUTHORIZATION, token.bearer()?);
        }
        let request = Request::from_parts(question.clone(), Body::empty());
        let answer = timeout(ANSWER, carrier.clone().oneshot(request)).await;
        let answer =
            answer.map_err(|_| ApiError::Late(ANSWER))?.map_err(|fault| ApiError::broken(&*fault))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let before = shown.replace(question.headers.get(AUTHORIZATION).cloned());
        let refused = answer.status() == StatusCode::UNAUTHORIZED;
        let another = token.is_some_and(|token| token.bearer().ok() != shown.clone().flatten());
        if !(refused && another && before.is_none()) {
            return Err(refusal(answer).await);
        }
    }
}

async fn refusal(answer: Response<Incoming>) -> ApiError {
    let status = answer.status();
    let retry_after = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let body = timeout(SENTENCE, Limited::new(answer.into_body(), LONGEST_REFUSAL).collect()).await;
    let body = body.ok().and_then(Result::ok).map(Collected::to_bytes).unwrap_or_default();
    let said = serde_json::from_slice(&body).map(|status: Status| (status.message, status.reason));
    let text = |_| (String::from_utf8_lossy(&body).trim().to_owned(), String::new());
    let (said, reason) = said.unwrap_or_else(text);
    let named = status.canonical_reason().unwrap_or("no reason");
    ApiError::Refused {
        status: status.as_u16(),
        reason: cut(&reason),
        sentence: cut(if said.is_empty() { named } else { &said }),
        retry_after: retry_after.map(Duration::from_secs),
    }
}

/// One object.
pub(super) async fn object<T: DeserializeOwned>(
    client: &Client,
    request: Request<Vec<u8>>,
) -> Result<T, ApiError> {
    let answer = client.send(request.map(Body::from)).await?;
    let body = Limited::new(answer.into_body(), LONGEST_OBJECT).collect().await;
    let bytes = body.map_err(|fault| ApiError::broken(&*fault))?.to_bytes();
    serde_json::from_slice(&bytes).map_err(|_| ApiError::Nonsense("is no object of its kind"))
}
