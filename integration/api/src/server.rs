//! The server's life: a thread of its own, from its start until the value goes.

use crate::credentials::{self, ServiceAccount};
use crate::faults::Fault;
use crate::network::{Door, Network};
use crate::objects::key;
use crate::requests::Request;
use crate::resource::Resource;
use crate::service::Service;
use crate::tls::{Identity, TlsError};
use crate::tokens::{Token, Tokens};
use crate::validity::Validity;
use crate::watch::Nudge;
use crate::wish::Verb;
use serde_json::Value;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;
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
    identity: Arc<Identity>,
    service: Arc<Service>,
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

    /// Presents a certificate of that validity from the next handshake on.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn present(&self, validity: Validity) -> Result<(), ApiServerError> {
        Ok(self.identity.present(validity)?)
    }

    /// Makes or overwrites an object: a pod, or what its `kind` says, Node or `DaemonSet`. Gives its
    /// version.
    ///
    /// # Errors
    /// When its kind is another.
    pub fn put(&self, object: Value) -> Result<u64, ApiServerError> {
        let kind = object.get("kind").and_then(Value::as_str);
        let resource = Resource::of_kind(kind)
            .ok_or_else(|| ApiServerError::Kind(kind.unwrap_or_default().to_owned()))?;
        Ok(self.service.objects.put(resource, object))
    }

    /// Makes or overwrites a pod, and gives its version.
    pub fn put_pod(&self, pod: Value) -> u64 {
        self.service.objects.put(Resource::Pods, pod)
    }

    /// Takes a pod away; whether there was one.
    pub fn delete_pod(&self, namespace: &str, name: &str) -> bool {
        self.service.objects.delete(Resource::Pods, &(namespace.to_owned(), name.to_owned()))
    }

    /// Takes away what has that object's kind, namespace and name; whether there was one.
    pub fn delete(&self, object: &Value) -> bool {
        let resource = Resource::of_kind(object.get("kind").and_then(Value::as_str));
        resource.is_some_and(|resource| self.service.objects.delete(resource, &key(object)))
    }

    /// So many pods on other nodes, 110 on each; they cost nothing until they are read.
    pub fn crowd(&self, pods: u32) {
        self.service.objects.set_crowd(pods);
    }

    /// The version of the newest write.
    pub fn version(&self) -> u64 {
        self.service.objects.newest()
    }

    /// Forgets all older versions: watches and pages that start from one are told 410.
    pub fn compact(&self) {
        self.service.objects.compact();
    }

    /// Tells every running watch the version, where it asked for bookmarks.
    pub fn bookmark(&self) {
        self.nudge(Nudge::Bookmark);
    }

    /// Breaks every running watch off, in the middle of an event.
    pub fn cut_watches(&self) {
        self.nudge(Nudge::Cut);
    }

    /// Ends every running watch with 410, as a server does whose history is gone.
    pub fn expire_watches(&self) {
        self.nudge(Nudge::Expire);
    }

    /// Ends every running watch as when its time is up.
    pub fn end_watches(&self) {
        self.nudge(Nudge::End);
    }

    /// Who may come in.
    pub fn tokens(&self) -> &Tokens {
        &self.service.tokens
    }

    /// Takes a right away from the service account: 403 from now on.
    pub fn forbid(&self, verb: Verb, resource: &'static str) {
        self.service.forbid(verb, resource);
    }

    /// Gives it.
    pub fn permit(&self, verb: Verb, resource: &'static str) {
        self.service.permit(verb, resource);
    }

    /// From now on something is wrong, beside what is wrong already.
    pub fn fault(&self, fault: Fault) {
        self.service.faults.add(fault);
    }

    /// Nothing is wrong with requests any more. One that is kept waiting waits on.
    pub fn mend(&self) {
        self.service.faults.clear();
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

    /// Every request that came so far.
    pub fn requests(&self) -> Vec<Request> {
        self.service.ledger.so_far()
    }

    /// Waits until the requests are as wanted; whether they became so in that time.
    pub fn requests_become(&self, within: Duration, wanted: impl Fn(&[Request]) -> bool) -> bool {
        self.service.ledger.become_so(within, wanted)
    }

    /// Writes a kubeconfig with a token of its own into a directory, and gives its path.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn kubeconfig(&self, directory: &Path) -> Result<PathBuf, ApiServerError> {
        self.kubeconfig_with(directory, &self.tokens().issue(Validity::Now))
    }

    /// The same with that token.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn kubeconfig_with(&self, directory: &Path, token: &Token) -> Result<PathBuf, ApiServerError> {
        let path = directory.join("kubeconfig");
        match credentials::kubeconfig(&path, &self.url(), &self.ca_pem(), token) {
            Ok(()) => Ok(path),
            Err(source) => Err(ApiServerError::Write { path, source }),
        }
    }

    /// Fills a directory with a service account's files, as the kubelet mounts them, and a new token.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn service_account(&self, directory: &Path) -> Result<ServiceAccount, ApiServerError> {
        let account = ServiceAccount::at(directory, self.ca_pem());
        match account.write(&self.tokens().issue(Validity::Now)) {
            Ok(()) => Ok(account),
            Err(source) => Err(ApiServerError::Write { path: directory.to_owned(), source }),
        }
    }

    fn nudge(&self, nudge: Nudge) {
        // With no watch running there is nobody to be nudged.
        let _nobody = self.service.nudges.send(nudge);
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
