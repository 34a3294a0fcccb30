//! HTTP for health and metrics: one thread, with bounded connections and deadlines.

use crate::agent_status::{PortPurpose, TakenPort};
use crate::error::errno;
use crate::host::settings::Listen;
use crate::lead::socket::SocketContext;
use futures::future::{join_all, poll_fn, select};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::Ipv6V6Only;
use serde::Serialize;
use serde_json::json;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;

/// The number of connections of each server. A further one drops the oldest, which is most likely idle: a request takes
/// little time, and idle connections must not delay the kubelet's probes.
const MAX_CONNECTIONS: usize = 16;
/// The deadline of a connection.
const TIMEOUT: Duration = Duration::from_secs(5);
/// hyper's smallest buffer: a request has two lines.
const MAX_REQUEST: usize = 8192;
/// The number of connections that the kernel queues until they are accepted.
const BACKLOG: u32 = 128;
/// The time between two attempts to bind a port that another process has.
const BIND_RETRY: Duration = Duration::from_millis(500);

/// Prometheus' text format, version 0.0.4.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Page {
    status: u16,
    media_type: &'static str,
    text: String,
}

impl Page {
    pub(crate) fn ok(text: impl Into<String>) -> Self {
        Self { status: 200, media_type: TEXT, text: text.into() }
    }

    pub(crate) fn unavailable(text: impl Into<String>) -> Self {
        Self { status: 503, media_type: TEXT, text: text.into() }
    }

    pub(crate) fn metrics(text: String) -> Self {
        Self { status: 200, media_type: METRICS, text }
    }

    pub(crate) fn json(value: &impl Serialize) -> Self {
        Self { status: 200, media_type: JSON, text: format!("{:#}\n", json!(value)) }
    }

    pub(crate) fn not_found() -> Self {
        Self { status: 404, media_type: TEXT, text: "not found\n".to_owned() }
    }

    fn method_not_allowed() -> Self {
        Self { status: 405, media_type: TEXT, text: "only GET\n".to_owned() }
    }
}

/// What one listening address serves.
#[derive(Clone, Copy)]
pub(crate) struct Server<'a> {
    pub(crate) listen: Listen,
    /// Returns the page at a path.
    pub(crate) page: &'a (dyn Fn(&str) -> Page + Sync),
    pub(crate) purpose: PortPurpose,
}

type HttpConnection<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Serves until `end` is sent or dropped.
pub(crate) fn serve(
    servers: &[Server<'_>],
    end: oneshot::Receiver<()>,
    context: SocketContext<'_>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let all = join_all(servers.iter().map(|server| accept(*server, context)));
    runtime.block_on(select(pin!(all), end));
    servers.iter().for_each(|server| context.health.set_port(server.purpose, None));
    Ok(())
}

async fn accept(server: Server<'_>, context: SocketContext<'_>) {
    let listener = bind(server, context).await;
    let mut connections: VecDeque<HttpConnection<'_>> = VecDeque::with_capacity(MAX_CONNECTIONS);
    loop {
        let accepted = poll_fn(|context| {
            connections.retain_mut(|connection| connection.as_mut().poll(context).is_pending());
            listener.poll_accept(context)
        });
        match accepted.await {
            Ok((stream, _)) => {
                if connections.len() == MAX_CONNECTIONS {
                    drop(connections.pop_front());
                }
                connections.push_back(Box::pin(respond(stream, server)));
                // A request that has arrived is read before the next connection is accepted.
                tokio::task::yield_now().await;
            }
            // Most likely the process has no free descriptor, until a connection ends.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn bind(server: Server<'_>, SocketContext { log, health, .. }: SocketContext<'_>) -> TcpListener {
    let mut is_logged = false;
    loop {
        let mut last = None;
        for address in server.listen.addresses() {
            match listener(address) {
                Ok(listener) => {
                    let address = listener.local_addr().unwrap_or(address).to_string();
                    log.info(
                        "gybe node: listens",
                        json!({ "for": server.purpose.name(), "address": address }),
                    );
                    health.set_port(server.purpose, None);
                    return listener;
                }
                Err(why) => last = Some((address, why)),
            }
        }
        if let Some((address, why)) = last.filter(|_| !is_logged) {
            let why = errno(&why).desc().to_owned();
            let fields = json!({ "for": server.purpose.name(), "address": address.to_string(), "why": why });
            log.error("gybe node: cannot listen; trying again", fields);
            let purpose = server.purpose;
            health.set_port(purpose, Some(TakenPort { purpose, address, why }));
            is_logged = true;
        }
        tokio::time::sleep(BIND_RETRY).await;
    }
}

/// Binds as `TcpListener::bind` does, but `[::]` accepts IPv4 for any value of `net.ipv6.bindv6only` (ipv6(7)): the
/// kubelet connects to the node's address, of either family.
fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => {
            let socket = TcpSocket::new_v6()?;
            setsockopt(&socket, Ipv6V6Only, &false)?;
            socket
        }
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Answers one request, and closes the connection.
async fn respond(stream: TcpStream, server: Server<'_>) {
    let service = service_fn(|request: Request<Incoming>| async move {
        Ok::<_, Infallible>(response(match *request.method() {
            Method::GET | Method::HEAD => (server.page)(request.uri().path()),
            _ => Page::method_not_allowed(),
        }))
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(TIMEOUT)
        .keep_alive(false)
        .max_buf_size(MAX_REQUEST)
        .serve_connection(TokioIo::new(stream), service);
    // An error means that the client closed the connection, which is not logged.
    let _ = tokio::time::timeout(TIMEOUT, served).await;
}

fn response(page: Page) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(page.text)));
    *response.status_mut() = StatusCode::from_u16(page.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let media_type = hyper::header::HeaderValue::from_static(page.media_type);
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, media_type);
    response
}
