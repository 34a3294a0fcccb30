//! The socket to which the process that repairs pods sends its findings: one message for each connection.

use super::SocketContext;
use super::socket::{ACCEPT_PAUSE, CHECK_INTERVAL, Socket, SocketHealth, is_authorized};
use super::socket_file::SocketError;
use crate::repair::{Finding, MAX_FINDING};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::SockType;
use serde_json::json;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

/// How long a connected process may take to send.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct RepairSocket(Socket<UnixListener>);

impl RepairSocket {
    pub(crate) fn open(path: &Path) -> Result<Self, SocketError> {
        // It keeps the bounds of messages.
        Socket::open(path, SockType::SeqPacket).map(Self)
    }

    /// Passes each finding to `act` until `end` is readable.
    pub(crate) fn serve(
        &mut self,
        end: BorrowedFd<'_>,
        context: SocketContext<'_>,
        mut act: impl FnMut(Finding),
    ) -> Result<(), Errno> {
        // No ADD needs this socket: its loss does not make the agent unready.
        let health = SocketHealth::default();
        let context = SocketContext { health: &health, ..context };
        let mut is_paused = false;
        loop {
            let events = if is_paused { PollFlags::empty() } else { PollFlags::POLLIN };
            let mut fds = [PollFd::new(end, PollFlags::POLLIN), PollFd::new(self.0.as_fd(), events)];
            let timeout = if is_paused { ACCEPT_PAUSE } else { CHECK_INTERVAL };
            let timeout = PollTimeout::try_from(timeout).map_err(|_| Errno::EINVAL)?;
            let ready = match poll(&mut fds, timeout) {
                Err(Errno::EINTR) => continue,
                ready => ready?,
            };
            let [has_ended, has_connection] = fds.map(|fd| fd.any().unwrap_or(false));
            if has_ended {
                return Ok(());
            }
            is_paused = false;
            if has_connection {
                match self.0.open.accept() {
                    Ok((connection, _)) => receive(connection, context).into_iter().for_each(&mut act),
                    Err(why) => is_paused = why.kind() != io::ErrorKind::WouldBlock,
                }
            }
            if ready == 0 {
                self.0.restore(context);
            }
        }
    }
}

/// Receives the message of a connection; none if it has no finding.
fn receive(mut connection: UnixStream, context: SocketContext<'_>) -> Option<Finding> {
    if !is_authorized(&connection, context.log) {
        return None;
    }
    // One byte more than the longest message: the kernel truncates a longer one.
    let mut message = vec![0; MAX_FINDING + 1];
    let length = connection.set_nonblocking(false).and_then(|()| {
        connection.set_read_timeout(Some(SEND_TIMEOUT))?;
        connection.read(&mut message)
    });
    let finding = Finding::decode(message.get(..length.ok()?)?);
    if let Err(why) = &finding {
        context.log.warn("gybe node: a finding was refused", json!({ "why": why.to_string() }));
    }
    finding.ok()
}
