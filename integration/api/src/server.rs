//! The server's life: a thread of its own, from its start until the value goes.

use crate::network::{Door, Network};
use crate::service::Service;
use crate::tls::{Identity, TlsError};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ApiServerError {
    /// Its address, thread or sockets.
    #[error("cannot run an API server at {address}")]
    Run {
        /// Where.
        address: IpAddr,
        /// Why not.
        source: io::Error,
    },
    /// Its certificate.
    #[error("cannot run an API server without TLS")]
    Tls(#[from] TlsError),
    /// A file for its clients.
    #[error("cannot write {}", .path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// An object that says to be of a kind not kept here.
    #[error("no {0} is kept by this API server")]
    Kind(String),
}

/// An API server, gone with the value.
#[derive(Debug)]
pub struct ApiServer {
    address: SocketAddr,
    pub(crate) identity: Arc<Identity>,
    pub(crate) service: Arc<Service>,
    orders: Option<UnboundedSender<Order>>,
    thread: Option<JoinHandle<()>>,
}

/// A change of the wire, and who waits for it.
type Order = (Network, mpsc::Sender<io::Result<()>>);

impl ApiServer {
    /// One at 127.0.0.1.
    ///
    /// # Errors
    /// When there is no address, thread or certificate to be had.
    pub fn start() -> Result<Self, ApiServerError> {
        Self::start_at(Ipv4Addr::LOCALHOST.into())
    }

    /// One at that address of this machine, at a port of the kernel's choice.
    ///
    /// # Errors
    /// When there is no address, thread or certificate to be had.
    pub fn start_at(address: IpAddr) -> Result<Self, ApiServerError> {
        let identity = Identity::new(address)?;
        let (service, tls) = (Arc::new(Service::new()), TlsAcceptor::from(identity.server()?));
        let (orders, received) = unbounded_channel();
        let (tell, told) = mpsc::channel();
        let failed = |source| ApiServerError::Run { address, source };
        let inside = Arc::clone(&service);
        let run = move || {
            let ready = |ready| drop(tell.send(ready));
            run(address, (tls, inside), received, ready);
        };
        let thread = thread::Builder::new().name("api-server".into()).spawn(run).map_err(failed)?;
        let answered = told.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
        let (address, orders, thread) = (answered.map_err(failed)?, Some(orders), Some(thread));
        Ok(Self { address, identity, service, orders, thread })
    }

    /// Where it listens, as `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT` tell a pod.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as a kubeconfig writes it.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The authority that signs its certificates.
    pub fn ca_pem(&self) -> String {
        self.identity.ca_pem()
    }

    /// Makes the way to the server so; when it returns, it is.
    ///
    /// # Errors
    /// When the kernel does not give the address back.
    pub fn network(&self, network: Network) -> Result<(), ApiServerError> {
        let (done, wait) = mpsc::channel();
        let sent = self.orders.as_ref().is_some_and(|orders| orders.send((network, done)).is_ok());
        let turned = if sent { wait.recv().ok() } else { None };
        let turned = turned.unwrap_or_else(|| Err(io::ErrorKind::BrokenPipe.into()));
        turned.map_err(|source| ApiServerError::Run { address: self.address.ip(), source })
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// The thread: it ends when nobody can give orders any more, and all connections with it.
fn run(
    address: IpAddr,
    (tls, service): (TlsAcceptor, Arc<Service>),
    mut orders: UnboundedReceiver<Order>,
    ready: impl FnOnce(io::Result<SocketAddr>),
) {
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(why) => return ready(Err(why)),
    };
    runtime.block_on(async {
        let wire = watch::Sender::new(Network::Open);
        let mut door = match Door::open((address, 0).into(), tls, (service, wire.subscribe())) {
            Ok(door) => door,
            Err(why) => return ready(Err(why)),
        };
        ready(Ok(door.address()));
        while let Some((network, done)) = orders.recv().await {
            wire.send_replace(network);
            let _gone = done.send(door.turn(network).await);
        }
    });
}
