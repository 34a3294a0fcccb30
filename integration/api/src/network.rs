//! The wire: how connections come in, and what can be wrong before a request is read.

use crate::service::Service;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::{Backlog, Shutdown, listen, shutdown};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// The way to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// As it should be.
    Open,
    /// Nobody listens: connections are refused, and those that stand are cut.
    Refusing,
    /// Connections are made, and nothing is ever said on them, nor on those that stand.
    Mute,
    /// Packets get lost: no connection is made, and those that stand fall silent.
    Unreachable,
}

/// Longer than any connection over loopback takes that is made at all.
const MADE_WITHIN: Duration = Duration::from_millis(100);

const BACKLOG: u32 = 1024;

/// The one address, in one state or another.
pub(crate) struct Door {
    address: SocketAddr,
    state: State,
    guest: Guest,
}

/// What every connection is given.
#[derive(Clone)]
struct Guest {
    tls: TlsAcceptor,
    service: Arc<Service>,
    wire: watch::Receiver<Network>,
}

enum State {
    Open(Arc<TcpListener>, JoinHandle<()>),
    /// The address is kept, and not listened at.
    Reserved(TcpSocket),
    /// The queue is full with a connection of our own.
    Full(
        Arc<TcpListener>,
        #[expect(dead_code, reason = "it fills the queue as long as it lives")] Option<TcpStream>,
    ),
    Between,
}

impl Door {
    pub(crate) fn open(
        address: SocketAddr,
        tls: TlsAcceptor,
        (service, wire): (Arc<Service>, watch::Receiver<Network>),
    ) -> io::Result<Self> {
        let listener = Arc::new(bound(address)?.listen(BACKLOG)?);
        let address = listener.local_addr()?;
        let guest = Guest { tls, service, wire };
        let accepting = tokio::spawn(accept(Arc::clone(&listener), guest.clone()));
        Ok(Self { address, state: State::Open(listener, accepting), guest })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes it so for connections to come; those that stand follow the wire by themselves.
    pub(crate) async fn turn(&mut self, to: Network) -> io::Result<()> {
        let listener = match std::mem::replace(&mut self.state, State::Between) {
            State::Open(listener, accepting) => {
                accepting.abort();
                let _aborted = accepting.await;
                Some(listener)
            }
            State::Full(listener, _) => Some(listener),
            State::Reserved(socket) => Some(Arc::new(socket.listen(BACKLOG)?)),
            State::Between => None,
        };
        let listener = match listener {
            Some(listener) => listener,
            None => Arc::new(bound(self.address)?.listen(BACKLOG)?),
        };
        self.state = match to {
            Network::Open | Network::Mute => {
                // Linux takes a second listen(2) for another length of the queue.
                listen(&listener, Backlog::MAXCONN)?;
                let accepting = tokio::spawn(accept(Arc::clone(&listener), self.guest.clone()));
                State::Open(listener, accepting)
            }
            Network::Refusing => {
                // To close it is not enough while a child of this process is on its way from fork to exec.
                shutdown(listener.as_raw_fd(), Shutdown::Read)?;
                drop(listener);
                State::Reserved(bound(self.address)?)
            }
            Network::Unreachable => {
                // A queue of length 0 holds one; the SYN of whoever comes then is dropped.
                listen(&listener, Backlog::new(0)?)?;
                let filler = timeout(MADE_WITHIN, TcpStream::connect(self.address)).await;
                State::Full(listener, filler.ok().transpose()?)
            }
        };
        Ok(())
    }
}

fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // So that it can be had again while connections of before are still going.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

async fn accept(listener: Arc<TcpListener>, guest: Guest) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(guest.clone().entertain(stream))),
            // No file descriptor is left; the next try would fail as fast.
            Err(_) => tokio::time::sleep(MADE_WITHIN).await,
        }
    }
}

impl Guest {
    /// Serves one connection as long as the wire carries it. What is not polled says nothing.
    async fn entertain(self, stream: TcpStream) {
        let mut wire = self.wire.clone();
        let mut served = pin!(self.serve(stream));
        loop {
            let state = *wire.borrow_and_update();
            match state {
                Network::Refusing => return,
                Network::Mute | Network::Unreachable => {
                    if wire.changed().await.is_err() {
                        return;
                    }
                }
                Network::Open => {
                    tokio::select! {
                        biased;
                        changed = wire.changed() => if changed.is_err() { return },
                        () = &mut served => return,
                    }
                }
            }
        }
    }

    async fn serve(self, stream: TcpStream) {
        // Events are small, and each is waited for.
        let _slower = stream.set_nodelay(true);
        // A client that does not trust us goes away here.
        let Ok(stream) = self.tls.accept(stream).await else { return };
        let kept = AtomicBool::new(false);
        let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
            let (head, _) = request.into_parts();
            Arc::clone(&self.service).answer(head, kept.swap(true, Ordering::Relaxed))
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new());
        let _gone = http.serve_connection(TokioIo::new(stream), service).await;
    }
}
