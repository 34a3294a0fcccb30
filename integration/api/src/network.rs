//! Connections: accepts and serves them, and simulates faults of the network; faults of single requests.

use crate::request::Verb;
use crate::response::{ApiResponse, ConnectionCut, JsonLayout, StatusError, plain, too_many_requests};
use crate::service::Service;
use http_body_util::BodyExt;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::{Backlog, Shutdown, listen, shutdown};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// The state of the network between the clients and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// Connections work.
    Open,
    /// No socket listens: connections are refused, existing ones are closed.
    Refusing,
    /// Connections are accepted; neither they nor existing ones carry data.
    Silent,
    /// Packets get lost: no connection is established, existing ones carry no data.
    Unreachable,
}

/// Longer than a connection over loopback takes to be established.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(100);

const BACKLOG: u32 = 1024;

/// The server's address in one state of the network.
pub(crate) struct Listener {
    address: SocketAddr,
    state: ListenerState,
    context: ConnectionContext,
}

/// What serves every connection.
#[derive(Clone)]
struct ConnectionContext {
    tls: TlsAcceptor,
    service: Arc<Service>,
    network: watch::Receiver<Network>,
}

enum ListenerState {
    Open(Arc<TcpListener>, JoinHandle<()>),
    /// The address is bound; no socket listens.
    Reserved(TcpSocket),
    /// The accept queue is full with a connection of the server's own.
    Full(
        Arc<TcpListener>,
        #[expect(dead_code, reason = "the open connection keeps the queue full")] Option<TcpStream>,
    ),
    /// Only while the state changes, and after a failed change.
    Changing,
}

impl Listener {
    pub(crate) fn open(
        address: SocketAddr,
        tls: TlsAcceptor,
        service: Arc<Service>,
        network: watch::Receiver<Network>,
    ) -> io::Result<Self> {
        let listener = Arc::new(bound(address)?.listen(BACKLOG)?);
        let address = listener.local_addr()?;
        let context = ConnectionContext { tls, service, network };
        let accepting = tokio::spawn(accept(Arc::clone(&listener), context.clone()));
        Ok(Self { address, state: ListenerState::Open(listener, accepting), context })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Applies a state to new connections. Existing ones watch the state themselves.
    pub(crate) async fn set_network(&mut self, network: Network) -> io::Result<()> {
        let listener = match std::mem::replace(&mut self.state, ListenerState::Changing) {
            ListenerState::Open(listener, accepting) => {
                accepting.abort();
                let _aborted = accepting.await;
                Some(listener)
            }
            ListenerState::Full(listener, _) => Some(listener),
            ListenerState::Reserved(socket) => Some(Arc::new(socket.listen(BACKLOG)?)),
            ListenerState::Changing => None,
        };
        let listener = match listener {
            Some(listener) => listener,
            None => Arc::new(bound(self.address)?.listen(BACKLOG)?),
        };
        self.state = match network {
            Network::Open | Network::Silent => {
                // On Linux a second listen(2) changes the length of the queue.
                listen(&listener, Backlog::MAXCONN)?;
                let accepting = tokio::spawn(accept(Arc::clone(&listener), self.context.clone()));
                ListenerState::Open(listener, accepting)
            }
            Network::Refusing => {
                // Closing does not suffice while a forked child of this process, before its exec, has the socket.
                shutdown(listener.as_raw_fd(), Shutdown::Read)?;
                drop(listener);
                ListenerState::Reserved(bound(self.address)?)
            }
            Network::Unreachable => {
                // A queue of length 0 holds one connection; the kernel drops further SYNs.
                listen(&listener, Backlog::new(0)?)?;
                let filler = timeout(CONNECT_TIMEOUT, TcpStream::connect(self.address)).await;
                ListenerState::Full(listener, filler.ok().transpose()?)
            }
        };
        Ok(())
    }
}

fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Allows binding again while earlier connections still close.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

async fn accept(listener: Arc<TcpListener>, context: ConnectionContext) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(context.clone().serve_while_open(stream))),
            // Out of file descriptors; an immediate retry would fail, too.
            Err(_) => tokio::time::sleep(CONNECT_TIMEOUT).await,
        }
    }
}

impl ConnectionContext {
    /// Serves one connection while the network is open. A future that is not polled sends no data.
    async fn serve_while_open(self, stream: TcpStream) {
        let mut network = self.network.clone();
        let mut served = pin!(self.serve(stream));
        loop {
            let state = *network.borrow_and_update();
            match state {
                Network::Refusing => return,
                Network::Silent | Network::Unreachable => {
                    if network.changed().await.is_err() {
                        return;
                    }
                }
                Network::Open => {
                    tokio::select! {
                        biased;
                        changed = network.changed() => if changed.is_err() { return },
                        () = &mut served => return,
                    }
                }
            }
        }
    }

    async fn serve(self, stream: TcpStream) {
        // Clients wait for each small event. Without TCP_NODELAY it is only slower.
        let _slower = stream.set_nodelay(true);
        // A client that does not trust the certificate closes the connection here.
        let Ok(stream) = self.tls.accept(stream).await else { return };
        let reused = AtomicBool::new(false);
        let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
            let (service, is_reused) = (Arc::clone(&self.service), reused.swap(true, Ordering::Relaxed));
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.map_err(|_| ConnectionCut)?.to_bytes();
                service.answer(head, &body, is_reused).await
            }
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new());
        let _client_gone = http.serve_connection(TokioIo::new(stream), service).await;
    }
}

/// A fault, which lasts until it is cleared or has happened a set number of times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    verb: Option<Verb>,
    on_reused_connections: bool,
    kind: FaultKind,
    times: Option<u32>,
}

/// What the server does with a request instead of answering it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Answers after this delay.
    Slow(Duration),
    /// Reads the request and never answers.
    Silent,
    /// Answers 429 with that many seconds in `Retry-After`.
    TooManyRequests(u64),
    /// Answers with that code: 500, 502 (as a proxy does), 503 or 504.
    Fails(u16),
    /// Closes the connection without an answer.
    Disconnects,
}

impl Fault {
    /// A fault of every request.
    pub fn always(kind: FaultKind) -> Self {
        Self { verb: None, on_reused_connections: false, kind, times: None }
    }

    /// Limits the fault to requests with that verb.
    #[must_use]
    pub fn at(mut self, verb: Verb) -> Self {
        self.verb = Some(verb);
        self
    }

    /// Limits the fault to connections that have carried a request before: a server closes idle connections,
    /// sometimes at the moment when a client uses one again.
    #[must_use]
    pub fn on_reused_connections(mut self) -> Self {
        self.on_reused_connections = true;
        self
    }

    /// Limits the number of times that the fault happens.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }
}

/// All faults in effect; the first that applies to a request happens.
#[derive(Debug, Default)]
pub(crate) struct Faults(Mutex<Vec<Fault>>);

impl Faults {
    pub(crate) fn add(&self, fault: Fault) {
        self.all().push(fault);
    }

    pub(crate) fn clear(&self) {
        self.all().clear();
    }

    /// Returns the fault of the next request, and counts it.
    pub(crate) fn next(&self, verb: Option<Verb>, reused_connection: bool) -> Option<FaultKind> {
        let mut all = self.all();
        let applies = |fault: &&mut Fault| {
            fault.times != Some(0)
                && fault.verb.is_none_or(|only| Some(only) == verb)
                && (reused_connection || !fault.on_reused_connections)
        };
        let fault = all.iter_mut().find(applies)?;
        fault.times = fault.times.map(|times| times.saturating_sub(1));
        Some(fault.kind)
    }

    fn all(&self) -> MutexGuard<'_, Vec<Fault>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FaultKind {
    /// Returns the response of a fault that consists of a response.
    pub(crate) fn response(self, layout: JsonLayout) -> Option<ApiResponse> {
        match self {
            Self::TooManyRequests(seconds) => Some(too_many_requests(seconds)),
            Self::Fails(code) => Some(failed(code, layout)),
            Self::Slow(_) | Self::Silent | Self::Disconnects => None,
        }
    }
}

/// Messages as apimachinery's `pkg/api/errors/errors.go` writes them.
fn failed(code: u16, layout: JsonLayout) -> ApiResponse {
    let (reason, message) = match code {
        500 => ("InternalError", "Internal error occurred: etcdserver: request timed out"),
        503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
        504 => ("Timeout", "Timeout: request did not complete within the allotted duration"),
        // The response of a proxy, which writes no JSON.
        _ => return plain(code, "upstream connect error or disconnect/reset before headers"),
    };
    StatusError::new(code, reason, message).response(layout)
}
