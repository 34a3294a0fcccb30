//! Connections really made, in the namespace of the calling thread: who takes one, and for whom he
//! thinks that it was meant.
//!
//! One thread is both ends: the kernel carries a packet over `lo` before the call that sent it
//! returns, and nothing here waits longer than [`PATIENCE`].

use super::call::{Call, Caller};
use crate::policy::istio::PROXY_ID;
use crate::trace::Transport;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, SockaddrIn, SockaddrIn6, SockaddrStorage,
    getsockopt, listen, recv, recvfrom, send, sendto, setsockopt, socket, sockopt,
};
use nix::unistd::{Uid, setfsuid};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

/// How long an answer is waited for that never comes.
const PATIENCE: Duration = Duration::from_secs(5);

/// The ports that a connection may be turned to. The agent's resolver is, of UDP,
/// bound to loopback as Istio's is, so that its answers leave from where the query arrived.
const LISTENERS: [u16; 3] = [15001, 15006, RESOLVER];
const RESOLVER: u16 = 15053;
const QUERY: &[u8] = b"who is it?";
const ANSWER: &[u8] = b"it is me";

/// What became of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Somebody took it.
    At {
        /// On which port.
        port: u16,
        /// And where it was meant to go, as he sees it.
        meant_for: SocketAddr,
    },
    /// Nobody did.
    Nowhere(Errno),
}

/// What became of the attempt to make it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Made {
    /// It was made.
    Arrived(Arrival),
    /// No socket of that user can be had here.
    NotByThatUser(u32),
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At { port, meant_for } => write!(f, "on port {port} as meant for {meant_for}"),
            Self::Nowhere(errno) => write!(f, "nowhere ({})", errno.desc()),
        }
    }
}

impl Arrival {
    /// The same in the middle of a sentence.
    pub(super) fn as_news(&self) -> String {
        match self {
            Self::At { .. } => format!("arrived {self}"),
            Self::Nowhere(errno) => format!("was not answered: {}", errno.desc()),
        }
    }
}

impl Call {
    /// Makes it.
    pub(super) fn make(&self) -> Made {
        let made = match self.transport {
            Transport::Tcp => self.connect(),
            Transport::Udp => self.ask(),
        };
        match made {
            Ok(Some(arrival)) => Made::Arrived(arrival),
            Ok(None) => Made::NotByThatUser(PROXY_ID),
            Err(errno) => Made::Arrived(Arrival::Nowhere(errno)),
        }
    }

    fn connect(&self) -> nix::Result<Option<Arrival>> {
        let any: IpAddr = match self.to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let transparent = matches!(self.by, Caller::Marked(_));
        let ports = LISTENERS.into_iter().chain([self.to.port()]);
        let listeners = ports.map(|port| listener((any, port).into(), transparent));
        let listeners: Vec<TcpListener> = listeners.collect::<nix::Result<_>>()?;
        let Some(caller) = self.socket()? else { return Ok(None) };
        connected(&caller, self.to)?;
        let taken = listeners.get(first_ready(&listeners)?).ok_or(Errno::EBADF)?;
        let (stream, _) = taken.accept().map_err(|error| errno_of(&error))?;
        let port = taken.local_addr().map_err(|error| errno_of(&error))?.port();
        Ok(Some(Arrival::At { port, meant_for: meant_for(&stream)? }))
    }

    /// A query and its answer. The answer must come back too: it is translated by another rule of
    /// conntrack, in the zone where the query was.
    fn ask(&self) -> nix::Result<Option<Arrival>> {
        let resolver = SocketAddr::from((Ipv4Addr::LOCALHOST, RESOLVER));
        // The answers' zone is chosen by their owner.
        let Some(ear) = of_proxy(|| bound(Transport::Udp, resolver)).transpose()? else { return Ok(None) };
        let ears = [(RESOLVER, ear), (self.to.port(), bound(Transport::Udp, self.to)?)];
        let Some(caller) = self.socket()? else { return Ok(None) };
        // One port for all queries, so that two of them share one five-tuple.
        setsockopt(&caller, sockopt::ReuseAddr, &true)?;
        bind(&caller, SocketAddr::new(self.to.ip(), RESOLVER + 1))?;
        connected(&caller, self.to)?;
        send(caller.as_raw_fd(), QUERY, MsgFlags::empty())?;
        let sockets = [&ears[0].1, &ears[1].1];
        let (port, ear) = ears.get(first_ready(&sockets)?).ok_or(Errno::EBADF)?;
        let mut text = [0; 64];
        let (_, from) = recvfrom::<SockaddrStorage>(ear.as_raw_fd(), &mut text)?;
        sendto(ear.as_raw_fd(), ANSWER, &from.ok_or(Errno::ENOTCONN)?, MsgFlags::empty())?;
        wait(&caller, PollFlags::POLLIN)?;
        recv(caller.as_raw_fd(), &mut text, MsgFlags::empty())?;
        Ok(Some(Arrival::At { port: *port, meant_for: self.to }))
    }

    /// Its socket, if one of that user can be had.
    fn socket(&self) -> nix::Result<Option<OwnedFd>> {
        match self.by {
            Caller::Application => open(self.transport, self.to).map(Some),
            Caller::Proxy => of_proxy(|| open(self.transport, self.to)).transpose(),
            Caller::Marked(mark) => {
                let fd = open(self.transport, self.to)?;
                setsockopt(&fd, sockopt::Mark, &mark)?;
                Ok(Some(fd))
            }
        }
    }
}

/// Does `work` as the proxy's user, for the rules that ask whose socket it is: they look at the file
/// system's user id of the thread that made it (`nft_meta_get_eval_skugid`, net/netfilter/nft_meta.c,
/// v6.18). Nothing when that id is not mapped here.
fn of_proxy<T>(work: impl FnOnce() -> T) -> Option<T> {
    let before = setfsuid(Uid::from_raw(PROXY_ID));
    // An invalid id changes nothing and tells which one it is now.
    let is = setfsuid(Uid::from_raw(u32::MAX)).as_raw() == PROXY_ID;
    let done = is.then(work);
    setfsuid(before);
    done
}

fn open(transport: Transport, like: SocketAddr) -> nix::Result<OwnedFd> {
    let family = if like.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let kind = match transport {
        Transport::Tcp => SockType::Stream,
        Transport::Udp => SockType::Datagram,
    };
    let fd = socket(family, kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    if like.is_ipv6() {
        setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
    }
    Ok(fd)
}

fn bind(fd: &OwnedFd, address: SocketAddr) -> nix::Result<()> {
    nix::sys::socket::bind(fd.as_raw_fd(), &SockaddrStorage::from(address))
}

fn bound(transport: Transport, address: SocketAddr) -> nix::Result<OwnedFd> {
    let fd = open(transport, address)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    bind(&fd, address)?;
    Ok(fd)
}

fn listener(address: SocketAddr, transparent: bool) -> nix::Result<TcpListener> {
    let fd = open(Transport::Tcp, address)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    if transparent {
        setsockopt(&fd, sockopt::IpTransparent, &true)?;
    }
    bind(&fd, address)?;
    listen(&fd, Backlog::new(8)?)?;
    Ok(fd.into())
}

fn connected(fd: &OwnedFd, to: SocketAddr) -> nix::Result<()> {
    match nix::sys::socket::connect(fd.as_raw_fd(), &SockaddrStorage::from(to)) {
        Err(Errno::EINPROGRESS) => {
            wait(fd, PollFlags::POLLOUT)?;
            match getsockopt(fd, sockopt::SocketError)? {
                0 => Ok(()),
                error => Err(Errno::from_raw(error)),
            }
        }
        other => other,
    }
}

/// Where the caller wanted to go: as conntrack remembers it, else as the packets say.
fn meant_for(stream: &TcpStream) -> nix::Result<SocketAddr> {
    let local = stream.local_addr().map_err(|error| errno_of(&error))?;
    let original = match local {
        SocketAddr::V4(_) => getsockopt(stream, sockopt::OriginalDst)
            .map(|address| SocketAddr::from(SocketAddrV4::from(SockaddrIn::from(address)))),
        SocketAddr::V6(_) => getsockopt(stream, sockopt::Ip6tOriginalDst).map(|address| {
            let address = SocketAddrV6::from(SockaddrIn6::from(address));
            SocketAddr::new((*address.ip()).into(), address.port())
        }),
    };
    Ok(original.unwrap_or(local))
}

/// The first of these that has something to read.
fn first_ready<F: AsFd>(all: &[F]) -> nix::Result<usize> {
    let mut waiting: Vec<PollFd<'_>> =
        all.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
    patiently(&mut waiting)?;
    waiting.iter().position(|fd| fd.any().unwrap_or(false)).ok_or(Errno::ETIMEDOUT)
}

fn wait(fd: &OwnedFd, what: PollFlags) -> nix::Result<()> {
    patiently(&mut [PollFd::new(fd.as_fd(), what)])
}

fn patiently(waiting: &mut [PollFd<'_>]) -> nix::Result<()> {
    let patience = PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::MAX);
    loop {
        match poll(waiting, patience) {
            Ok(0) => return Err(Errno::ETIMEDOUT),
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or_default())
}
