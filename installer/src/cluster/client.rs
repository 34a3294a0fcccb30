//! The transport of requests to the API server: credentials, deadlines, and the reasons of error responses. kube builds
//! the requests.
//!
//! kube's own transport is not used because it retries a refused request up to fifteen times, each time after the delay
//! that the server requests, and sends a token for up to a minute after it was replaced.

use super::error::{ApiError, has_hung_up, truncate};
use super::pod_requests::MAX_OBJECT;
use gybe_plugin::bounded_read;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderValue, RETRY_AFTER};
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use kube::core::Status;
use kube::{Client, Config};
use serde::de::DeserializeOwned;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::timeout;
use tower::util::{BoxCloneService, option_layer};
use tower::{BoxError, Layer, ServiceExt, service_fn};

/// The deadline of a TCP connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The deadline of the response's header, from the start of the connection.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);
/// The deadline of an error response's body.
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(2);
/// TCP keep-alive: a watch may be silent for minutes on a connection that is dead.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(15);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_ALIVE_PROBES: u32 = 3;
/// `TCP_USER_TIMEOUT`: how long sent data may stay unacknowledged.
const USER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an idle connection is kept: a load balancer may drop its state of an older one.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// The read buffer of a connection; hyper's default would take more of the node's memory.
const READ_BUFFER: usize = 64 << 10;
/// The bytes that are read of an error response's body; of a longer one, its beginning is reported.
const MAX_ERROR_BODY: usize = 16 << 10;

/// Bytes; larger than any token.
const MAX_TOKEN: u64 = 64 << 10;

/// A file with a bearer token, and the token last read from it. The kubelet renews the token before it expires, so the
/// file is read for every request: requests are rare, and a read from tmpfs takes microseconds. kube would cache the
/// token for 50 seconds of wall-clock time, even after the API server has refused it.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    /// Marked as sensitive: its `Debug` omits the value.
    last: Mutex<Option<HeaderValue>>,
}

impl TokenFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, last: Mutex::default() }
    }

    /// Returns the `Authorization` header with the file's token, or with the last one while the file cannot be read.
    pub(crate) fn bearer(&self) -> Result<HeaderValue, ApiError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match self.read() {
            Ok(header) => Ok(last.insert(header).clone()),
            Err(cause) => last.clone().ok_or_else(|| ApiError::Token {
                path: self.path.display().to_string(),
                cause: cause.to_string(),
            }),
        }
    }

    fn read(&self) -> io::Result<HeaderValue> {
        let (file, _) = bounded_read::open_file(&self.path)?;
        let mut text = String::new();
        file.take(MAX_TOKEN).read_to_string(&mut text)?;
        let token = text.trim();
        let no_token = || io::Error::other("it contains no token");
        if token.is_empty() || token.chars().any(char::is_whitespace) {
            return Err(no_token());
        }
        let mut header = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| no_token())?;
        header.set_sensitive(true);
        Ok(header)
    }
}

/// The transport that adds the credentials of a kubeconfig; [`authenticate`] adds those of a token file.
type HttpTransport = BoxCloneService<Request<Body>, Response<Incoming>, BoxError>;

/// Returns kube's client with this transport. Call it in the context of a tokio runtime.
pub(crate) fn client(config: &Config, token: Option<TokenFile>) -> Result<Client, kube::Error> {
    let https = config.rustls_https_connector_with_connector(tcp())?;
    let connections = |max_idle| {
        legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(max_idle)
            .http1_max_buf_size(READ_BUFFER)
            .build::<_, Body>(https.clone())
    };
    let (pooled, new) = (connections(usize::MAX), connections(0));
    let http = service_fn(move |request| send(pooled.clone(), new.clone(), request));
    let headers = config.extra_headers_layer()?.layer(http);
    // The password, token or program of a kubeconfig. `authenticate` reads a token file.
    let transport = BoxCloneService::new(option_layer(config.auth_layer()?).layer(headers));
    let token = Arc::new(token);
    let authenticated = service_fn(move |request: Request<Body>| {
        let (transport, token) = (transport.clone(), Arc::clone(&token));
        async move { Ok::<_, BoxError>(authenticate(transport, token.as_ref().as_ref(), request).await?) }
    });
    Ok(Client::new(config.base_uri_layer().layer(authenticated), config.default_namespace.clone()))
}

fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(KEEP_ALIVE_AFTER));
    tcp.set_keepalive_interval(Some(KEEP_ALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEP_ALIVE_PROBES));
    tcp.set_tcp_user_timeout(Some(USER_TIMEOUT));
    tcp
}

/// Sends a request over a pooled connection, and again over a new one if the server closed the pooled one before it
/// responded: a server may close an idle connection at any moment.
async fn send<C>(
    pooled: legacy::Client<C, Body>,
    new: legacy::Client<C, Body>,
    request: Request<Body>,
) -> Result<Response<Incoming>, BoxError>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    // Every request may be repeated: a GET, a merge patch, the creation of a named object (the repetition gets 409),
    // the deletion of a pod by its uid (404 or 409). Bodies are small and in memory.
    let (head, body) = request.into_parts();
    let body = body.collect_bytes().await?;
    let send = |client: legacy::Client<C, Body>| {
        client.request(Request::from_parts(head.clone(), Body::from(body.clone())))
    };
    match send(pooled).await {
        Err(fault) if has_hung_up(&fault) => Ok(send(new).await?),
        response => Ok(response?),
    }
}

/// Sends a request with the file's token, and once more if the server refused the token (401) and the file now contains
/// another.
async fn authenticate(
    transport: HttpTransport,
    token: Option<&TokenFile>,
    request: Request<Body>,
) -> Result<Response<Incoming>, ApiError> {
    let (mut head, body) = request.into_parts();
    let body = body.collect_bytes().await?;
    let mut is_retry = false;
    loop {
        let sent = token.map(TokenFile::bearer).transpose()?;
        if let Some(bearer) = &sent {
            head.headers.insert(AUTHORIZATION, bearer.clone());
        }
        let request = Request::from_parts(head.clone(), Body::from(body.clone()));
        let response = timeout(RESPONSE_TIMEOUT, transport.clone().oneshot(request)).await;
        let response = response.map_err(|_| ApiError::Late(RESPONSE_TIMEOUT))?;
        let response = response.map_err(|fault| ApiError::broken(&*fault))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let is_refused = response.status() == StatusCode::UNAUTHORIZED;
        let is_renewed = token.is_some_and(|token| token.bearer().ok() != sent);
        if is_retry || !is_refused || !is_renewed {
            return Err(refusal(response).await);
        }
        is_retry = true;
    }
}

/// Converts an error response to an error.
async fn refusal(response: Response<Incoming>) -> ApiError {
    let status = response.status();
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let body = error_body(response.into_body()).await;
    let parsed = serde_json::from_slice(&body).map(|body: Status| (body.message, body.reason));
    let plain_text = |_| (String::from_utf8_lossy(&body).trim().to_owned(), String::new());
    let (message, reason) = parsed.unwrap_or_else(plain_text);
    let phrase = status.canonical_reason().unwrap_or("no reason");
    ApiError::Refused {
        status: status.as_u16(),
        reason: truncate(&reason),
        sentence: truncate(if message.is_empty() { phrase } else { &message }),
        retry_after: retry_after.map(Duration::from_secs),
    }
}

/// Receives what arrives of an error response's body in time, up to the limit.
async fn error_body(mut body: Incoming) -> Vec<u8> {
    let mut received = Vec::new();
    let receive = async {
        while let Some(Ok(frame)) = body.frame().await
            && received.len() < MAX_ERROR_BODY
        {
            received.extend(frame.into_data().unwrap_or_default());
        }
    };
    // An error response may lack its end.
    let _ = timeout(ERROR_BODY_TIMEOUT, receive).await;
    received.truncate(MAX_ERROR_BODY);
    received
}

/// Sends a request for one object and parses the response.
pub(crate) async fn object<T: DeserializeOwned>(
    client: &Client,
    request: Request<Vec<u8>>,
) -> Result<T, ApiError> {
    let response = client.send(request.map(Body::from)).await?;
    let body = Limited::new(response.into_body(), MAX_OBJECT).collect().await;
    let bytes = body.map_err(|fault| ApiError::broken(&*fault))?.to_bytes();
    serde_json::from_slice(&bytes).map_err(|_| ApiError::Unreadable("is not an object of the requested kind"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_test_support::TestDir;

    #[test]
    fn f02_the_files_token_is_sent_and_the_last_one_while_it_cannot_be_read() {
        let directory = TestDir::new("token");
        let path = directory.join("token");
        let file = TokenFile::new(path.clone());
        assert!(matches!(file.bearer(), Err(ApiError::Token { .. })));
        for token in ["one", "two\n", "three"] {
            std::fs::write(&path, token).unwrap();
            assert_eq!(file.bearer().unwrap(), format!("Bearer {}", token.trim()));
        }
        for nothing in ["", "\n", "a b", "a\u{1}b"] {
            std::fs::write(&path, nothing).unwrap();
            assert_eq!(file.bearer().unwrap(), "Bearer three", "{nothing:?}");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.bearer().unwrap(), "Bearer three");
        assert!(!format!("{file:?}").contains("three"));
    }
}
