//! A stand-in for ztunnel: the client of ZDS, with the listeners and the forwarding inside each pod, but without a mesh:
//! HBONE is a line with the destination, in plain text. It is as strict as ztunnel, and ends where ztunnel ends
//! (istio/ztunnel 62d82653, `src/inpod`). A test can make it slow, hung or unwilling. `gybe-ztunnel` runs it as a
//! process.

mod messages;
mod packet;
mod proxy;
mod workloads;

pub use packet::hello;
use proxy::Context;
pub use proxy::{DNS, HBONE, INBOUND, MARK, Mesh, OUTBOUND};

use crate::failure::Failure;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use workloads::Workloads;

/// How it differs from a ztunnel that works.
#[derive(Debug, Clone, Default)]
pub struct Fault {
    /// Answers nothing.
    pub hung: bool,
    /// The time before each answer.
    pub answer_after: Duration,
    /// The reason for which no proxy starts.
    pub refuse: Option<String>,
    /// Sends each answer twice.
    pub twice: bool,
    /// Ends each connection after its hello, and connects again.
    pub reconnect_in_a_loop: bool,
}

/// What a test can see of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// Whether its readiness probe succeeds.
    pub is_ready: bool,
    /// The uids of the pods with a running proxy.
    pub proxies: BTreeSet<String>,
    /// The uids of the pods whose proxy did not start.
    pub pending: BTreeSet<String>,
    /// Every request since the start, as `add UID`, `keep UID`, `del UID`, `snapshot-sent`.
    pub requests: Vec<String>,
    pub connections: usize,
    /// The access log: each forwarded connection or query as `PORT CLIENT > DESTINATION`.
    pub forwarded: Vec<String>,
    /// Why ztunnel would have ended with exit status 1.
    pub exit: Option<String>,
}

#[derive(Debug)]
struct Shared {
    fault: Mutex<Fault>,
    changed: Condvar,
    observed: Mutex<Observed>,
    proxies: Arc<Context>,
    /// Readable when it has to end.
    stop: EventFd,
}

/// A running stand-in; it ends with the value, and its listeners with it.
#[derive(Debug)]
pub struct Ztunnel {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// How a connection ended.
#[derive(Debug)]
enum End {
    Stopped,
    /// ztunnel connects again.
    Disconnected,
    /// ztunnel's process ends.
    Exit(String),
}

/// The first and the longest time between two connections. A real ztunnel's grows to 15 s, which no test waits for.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

impl Ztunnel {
    /// Starts it as a client of the agent at `socket`, which need not exist yet.
    ///
    /// # Errors
    /// When the kernel has no descriptor or thread for it.
    pub fn start(socket: &Path, fault: Fault, mesh: Mesh) -> Result<Self, Failure> {
        let stop = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let (fault, changed, observed) = (Mutex::new(fault), Condvar::new(), Mutex::default());
        let proxies = Arc::new(Context { mesh, forwarded: Mutex::default(), listeners: Mutex::default() });
        let shared = Arc::new(Shared { fault, changed, observed, proxies, stop });
        let (of_thread, socket) = (Arc::clone(&shared), socket.to_owned());
        let run = move || of_thread.run(&socket);
        let thread = thread::Builder::new().name("ztunnel".to_owned()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Changes how it behaves from the next answer on.
    pub fn set_fault(&self, fault: Fault) {
        *lock(&self.shared.fault) = fault;
        self.shared.changed.notify_all();
    }

    #[must_use]
    pub fn observed(&self) -> Observed {
        let forwarded = lock(&self.shared.proxies.forwarded).clone();
        Observed { forwarded, ..lock(&self.shared.observed).clone() }
    }

    /// Ends the listeners of a pod, which it goes on to acknowledge.
    pub fn stop_listening(&self, uid: &str) {
        let listeners = lock(&self.shared.proxies.listeners);
        let stop = listeners.get(uid).and_then(Weak::upgrade);
        let _written = stop.map(|stop| stop.write(1));
    }

    /// Waits until it has ended because of an error, as ztunnel does.
    pub fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

impl Drop for Ztunnel {
    fn drop(&mut self) {
        let _written = self.shared.stop.write(1);
        // A hung one ends, too.
        self.set_fault(Fault::default());
        self.wait();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn run(&self, socket: &Path) {
        let mut workloads = Workloads::new(Arc::clone(&self.proxies));
        let mut backoff = RECONNECT.0;
        loop {
            let end = match connected(socket) {
                Ok(connection) => {
                    lock(&self.observed).connections += 1;
                    backoff = RECONNECT.0;
                    self.converse(&connection, &mut workloads)
                }
                Err(_) => End::Disconnected,
            };
            // The proxies keep running.
            lock(&self.observed).is_ready = false;
            match end {
                End::Stopped => return,
                End::Exit(why) => {
                    lock(&self.observed).exit = Some(why);
                    return;
                }
                End::Disconnected if packet::is_readable(&self.stop, backoff) => return,
                End::Disconnected => backoff = (backoff * 2).min(RECONNECT.1),
            }
        }
    }

    /// Answers on one connection until it ends.
    fn converse(&self, connection: &OwnedFd, workloads: &mut Workloads) -> End {
        workloads.start_snapshot();
        if packet::send(connection, &hello()).is_err() || lock(&self.fault).reconnect_in_a_loop {
            return End::Disconnected;
        }
        loop {
            let received = match packet::receive(connection, &self.stop, workloads.retry_interval()) {
                packet::Received::Packet(received) => received,
                packet::Received::Nothing => {
                    workloads.retry(lock(&self.fault).refuse.as_ref());
                    workloads.report(&mut lock(&self.observed));
                    continue;
                }
                packet::Received::Stop => return End::Stopped,
                packet::Received::End => return End::Disconnected,
            };
            let (answer, after) = match received {
                Err(why) => (Err(format!("failure to read message : {why}")), Some(End::Disconnected)),
                Ok(request) => {
                    lock(&self.observed).requests.push(request.to_string());
                    let refuse = lock(&self.fault).refuse.clone();
                    match workloads.process(request, refuse.as_ref()) {
                        Ok(answer) => (answer, None),
                        Err(why) => {
                            let text = format!("failure to process message : {why}");
                            (Err(text.clone()), Some(End::Exit(text)))
                        }
                    }
                }
            };
            workloads.report(&mut lock(&self.observed));
            if !self.answer(connection, &answer) {
                return End::Disconnected;
            }
            if let Some(end) = after {
                return end;
            }
        }
    }

    /// Sends an answer as the fault says; reports whether the connection still is open.
    fn answer(&self, connection: &OwnedFd, answer: &Result<(), String>) -> bool {
        let hung = self.changed.wait_while(lock(&self.fault), |fault| fault.hung);
        let after = hung.unwrap_or_else(PoisonError::into_inner).answer_after;
        if !after.is_zero() && packet::is_readable(&self.stop, after) {
            return false;
        }
        let copies = if lock(&self.fault).twice { 2 } else { 1 };
        (0..copies).all(|_| packet::send(connection, &messages::response(answer)).is_ok())
    }
}

fn connected(path: &Path) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let connection = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    connect(connection.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(connection)
}
