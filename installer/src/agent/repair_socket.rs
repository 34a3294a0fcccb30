//! The socket to which the process that repairs pods sends its findings, one on each connection. The connection stays
//! open while the agent acts on the finding; the agent may request a judgement over it.

use crate::lead::socket::{
    ACCEPT_PAUSE, CHECK_INTERVAL, ServedSocket, SocketContext, SocketFileError, SocketHealth, is_authorized,
};
use crate::sandboxes::repair::{JUDGE, MAX_FINDING, PodJudgement, RepairFinding};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, SockType, send};
use serde_json::json;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a connected process may take to send a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// How long it may take to judge a pod, mostly to list the node's sandboxes and processes.
const JUDGE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection of the process that repairs pods.
#[derive(Debug)]
pub(crate) struct RepairConnection<'a> {
    stream: UnixStream,
    /// Readable when this agent's lead ends.
    end: BorrowedFd<'a>,
}

impl RepairConnection<'_> {
    /// Requests a judgement of the finding's pod; none if none arrives in time, or if the lead ends before it is read.
    pub(crate) fn judgement(&mut self) -> Option<PodJudgement> {
        send(self.stream.as_raw_fd(), JUDGE, MsgFlags::MSG_NOSIGNAL).ok()?;
        let mut fds = [self.end, self.stream.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let until = Instant::now() + JUDGE_TIMEOUT;
        let left = || PollTimeout::try_from(until.saturating_duration_since(Instant::now()));
        while poll(&mut fds, left().ok()?) == Err(Errno::EINTR) {}
        let [has_ended, has_judgement] = fds.map(|fd| fd.any().unwrap_or(false));
        if has_ended || !has_judgement {
            return None;
        }
        PodJudgement::decode(&self.receive().ok()?)
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        // One byte more than the longest message: a longer one is truncated to a length that is refused.
        let mut message = vec![0; MAX_FINDING + 1];
        let length = loop {
            match self.stream.read(&mut message) {
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                received => break received?,
            }
        };
        message.truncate(length);
        Ok(message)
    }
}

#[derive(Debug)]
pub(crate) struct RepairSocket(ServedSocket<UnixListener>);

impl RepairSocket {
    pub(crate) fn open(path: &Path) -> Result<Self, SocketFileError> {
        // SOCK_SEQPACKET has connections and preserves message boundaries.
        ServedSocket::open(path, SockType::SeqPacket).map(Self)
    }

    /// Passes each finding to `act`, with its connection, until `end` is readable.
    pub(crate) fn serve(
        &mut self,
        end: BorrowedFd<'_>,
        context: SocketContext<'_>,
        mut act: impl FnMut(&RepairFinding, &mut RepairConnection<'_>),
    ) -> Result<(), Errno> {
        // A record that is not reported: no ADD needs this socket, so its loss does not make the agent unready.
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
                    Ok((connection, _)) => {
                        let mut connection = RepairConnection { stream: connection, end };
                        if let Some(finding) = receive_finding(&mut connection, context) {
                            act(&finding, &mut connection);
                        }
                    }
                    Err(why) => is_paused = why.kind() != io::ErrorKind::WouldBlock,
                }
            }
            if ready == 0 {
                self.0.restore(context);
            }
        }
    }
}

/// Receives the finding of a connection; none if its peer is not authorized, or sends no valid one in time.
fn receive_finding(
    connection: &mut RepairConnection<'_>,
    context: SocketContext<'_>,
) -> Option<RepairFinding> {
    if !is_authorized(&connection.stream, context.log) {
        return None;
    }
    let stream = &connection.stream;
    stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(SEND_TIMEOUT))).ok()?;
    let finding = RepairFinding::decode(&connection.receive().ok()?);
    if let Err(why) = &finding {
        context.log.warn("gybe node: a finding was refused", json!({ "why": why.to_string() }));
    }
    finding.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandboxes::repair::PodVerdict;
    use gybe_test_support::wait_until;
    use nix::sys::pthread::pthread_kill;
    use nix::sys::signal::Signal;
    use nix::unistd::gettid;
    use std::io::{Write, pipe};
    use std::os::unix::thread::JoinHandleExt;
    use std::sync::mpsc;
    use std::{fs, thread};
    use tokio::signal::unix::{self, SignalKind};

    #[test]
    fn a_judgement_is_received_while_the_lead_lasts() {
        let sent = br#"{"at":{"secs":7,"nanos":0},"verdict":"not-redirected"}"#;
        let judgement = PodJudgement { at: Duration::from_secs(7), verdict: PodVerdict::NotRedirected };
        for (leads, expected) in [(true, Some(judgement)), (false, None)] {
            let (end, lead) = pipe().unwrap();
            let lead = leads.then_some(lead);
            let (stream, mut repair) = UnixStream::pair().unwrap();
            repair.write_all(sent).unwrap();
            assert_eq!(RepairConnection { stream, end: end.as_fd() }.judgement(), expected, "{lead:?}");
        }
    }

    #[test]
    fn a_judgement_is_received_after_a_signal() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        // An ignored signal interrupts no call.
        let mut handler = runtime.block_on(async { unix::signal(SignalKind::user_defined2()) }).unwrap();
        let (end, _lead) = pipe().unwrap();
        let (stream, mut repair) = UnixStream::pair().unwrap();
        let (sender, thread) = mpsc::channel();
        let waiting = thread::spawn(move || {
            sender.send(gettid()).unwrap();
            RepairConnection { stream, end: end.as_fd() }.judgement()
        });
        let thread = thread.recv().unwrap();
        repair.read_exact(&mut vec![0; JUDGE.len()]).unwrap();
        let status = || fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
        wait_until("a thread that waits", || status().contains("State:\tS"));
        pthread_kill(waiting.as_pthread_t(), Signal::SIGUSR2).unwrap();
        runtime.block_on(handler.recv()).unwrap();
        repair.write_all(br#"{"at":{"secs":7,"nanos":0},"verdict":"not-redirected"}"#).unwrap();
        assert!(waiting.join().unwrap().is_some());
    }
}
