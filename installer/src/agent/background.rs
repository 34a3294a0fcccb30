//! The agent's threads besides those of its sockets: the reconcile loop, HTTP, and the queries about our own node and
//! DaemonSet. They start before the sockets are served, and end after. An agent that only serves queries has none of them.

use super::cluster::DaemonSetState;
use super::daemonset::DaemonSet;
use super::http::{self, Page};
use super::node_label::{ClusterNode, NodeLabel};
use super::plugin_calls::PluginCalls;
use super::queries::CountedPods;
use super::reconcile::{ReconcileConfig, ReconcileContext, Reconciler};
use super::socket::SocketHealth;
use super::status::{PublishedStatus, StatusSources};
use super::{NodeError, health, metrics};
use crate::error::errno;
use crate::host::agent_status::AgentStatus;
use crate::host::settings::Environment;
use crate::log::Log;
use serde_json::json;
use std::io::{PipeReader, pipe};
use std::os::fd::AsFd;
use std::thread;
use std::time::Instant;
use tokio::sync::oneshot;

/// What the threads share.
pub(super) struct BackgroundTasks<'a> {
    pub(super) pods: &'a CountedPods<'a>,
    pub(super) calls: &'a PluginCalls,
    pub(super) health: &'a SocketHealth,
    pub(super) log: &'a Log,
    pub(super) home: Option<ClusterNode>,
}

impl BackgroundTasks<'_> {
    /// Runs the threads for as long as `serving` takes.
    pub(super) fn run(
        &self,
        config: ReconcileConfig,
        serving: impl FnOnce(&(dyn Fn() -> AgentStatus + Sync)) -> Result<(), NodeError>,
    ) -> Result<(), NodeError> {
        let wait = |what| move |why: std::io::Error| NodeError::Wait { what, source: errno(&why) };
        let (stop, running) = pipe().map_err(wait("the end"))?;
        let (published, label) = (PublishedStatus::default(), NodeLabel::default());
        let environment = config.settings.environment().clone();
        let daemonset = DaemonSet::new(self.home.as_ref(), &environment.namespace);
        let (end_http, http_ends) = oneshot::channel();
        let context = ReconcileContext {
            pods: self.pods,
            calls: self.calls,
            log: self.log,
            published: &published,
            label: self.home.as_ref().map(|_| &label),
        };
        let reconciler = Reconciler::new(config, context);
        let (pods, calls, sockets) = (self.pods, self.calls, self.health);
        let sources = StatusSources { published: &published, pods, calls, sockets, started: Instant::now() };
        thread::scope(|scope| {
            let reconciling = scope.spawn(|| reconciler.run(stop.as_fd()));
            let observing = scope.spawn(|| daemonset.observe(stop.as_fd()));
            scope.spawn(|| self.follow_label(&label, &stop));
            scope.spawn(|| self.serve_http(&environment, &sources, http_ends));
            let served = serving(&|| health::status(&sources.snapshot()));
            // Wakes the threads that poll the other end.
            drop(running);
            if let (Ok(reconciler), Ok(())) = (reconciling.join(), observing.join()) {
                self.uninstall_without_daemonset(reconciler, &daemonset);
            }
            drop(end_http);
            served
        })
    }

    fn follow_label(&self, label: &NodeLabel, stop: &PipeReader) {
        if let Some(home) = &self.home {
            label.follow(home, stop.as_fd(), self.log);
        }
    }

    fn serve_http(&self, environment: &Environment, sources: &StatusSources<'_>, end: oneshot::Receiver<()>) {
        let health = |path: &str| health::page(path, &sources.snapshot()).unwrap_or_else(Page::not_found);
        let metrics = |path: &str| match path {
            "/metrics" => Page::metrics(metrics::text(&sources.snapshot())),
            _ => Page::not_found(),
        };
        let health = environment.health.map(|listen| http::Server { listen, page: &health, name: "health" });
        let metrics =
            environment.metrics.map(|listen| http::Server { listen, page: &metrics, name: "metrics" });
        let servers: Vec<http::Server<'_>> = health.into_iter().chain(metrics).collect();
        if let Err(why) = http::serve(&servers, end, self.log) {
            self.log.error("gybe node: nothing is served over HTTP", json!({ "why": why.to_string() }));
        }
    }

    /// Uninstalls if `leave_when_daemonset_gone` is set and the DaemonSet is gone.
    fn uninstall_without_daemonset(&self, mut reconciler: Reconciler<'_>, daemonset: &DaemonSet<'_>) {
        let is_configured = reconciler.settings().options.leave_when_daemonset_gone;
        let Some(state) = is_configured.then(|| daemonset.state()).flatten() else { return };
        let stays = |message, cause: &str| {
            let hint = "to take the node out of the chain, run gybe uninstall on it";
            self.log.warn(message, json!({ "cause": cause, "hint": hint }));
        };
        match state {
            DaemonSetState::Absent | DaemonSetState::BeingDeleted => {
                self.log.info("gybe node: the DaemonSet is gone; uninstalling", json!({}));
                reconciler.uninstall();
            }
            DaemonSetState::Present => {}
            DaemonSetState::Refused(cause) => {
                stays(
                    "gybe node: the API server refuses to show the DaemonSet; nothing is uninstalled",
                    &cause,
                );
            }
            DaemonSetState::Unknown(cause) => {
                stays("gybe node: the state of the DaemonSet is unknown; nothing is uninstalled", &cause);
            }
        }
    }
}
