//! The proxy of one pod: listeners inside its network namespace, and threads that forward connections from there. Its
//! sockets have ztunnel's mark, and connections to the pod have the client's address.

use gybe_netfilter::kernel::netns::Netns;
use gybe_netfilter::kernel::sockets::{self, connect_until, original_destination};
use gybe_netfilter::model::ruleset::Transport;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket, sockopt,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The mark of ztunnel's sockets.
pub const MARK: u32 = 0x539;
/// Where outbound connections arrive.
pub const OUTBOUND: u16 = 15001;
/// Where inbound connections arrive that are not HBONE.
pub const INBOUND: u16 = 15006;
/// Where connections of other ztunnels arrive.
pub const HBONE: u16 = 15008;
/// Where DNS queries arrive.
pub const DNS: u16 = 15053;

/// How long a connection to a destination may take.
const CONNECT: Duration = Duration::from_secs(5);

/// What all proxies share.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) mesh: Mesh,
    /// The access log: each forwarded connection as `PORT CLIENT > DESTINATION`.
    pub(super) forwarded: Mutex<Vec<String>>,
    /// What ends the listeners of each pod, by its uid.
    pub(super) listeners: Mutex<BTreeMap<String, Weak<EventFd>>>,
}

/// What ztunnel would learn from istiod.
#[derive(Debug, Clone, Default)]
pub struct Mesh {
    /// The addresses whose pods take HBONE.
    pub addresses: BTreeSet<IpAddr>,
    /// Where DNS queries are forwarded to.
    pub resolver: Option<SocketAddr>,
    /// Whether a policy of all pods requires mutual TLS: inbound connections in plain text are closed.
    pub is_strict: bool,
}

/// A running proxy. Its listeners and connections end with the value.
#[derive(Debug)]
pub(super) struct Proxy {
    netns: Netns,
    stop: Arc<EventFd>,
    connections: Connections,
    thread: Option<JoinHandle<()>>,
}

/// The open connections, which the end of the proxy closes.
#[derive(Debug, Clone, Default)]
struct Connections(Arc<Mutex<Vec<Weak<TcpStream>>>>);

enum Listener {
    Tcp(u16, TcpListener),
    Udp(UdpSocket),
}

impl Proxy {
    /// Starts the listeners; the namespace comes back with an error.
    pub(super) fn start(netns: Netns, context: &Arc<Context>) -> Result<Self, (Netns, String)> {
        let (started, listening) = channel();
        let (connections, context) = (Connections::default(), Arc::clone(context));
        let thread = EventFd::new().map_err(io::Error::from).and_then(|stop| {
            let stop = Arc::new(stop);
            let (of_thread, all) = (Arc::clone(&stop), connections.clone());
            let own = netns.as_fd().try_clone_to_owned()?;
            let run = move || run(own, &started, &of_thread, &all, &context);
            Ok((thread::Builder::new().name("proxy".to_owned()).spawn(run)?, stop))
        });
        match thread.map(|started| (started, listening.recv())) {
            Ok(((thread, stop), Ok(Ok(())))) => Ok(Self { netns, stop, connections, thread: Some(thread) }),
            Ok((_, Ok(Err(why)))) => Err((netns, why)),
            Ok((_, Err(_))) => Err((netns, "the proxy's thread has ended".to_owned())),
            Err(why) => Err((netns, why.to_string())),
        }
    }

    pub(super) fn listeners(&self) -> Weak<EventFd> {
        Arc::downgrade(&self.stop)
    }

    pub(super) fn serves(&self, netns: &Netns) -> bool {
        self.netns.is_same_as(netns)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _written = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
        for stream in self.connections.lock().drain(..).filter_map(|stream| stream.upgrade()) {
            let _closed = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Context {
    fn log(&self, port: u16, from: SocketAddr, to: SocketAddr) {
        let line = format!("{port} {} > {to}", from.ip());
        self.forwarded.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }
}

impl Connections {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Weak<TcpStream>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, stream: TcpStream) -> Arc<TcpStream> {
        let stream = Arc::new(stream);
        let mut all = self.lock();
        all.retain(|stream| stream.strong_count() > 0);
        all.push(Arc::downgrade(&stream));
        stream
    }
}

/// The thread of the listeners.
fn run(
    netns: OwnedFd,
    started: &Sender<Result<(), String>>,
    stop: &EventFd,
    connections: &Connections,
    context: &Arc<Context>,
) {
    let entered = Netns::received(netns).map_err(|why| why.to_string());
    let entered = entered.and_then(|netns| netns.enter().map_err(|why| why.to_string()));
    let listeners = entered.and_then(|()| open_all().map_err(|errno| errno.to_string()));
    let listeners = match listeners {
        Ok(listeners) => listeners,
        Err(why) => return drop(started.send(Err(why))),
    };
    if started.send(Ok(())).is_ok() {
        serve(&listeners, stop, connections, context);
    }
}

fn open_all() -> nix::Result<Vec<Listener>> {
    let mut all = Vec::new();
    for port in [OUTBOUND, INBOUND, HBONE] {
        let any = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
        let opened = any.map(|address| (address, port)).into_iter().find_map(|(address, port)| {
            match open(SockType::Stream, SocketAddr::new(address, port)) {
                Err(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL) => None,
                opened => Some(opened),
            }
        });
        all.push(Listener::Tcp(port, opened.unwrap_or(Err(Errno::EAFNOSUPPORT))?.into()));
    }
    for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let address = SocketAddr::new(address, DNS);
        match open(SockType::Stream, address) {
            Err(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL) => continue,
            opened => all.push(Listener::Tcp(DNS, opened?.into())),
        }
        all.push(Listener::Udp(open(SockType::Datagram, address)?.into()));
    }
    Ok(all)
}

/// A listener for both families at `::`, as ztunnel's.
fn open(kind: SockType, address: SocketAddr) -> nix::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    setsockopt(&fd, sockopt::Mark, &MARK)?;
    setsockopt(&fd, sockopt::ReusePort, &true)?;
    setsockopt(&fd, sockopt::IpTransparent, &true)?;
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
    if kind == SockType::Stream {
        listen(&fd, Backlog::new(128)?)?;
    }
    Ok(fd)
}

fn serve(listeners: &[Listener], stop: &EventFd, connections: &Connections, context: &Arc<Context>) {
    let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let sockets = listeners.iter().map(|listener| match listener {
        Listener::Tcp(_, socket) => readable(socket.as_fd()),
        Listener::Udp(socket) => readable(socket.as_fd()),
    });
    let mut fds: Vec<_> = sockets.chain([readable(stop.as_fd())]).collect();
    loop {
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            Err(_) => return,
            Ok(_) => {}
        }
        if fds.last().and_then(PollFd::any).unwrap_or(true) {
            return;
        }
        for (listener, _) in listeners.iter().zip(&fds).filter(|(_, fd)| fd.any().unwrap_or(true)) {
            // An error is one client's.
            let _forwarded = match listener {
                Listener::Tcp(port, socket) => socket.accept().and_then(|(client, from)| {
                    client.set_nonblocking(false)?;
                    let (client, port, context) = (connections.add(client), *port, Arc::clone(context));
                    let connections = connections.clone();
                    // The thread inherits the namespace.
                    let forward =
                        move || drop(forward(&client, canonical(from), port, &connections, &context));
                    thread::Builder::new().spawn(forward).map(drop)
                }),
                Listener::Udp(socket) => forward_query(socket, context),
            };
        }
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Connects a client to its destination, and copies in both directions.
fn forward(
    client: &TcpStream,
    from: SocketAddr,
    port: u16,
    connections: &Connections,
    context: &Context,
) -> io::Result<()> {
    let original = || original_destination(&client, from).ok_or_else(|| io::Error::other("not redirected"));
    let (to, server) = match port {
        OUTBOUND => match original()? {
            to if context.mesh.addresses.contains(&to.ip()) => {
                let mut server = connect(SocketAddr::new(to.ip(), HBONE), None)?;
                writeln!(server, "CONNECT {to}")?;
                (to, server)
            }
            to => (to, connect(to, None)?),
        },
        INBOUND if context.mesh.is_strict => return Err(io::Error::other("mutual TLS is required")),
        INBOUND => {
            let to = original()?;
            (to, connect(to, Some(from.ip()))?)
        }
        HBONE => {
            let to = requested(client)?;
            (to, connect(to, Some(from.ip()))?)
        }
        _ => {
            let to = context.mesh.resolver.ok_or_else(|| io::Error::other("no resolver"))?;
            (to, connect(to, None)?)
        }
    };
    context.log(port, from, to);
    let server = connections.add(server);
    thread::scope(|scope| {
        scope.spawn(|| copy(client, &server));
        copy(&server, client);
    });
    Ok(())
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    let _copied = io::copy(&mut from, &mut to);
    let _closed = to.shutdown(Shutdown::Write);
}

/// Reads the destination of a connection by HBONE, byte by byte: what follows belongs to the application.
fn requested(client: &TcpStream) -> io::Result<SocketAddr> {
    let mut line = String::new();
    BufReader::with_capacity(1, client).read_line(&mut line)?;
    let address = line.trim_end().strip_prefix("CONNECT ").and_then(|address| address.parse().ok());
    address.ok_or_else(|| io::Error::other("no destination"))
}

/// Connects with ztunnel's mark, as the client where one is given.
fn connect(to: SocketAddr, client: Option<IpAddr>) -> io::Result<TcpStream> {
    let fd = sockets::open(Transport::Tcp, to)?;
    setsockopt(&fd, sockopt::Mark, &MARK)?;
    if let Some(client) = client {
        setsockopt(&fd, sockopt::IpTransparent, &true)?;
        sockets::bind(&fd, SocketAddr::new(client, 0))?;
    }
    connect_until(&fd, to, Instant::now() + CONNECT)?;
    let stream = TcpStream::from(fd);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Forwards one DNS query, and its answer.
fn forward_query(socket: &UdpSocket, context: &Context) -> io::Result<()> {
    let mut query = [0; 1232];
    let (length, client) = socket.recv_from(&mut query)?;
    let resolver = context.mesh.resolver.ok_or_else(|| io::Error::other("no resolver"))?;
    context.log(DNS, client, resolver);
    let (query, socket) = (query.get(..length).unwrap_or_default().to_vec(), socket.try_clone()?);
    let forward = move || -> io::Result<()> {
        let fd = sockets::open(Transport::Udp, resolver)?;
        setsockopt(&fd, sockopt::Mark, &MARK)?;
        let upstream = UdpSocket::from(fd);
        upstream.set_nonblocking(false)?;
        upstream.set_read_timeout(Some(CONNECT))?;
        upstream.send_to(&query, resolver)?;
        let mut answer = [0; 1232];
        let length = upstream.recv(&mut answer)?;
        socket.send_to(answer.get(..length).unwrap_or_default(), client).map(drop)
    };
    thread::Builder::new().spawn(move || drop(forward())).map(drop)
}
