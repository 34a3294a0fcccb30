//! The server: a thread that runs until the value is dropped, and what a test can set and read.

use crate::credentials::{self, Identity, ServiceAccount, TlsError, Token, Tokens, Validity};
use crate::network::{Fault, Listener, Network};
use crate::objects::key;
use crate::request::{Request, Resource, Verb};
use crate::service::Service;
use crate::watch::WatchCommand;
use serde_json::Value;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

/// Errors of the test server.
#[derive(Debug, thiserror::Error)]
pub enum ApiServerError {
    /// The address, the thread or a socket.
    #[error("cannot run an API server at {address}")]
    Run {
        /// The address.
        address: IpAddr,
        /// The cause.
        source: io::Error,
    },
    /// The certificate.
    #[error("cannot run an API server without TLS")]
    Tls(#[from] TlsError),
    /// A file for clients.
    #[error("cannot write {}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// An object of a kind that this server does not store.
    #[error("this API server stores no objects of kind {0:?}")]
    Kind(String),
}

/// An API server; dropping the value stops it.
#[derive(Debug)]
pub struct ApiServer {
    address: SocketAddr,
    pub(crate) identity: Arc<Identity>,
    pub(crate) service: Arc<Service>,
    network_changes: Option<UnboundedSender<NetworkChange>>,
    thread: Option<JoinHandle<()>>,
}

struct NetworkChange {
    network: Network,
    done: mpsc::Sender<io::Result<()>>,
}

impl ApiServer {
    /// Starts a server at 127.0.0.1.
    ///
    /// # Errors
    /// When the address, the thread or the certificate fails.
    pub fn start() -> Result<Self, ApiServerError> {
        Self::start_at(Ipv4Addr::LOCALHOST.into())
    }

    /// Starts a server at that local address, at a port that the kernel selects.
    ///
    /// # Errors
    /// When the address, the thread or the certificate fails.
    pub fn start_at(address: IpAddr) -> Result<Self, ApiServerError> {
        let identity = Identity::new(address)?;
        let (service, tls) = (Arc::new(Service::new()), TlsAcceptor::from(identity.server_config()?));
        let (network_changes, received) = unbounded_channel();
        let (ready_sender, ready) = mpsc::channel();
        let failed = |source| ApiServerError::Run { address, source };
        let inside = Arc::clone(&service);
        let run = move || {
            let report = |ready| drop(ready_sender.send(ready));
            run(address, tls, inside, received, report);
        };
        let thread = thread::Builder::new().name("api-server".into()).spawn(run).map_err(failed)?;
        let started = ready.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
        let (address, thread) = (started.map_err(failed)?, Some(thread));
        Ok(Self { address, identity, service, network_changes: Some(network_changes), thread })
    }

    /// The server's address: `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT` of a pod.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The server's URL for a kubeconfig.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The certificate of the authority that signs the server's certificates.
    pub fn ca_pem(&self) -> String {
        self.identity.ca_pem()
    }

    /// Sets the state of the network; it is in effect on return.
    ///
    /// # Errors
    /// When the address cannot be bound again.
    pub fn set_network(&self, network: Network) -> Result<(), ApiServerError> {
        let (done, result) = mpsc::channel();
        let change = NetworkChange { network, done };
        let sent = self.network_changes.as_ref().is_some_and(|changes| changes.send(change).is_ok());
        let changed = if sent { result.recv().ok() } else { None };
        let changed = changed.unwrap_or_else(|| Err(io::ErrorKind::BrokenPipe.into()));
        changed.map_err(|source| ApiServerError::Run { address: self.address.ip(), source })
    }
}

impl ApiServer {
    /// Presents a certificate of that validity from the next handshake on.
    ///
    /// # Errors
    /// When the certificate cannot be made.
    pub fn present_certificate(&self, validity: Validity) -> Result<(), ApiServerError> {
        Ok(self.identity.present(validity)?)
    }

    /// Creates or replaces an object by its `kind`: Pod (the default), Node, `DaemonSet`, `ConfigMap` or Event. Returns
    /// its version.
    ///
    /// # Errors
    /// When the kind is another.
    pub fn put(&self, object: Value) -> Result<u64, ApiServerError> {
        let kind = object.get("kind").and_then(Value::as_str);
        let resource = Resource::of_kind(kind)
            .ok_or_else(|| ApiServerError::Kind(kind.unwrap_or_default().to_owned()))?;
        Ok(self.service.objects.put(resource, object))
    }

    /// Creates or replaces a pod and returns its version.
    pub fn put_pod(&self, pod: Value) -> u64 {
        self.service.objects.put(Resource::Pods, pod)
    }

    /// Sets the page that a pod serves at a port, at any path.
    pub fn set_page(&self, name: &str, port: u16, page: &str) {
        let mut pages = self.service.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.insert(format!("{name}:{port}"), page.to_owned());
    }

    /// Deletes a pod; reports whether it existed.
    pub fn delete_pod(&self, namespace: &str, name: &str) -> bool {
        self.service.objects.delete(Resource::Pods, &(namespace.to_owned(), name.to_owned()))
    }

    /// Deletes the object with the same kind, namespace and name; reports whether it existed.
    pub fn delete(&self, object: &Value) -> bool {
        let resource = Resource::of_kind(object.get("kind").and_then(Value::as_str));
        resource.is_some_and(|resource| self.service.objects.delete(resource, &key(object)))
    }

    /// Returns the objects of a kind; none of a kind that this server does not store.
    pub fn objects(&self, kind: &str) -> Vec<Value> {
        let Some(resource) = Resource::of_kind(Some(kind)) else { return Vec::new() };
        let objects = self.service.objects.at(resource, self.service.objects.newest());
        objects.into_values().map(|object| Value::clone(&object)).collect()
    }

    /// Sets the number of generated pods on other nodes, 110 on each. They take no memory until they are read.
    pub fn set_generated_pods(&self, pods: u32) {
        self.service.objects.set_generated(pods);
    }

    /// Returns the version of the newest write.
    pub fn version(&self) -> u64 {
        self.service.objects.newest()
    }

    /// Discards the history: watches and pages that start from an older version are refused with 410.
    pub fn compact(&self) {
        self.service.objects.compact();
    }

    /// Sends a bookmark to every running watch that requested bookmarks.
    pub fn send_bookmarks(&self) {
        self.command_watches(WatchCommand::Bookmark);
    }

    /// Closes the connection of every running watch in the middle of an event.
    pub fn cut_watches(&self) {
        self.command_watches(WatchCommand::Cut);
    }

    /// Ends every running watch with 410, as a server without history does.
    pub fn expire_watches(&self) {
        self.command_watches(WatchCommand::Expire);
    }

    /// Ends every running watch as at its time limit.
    pub fn end_watches(&self) {
        self.command_watches(WatchCommand::End);
    }

    /// The issued tokens.
    pub fn tokens(&self) -> &Tokens {
        &self.service.tokens
    }

    /// Removes a right of the service account: such requests are refused with 403.
    pub fn forbid(&self, verb: Verb, resource: &'static str) {
        self.service.forbid(verb, resource);
    }

    /// Grants a right to the service account.
    pub fn permit(&self, verb: Verb, resource: &'static str) {
        self.service.permit(verb, resource);
    }

    /// Adds a fault to those in effect.
    pub fn add_fault(&self, fault: Fault) {
        self.service.faults.add(fault);
    }

    /// Removes all faults. A request that already waits goes on waiting.
    pub fn clear_faults(&self) {
        self.service.faults.clear();
    }

    /// Returns the requests received so far.
    pub fn requests(&self) -> Vec<Request> {
        self.service.log.snapshot()
    }

    /// Waits until a condition holds for the requests; returns `false` when it does not hold in time.
    pub fn wait_for_requests(&self, within: Duration, condition: impl Fn(&[Request]) -> bool) -> bool {
        self.service.log.wait_until(within, condition)
    }

    /// Writes a kubeconfig with a new token into a directory and returns its path.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn kubeconfig(&self, directory: &Path) -> Result<PathBuf, ApiServerError> {
        self.kubeconfig_with(directory, &self.tokens().issue(Validity::Valid))
    }

    /// Writes a kubeconfig with that token into a directory and returns its path.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn kubeconfig_with(&self, directory: &Path, token: &Token) -> Result<PathBuf, ApiServerError> {
        let path = directory.join("kubeconfig");
        match credentials::kubeconfig(&path, &self.url(), &self.ca_pem(), token) {
            Ok(()) => Ok(path),
            Err(source) => Err(ApiServerError::Write { path, source }),
        }
    }

    /// Writes a service account's files with a new token into a directory, as the kubelet mounts them.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn service_account(&self, directory: &Path) -> Result<ServiceAccount, ApiServerError> {
        let account = ServiceAccount::new(directory, self.ca_pem());
        match account.write(&self.tokens().issue(Validity::Valid)) {
            Ok(()) => Ok(account),
            Err(source) => Err(ApiServerError::Write { path: directory.to_owned(), source }),
        }
    }

    fn command_watches(&self, command: WatchCommand) {
        // The error means that no watch runs.
        let _no_watch = self.service.watch_commands.send(command);
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        drop(self.network_changes.take());
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// The server's thread. It ends, with all connections, when the channel of network changes closes.
fn run(
    address: IpAddr,
    tls: TlsAcceptor,
    service: Arc<Service>,
    mut changes: UnboundedReceiver<NetworkChange>,
    ready: impl FnOnce(io::Result<SocketAddr>),
) {
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return ready(Err(error)),
    };
    runtime.block_on(async {
        let network_state = watch::Sender::new(Network::Open);
        let mut listener = match Listener::open((address, 0).into(), tls, service, network_state.subscribe())
        {
            Ok(listener) => listener,
            Err(error) => return ready(Err(error)),
        };
        ready(Ok(listener.address()));
        while let Some(NetworkChange { network, done }) = changes.recv().await {
            network_state.send_replace(network);
            let _caller_gone = done.send(listener.set_network(network).await);
        }
    });
}
