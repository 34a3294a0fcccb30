//! The sockets for the plugin: one answers its queries (`facts_socket`), to the other it sends its log lines. Each line is
//! counted and logged, and a refused pod gets an event.

use super::events::{EventQueue, PodEvent};
use super::facts_socket::FactsSocket;
use super::plugin_calls::PluginCalls;
use super::pods::PodLookup;
use super::ztunnel::AmbientPods;
use crate::agent_status::AgentStatus;
use crate::error::errno;
use crate::lead::socket::{CHECK_INTERVAL, ServeError, ServedSocket, SocketContext, SocketFileError};
use crate::log::Log;
use gybe_plugin::conf::LOG_SOCKET;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::SockType;
use serde_json::{Value, json};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

/// Why the agent cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("cannot find out which agent of the node leads, in {}", .directory.display())]
    Lead { directory: PathBuf, source: SocketFileError },
    #[error("cannot wait for {what}")]
    Wait { what: &'static str, source: Errno },
}

pub(super) struct Sockets {
    facts: FactsSocket,
    log: LogSocket,
}

impl Sockets {
    pub(super) fn open(facts: &Path, ambient: Option<Arc<AmbientPods>>, to: &Log) -> Result<Self, NodeError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| ServeError { path, source }
        };
        let log = facts.with_file_name(LOG_SOCKET);
        let sockets = Self {
            facts: FactsSocket::open(facts, ambient).map_err(failed(facts))?,
            log: LogSocket::open(&log).map_err(failed(&log))?,
        };
        to.info("gybe node: serving", json!({ "socket": facts.display().to_string() }));
        Ok(sockets)
    }

    /// Serves until `stop` is readable and every query that has arrived has its response, within its deadline. Then
    /// removes the sockets before anything else ends, so that no plugin connects to an agent that will not respond.
    pub(super) fn serve(
        mut self,
        pods: &dyn PodLookup,
        calls: &PluginCalls,
        status: &(dyn Fn() -> AgentStatus + Sync),
        stop: BorrowedFd<'_>,
        events: &EventQueue,
        context: SocketContext<'_>,
    ) -> Result<(), NodeError> {
        let wait = |what| move |source| NodeError::Wait { what, source };
        let (ended, running) = std::io::pipe().map_err(|why| wait("the end of the agent")(errno(&why)))?;
        thread::scope(|scope| {
            let logging = scope.spawn(|| self.log.serve(ended.as_fd(), pods, calls, events, context));
            let served = self.facts.serve(stop, pods, status, context).map_err(wait("queries"));
            // Wakes the thread that polls the other end.
            drop(running);
            let logged = logging.join().unwrap_or(Err(Errno::EIO)).map_err(wait("log lines"));
            logged.and(served)
        })
    }
}

/// A plugin's line is shorter than a pipe's atomic write.
const MAX_LINE: usize = 4096;

/// The number of lines between two checks whether the agent ends.
const BATCH: usize = 256;

#[derive(Debug)]
pub(crate) struct LogSocket(ServedSocket<UnixDatagram>);

impl LogSocket {
    pub(crate) fn open(path: &Path) -> Result<Self, SocketFileError> {
        ServedSocket::open(path, SockType::Datagram).map(Self)
    }

    /// Counts and logs lines until `end` is readable.
    pub(crate) fn serve(
        &mut self,
        end: BorrowedFd<'_>,
        pods: &dyn PodLookup,
        calls: &PluginCalls,
        events: &EventQueue,
        context: SocketContext<'_>,
    ) -> Result<(), Errno> {
        let timeout = PollTimeout::try_from(CHECK_INTERVAL).map_err(|_| Errno::EINVAL)?;
        loop {
            let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
            let mut fds = [readable(end), readable(self.0.as_fd())];
            let ready = match poll(&mut fds, timeout) {
                Err(Errno::EINTR) => continue,
                ready => ready?,
            };
            let [has_ended, has_lines] = fds.map(|fd| fd.any().unwrap_or(false));
            if has_lines {
                self.receive(pods, calls, events, context);
            }
            if has_ended {
                return Ok(());
            }
            if ready == 0 {
                self.0.restore(context);
            }
        }
    }

    /// Counts and logs the lines that have arrived. Anything but a JSON object is dropped. A line without a message is
    /// below the plugin's log level, and only counted.
    fn receive(
        &self,
        pods: &dyn PodLookup,
        calls: &PluginCalls,
        events: &EventQueue,
        context: SocketContext<'_>,
    ) {
        let mut buffer = vec![0; MAX_LINE];
        for _ in 0..BATCH {
            let Ok(length) = self.0.open.recv(&mut buffer) else { return };
            if let Ok(Value::Object(line)) = serde_json::from_slice(buffer.get(..length).unwrap_or_default())
            {
                let refusal = PodEvent::of_refusal(&line);
                calls.record(&line, refusal.as_ref(), |pod| pods.take_assigned(pod));
                if let Some(refusal) = refusal {
                    events.post(refusal.into());
                }
                if line.contains_key("msg") {
                    context.log.forward(line);
                }
            }
        }
    }
}
