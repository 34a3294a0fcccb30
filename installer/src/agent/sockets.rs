//! The sockets for the plugin: one answers its queries, one receives its log lines.

use super::events::EventQueue;
use super::facts_socket::FactsSocket;
use super::log_socket::LogSocket;
use super::plugin_calls::PluginCalls;
use super::pods::PodLookup;
use crate::agent_status::AgentStatus;
use crate::error::errno;
use crate::lead::socket::{ServeError, SocketContext};
use crate::lead::socket_file::SocketError;
use crate::log::Log;
use gybe_plugin::conf::LOG_SOCKET;
use nix::errno::Errno;
use serde_json::json;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::thread;

/// Why the agent cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("cannot find out which agent of the node leads, in {}", .directory.display())]
    Lead { directory: PathBuf, source: SocketError },
    #[error("cannot wait for {what}")]
    Wait { what: &'static str, source: Errno },
}

pub(super) struct Sockets {
    facts: FactsSocket,
    log: LogSocket,
}

impl Sockets {
    pub(super) fn open(facts: &Path, to: &Log) -> Result<Self, NodeError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| ServeError { path, source }
        };
        let log = facts.with_file_name(LOG_SOCKET);
        let sockets = Self {
            facts: FactsSocket::open(facts).map_err(failed(facts))?,
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
            let logging = scope.spawn(|| self.log.serve(ended.as_fd(), calls, events, context));
            let served = self.facts.serve(stop, pods, status, context).map_err(wait("queries"));
            // Wakes the thread that polls the other end.
            drop(running);
            let logged = logging.join().unwrap_or(Err(Errno::EIO)).map_err(wait("log lines"));
            logged.and(served)
        })
    }
}
