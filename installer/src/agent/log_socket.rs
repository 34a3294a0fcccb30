//! The socket to which the plugin sends its log lines: each is counted and logged, and a refused pod gets an event.

use super::events::{EventQueue, PodEvent};
use super::plugin_calls::PluginCalls;
use crate::lead::socket::{CHECK_INTERVAL, Socket, SocketContext};
use crate::lead::socket_file::SocketError;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::SockType;
use serde_json::Value;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// A plugin's line is shorter than a pipe's atomic write.
const MAX_LINE: usize = 4096;

/// The number of lines between two checks whether the agent ends.
const BATCH: usize = 256;

#[derive(Debug)]
pub(crate) struct LogSocket(Socket<UnixDatagram>);

impl LogSocket {
    pub(crate) fn open(path: &Path) -> Result<Self, SocketError> {
        Socket::open(path, SockType::Datagram).map(Self)
    }

    /// Counts and logs lines until `end` is readable.
    pub(crate) fn serve(
        &mut self,
        end: BorrowedFd<'_>,
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
                self.receive(calls, events, context);
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
    fn receive(&self, calls: &PluginCalls, events: &EventQueue, context: SocketContext<'_>) {
        let mut buffer = vec![0; MAX_LINE];
        for _ in 0..BATCH {
            let Ok(length) = self.0.open.recv(&mut buffer) else { return };
            if let Ok(Value::Object(line)) = serde_json::from_slice(buffer.get(..length).unwrap_or_default())
            {
                let refusal = PodEvent::of_refusal(&line);
                calls.record(&line, refusal.as_ref());
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
