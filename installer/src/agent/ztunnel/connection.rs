//! One connection of a ztunnel: its hello, then one request at a time, each with its response. The connection is closed
//! when a response does not come in time, or when a packet comes that is not a response: a later packet could otherwise
//! be taken for the response to another request. ztunnel then connects again, and receives a snapshot.

use super::messages::{self, MAX_MESSAGE, MessageError};
use super::pods::{AmbientPods, ConnectionId, Request};
use crate::log::Log;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, recvmsg, sendmsg};
use serde_json::json;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionEnd {
    /// The server stops.
    #[error("the agent ends or hands over")]
    Stopped,
    #[error("ztunnel closed the connection")]
    Closed,
    #[error("ztunnel did not answer within {0:?}")]
    Late(Duration),
    #[error("ztunnel sent a packet although no request was pending")]
    Unexpected,
    #[error("ztunnel sent an invalid packet")]
    Invalid(#[from] MessageError),
    /// The text is ztunnel's.
    #[error("ztunnel refused the end of its snapshot: {0:?}")]
    SnapshotRefused(String),
    #[error("the kernel reports an error")]
    Kernel(#[from] Errno),
}

/// A connection of an authorized peer.
pub(super) struct Connection<'a> {
    pub(super) socket: OwnedFd,
    pub(super) pods: &'a AmbientPods,
    /// Readable when the server stops.
    pub(super) end: BorrowedFd<'a>,
    /// How long ztunnel may take for its hello, and for each response.
    pub(super) timeout: Duration,
    pub(super) log: &'a Log,
}

/// The registration of a ztunnel, which ends with the value.
struct Registration<'a> {
    pods: &'a AmbientPods,
    id: ConnectionId,
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.pods.disconnect(self.id);
    }
}

impl Connection<'_> {
    /// Serves until the connection has to end.
    pub(super) fn serve(&self) -> ConnectionEnd {
        match self.converse() {
            Ok(never) => match never {},
            Err(why) => {
                if matches!(why, ConnectionEnd::Late(_)) {
                    self.pods.count_late();
                }
                why
            }
        }
    }

    fn converse(&self) -> Result<std::convert::Infallible, ConnectionEnd> {
        messages::decode_hello(&self.receive(Instant::now() + self.timeout)?)?;
        let (id, wake) = self.pods.connect()?;
        let _registered = Registration { pods: self.pods, id };
        self.log.info("gybe node: ztunnel is connected", json!({}));
        loop {
            match self.pods.next_request(id) {
                Some(request) => self.exchange(id, &request)?,
                None => self.wait_for_change(&wake, self.pods.retry_at(id))?,
            }
        }
    }

    /// Sends a request, and records its response.
    fn exchange(&self, id: ConnectionId, request: &Request) -> Result<(), ConnectionEnd> {
        let (sent, deadline) = (Instant::now(), Instant::now() + self.timeout);
        self.expect_silence()?;
        let (message, netns) = match request {
            Request::Add { pod, netns, .. } => (messages::add(pod), Some(netns.as_fd())),
            Request::Keep { pod, .. } => (messages::keep(&pod.uid), None),
            Request::SnapshotSent => (messages::snapshot_sent(), None),
            Request::Del(uid) => (messages::del(uid), None),
        };
        self.send(&message, netns, deadline)?;
        let response = messages::decode_response(&self.receive(deadline)?)?;
        self.pods.answer(id, request, &response, sent.elapsed());
        let refused = |pod: &str, why: &String| {
            self.log.warn("gybe node: ztunnel refused a request", json!({ "pod": pod, "why": why }));
        };
        match (request, response) {
            (Request::SnapshotSent, Ok(())) => {
                self.log.info("gybe node: ztunnel has acknowledged its snapshot", json!({}));
            }
            (Request::SnapshotSent, Err(why)) => return Err(ConnectionEnd::SnapshotRefused(why)),
            (Request::Add { pod, .. } | Request::Keep { pod, .. }, Err(why)) => {
                refused(&pod.to_string(), &why);
            }
            (Request::Del(uid), Err(why)) => refused(uid.as_str(), &why),
            (_, Ok(())) => {}
        }
        Ok(())
    }

    /// Waits until the pods have changed, or a pod is sent again. ztunnel sends nothing meanwhile.
    fn wait_for_change(&self, wake: &EventFd, until: Option<Instant>) -> Result<(), ConnectionEnd> {
        let fds = [(wake.as_fd(), PollFlags::POLLIN), (self.socket.as_fd(), PollFlags::POLLIN)];
        let [has_changed, has_packet] = match self.poll(fds, until) {
            Err(ConnectionEnd::Late(_)) => return Ok(()),
            ready => ready?,
        };
        if has_packet {
            self.expect_silence()?;
        }
        if has_changed {
            // It is written again with the next change.
            let _ = wake.read();
        }
        Ok(())
    }

    /// Checks that no packet has arrived. A second response to the last request would be taken for the next one's.
    fn expect_silence(&self) -> Result<(), ConnectionEnd> {
        match nix::sys::socket::recv(self.socket.as_raw_fd(), &mut [0], MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EAGAIN) => Ok(()),
            Err(errno) => Err(ended(errno)),
            Ok(0) => Err(ConnectionEnd::Closed),
            Ok(_) => Err(ConnectionEnd::Unexpected),
        }
    }

    fn send(
        &self,
        message: &[u8],
        netns: Option<BorrowedFd<'_>>,
        deadline: Instant,
    ) -> Result<(), ConnectionEnd> {
        let descriptors = netns.map(|netns| [netns.as_raw_fd()]);
        let control = descriptors.as_ref().map(|fds| ControlMessage::ScmRights(fds));
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        loop {
            let parts = [IoSlice::new(message)];
            match sendmsg::<UnixAddr>(self.socket.as_raw_fd(), &parts, control.as_slice(), flags, None) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    let [_writable] =
                        self.poll([(self.socket.as_fd(), PollFlags::POLLOUT)], Some(deadline))?;
                }
                Err(errno) => return Err(ended(errno)),
            }
        }
    }

    /// Receives one packet. The kernel closes descriptors that come with it, for which there is no room.
    fn receive(&self, deadline: Instant) -> Result<Vec<u8>, ConnectionEnd> {
        loop {
            let [_readable] = self.poll([(self.socket.as_fd(), PollFlags::POLLIN)], Some(deadline))?;
            let mut packet = vec![0; MAX_MESSAGE];
            let mut parts = [IoSliceMut::new(&mut packet)];
            match recvmsg::<UnixAddr>(self.socket.as_raw_fd(), &mut parts, None, MsgFlags::MSG_DONTWAIT) {
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(errno) => return Err(ended(errno)),
                Ok(read) if read.flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC) => {
                    return Err(MessageError::TooLong.into());
                }
                Ok(read) if read.bytes == 0 => return Err(ConnectionEnd::Closed),
                Ok(read) => {
                    let length = read.bytes;
                    packet.truncate(length);
                    return Ok(packet);
                }
            }
        }
    }

    /// Waits for one of the descriptors, the end of the server, or the deadline; reports which are ready.
    fn poll<const N: usize>(
        &self,
        descriptors: [(BorrowedFd<'_>, PollFlags); N],
        deadline: Option<Instant>,
    ) -> Result<[bool; N], ConnectionEnd> {
        loop {
            let mut fds: Vec<_> = descriptors.iter().map(|(fd, events)| PollFd::new(*fd, *events)).collect();
            fds.push(PollFd::new(self.end, PollFlags::POLLIN));
            // poll(2) counts whole milliseconds.
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let timeout = match left {
                Some(left) if left.is_zero() => return Err(ConnectionEnd::Late(self.timeout)),
                Some(left) => {
                    PollTimeout::try_from(left + Duration::from_millis(1)).map_err(|_| Errno::EINVAL)?
                }
                None => PollTimeout::NONE,
            };
            match poll(&mut fds, timeout) {
                Ok(0) | Err(Errno::EINTR) => continue,
                ready => ready?,
            };
            let mut ready = fds.iter().map(|fd| fd.any().unwrap_or(true));
            let found = std::array::from_fn(|_| ready.next().unwrap_or_default());
            return if ready.next().unwrap_or_default() { Err(ConnectionEnd::Stopped) } else { Ok(found) };
        }
    }
}

/// A peer that is gone: its end of the socket was closed with or without unread packets.
fn ended(errno: Errno) -> ConnectionEnd {
    match errno {
        Errno::ECONNRESET | Errno::EPIPE => ConnectionEnd::Closed,
        errno => ConnectionEnd::Kernel(errno),
    }
}
