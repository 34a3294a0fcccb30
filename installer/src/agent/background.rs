//! An agent that reconciles its node: the threads that run as long as the process (the watch of our own node, the query
//! about our DaemonSet, the socket that reports this agent's own status), and those of a term in which it leads (the
//! reconcile loop, HTTP, the node's condition, requests about running pods). The sockets for the plugin are created at the start of a term,
//! and answer until the next one or the end of the process.

use super::ambient::{AmbientNode, unknown_pods};
use super::broken_pods::BrokenPods;
use super::daemonset::OwnDaemonSet;
use super::events::{EventQueue, EventWriter};
use super::exempted_pods::forget_exempted_pods;
use super::facts_socket::FactsSocket;
use super::http::{self, Page};
use super::node_condition::ConditionWriter;
use super::plugin_calls::PluginCalls;
use super::pods::{CountedPods, PodLookup};
use super::reconcile::{ReconcileConfig, ReconcileContext, Reconciler};
use super::sockets::{NodeError, Sockets};
use super::status::StatusSources;
use super::{health, metrics, node_taint};
use crate::agent_status::{self, PortPurpose};
use crate::cluster::{ClusterNode, DaemonSetState, OwnNode};
use crate::error::{chain, errno};
use crate::host::settings::{AGENT_LEADER, Environment, NodeMode, STATUS_SOCKET, Settings};
use crate::host::uninstall::forget_run_directory;
use crate::lead::leader::{self, Candidate, Lead, LeadEnd};
use crate::lead::process::{Role, Shared};
use crate::lead::socket::{ServeError, SocketContext, SocketHealth};
use crate::sandboxes::probe_exemption;
use nix::errno::Errno;
use nix::sys::signalfd::SignalFd;
use serde_json::json;
use std::collections::BTreeSet;
use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, Scope, ScopedJoinHandle};
use tokio::sync::oneshot;

/// An agent that reconciles its node: what its threads share.
pub(super) struct NodeAgent<'a> {
    pub(super) pods: &'a CountedPods<'a>,
    pub(super) calls: &'a PluginCalls,
    pub(super) context: SocketContext<'a>,
    pub(super) events: &'a EventQueue,
    pub(super) home: Option<ClusterNode>,
    /// The path of the facts socket.
    pub(super) facts: &'a Path,
    pub(super) stop: &'a SignalFd,
    /// None where ambient mode is off.
    pub(super) ambient: Option<&'a AmbientNode>,
}

/// What all terms share in which this agent leads.
struct Terms<'a> {
    environment: &'a Environment,
    sources: StatusSources<'a>,
    daemonset: &'a OwnDaemonSet<'a>,
    own_node: &'a OwnNode,
}

/// The sockets for the plugin of one term. When this is dropped they respond to what has arrived, and close.
struct Answering<'scope> {
    thread: ScopedJoinHandle<'scope, Result<(), NodeError>>,
    /// Readable when the thread has ended.
    served: PipeReader,
    /// The thread polls the other end.
    running: PipeWriter,
}

impl Answering<'_> {
    /// Waits until they have closed.
    fn end(self) -> Result<(), NodeError> {
        drop(self.running);
        self.thread.join().unwrap_or(Ok(()))
    }
}

impl NodeAgent<'_> {
    /// Runs until the signal to stop. Leads as soon as no other agent of the node does.
    pub(super) fn run(&self, config: ReconcileConfig) -> Result<(), NodeError> {
        let (ended, running) = pipe().map_err(|why| waiting("the end of the agent")(errno(&why)))?;
        let (published, own_node) = (Shared::default(), OwnNode::default());
        let environment = config.settings.environment().clone();
        let daemonset = OwnDaemonSet::new(self.home.as_ref(), &environment);
        let context = ReconcileContext {
            pods: self.pods,
            calls: self.calls,
            log: self.context.log,
            published: &published,
            node: self.home.as_ref().map(|_| &own_node),
            events: self.home.as_ref().map(|_| self.events),
            ambient: self.ambient,
        };
        let reconciler = Reconciler::new(config, context);
        let (pods, calls) = (self.pods, self.calls);
        let (sockets, role) = (self.context.health, self.context.role);
        let broken_pods = Shared::default();
        let sources = StatusSources {
            published: &published,
            pods,
            calls,
            sockets,
            role,
            probe: &environment.probe,
            broken_pods: &broken_pods,
            events: self.home.as_ref().map(|_| self.events),
            ambient: self.ambient,
        };
        let own = environment.pod_directory.as_ref().map(|directory| directory.join(STATUS_SOCKET));
        let own =
            own.map(|path| FactsSocket::open(&path, None).map_err(|source| ServeError { path, source }));
        let own = own.transpose()?;
        let own_health = SocketHealth::default();
        thread::scope(|scope| {
            scope.spawn(|| daemonset.observe(ended.as_fd()));
            scope.spawn(|| self.follow_node(&own_node, &ended));
            scope.spawn(|| self.follow_namespaces(&ended));
            scope.spawn(|| self.write_events(&environment));
            scope.spawn(|| self.keep_taints(&own_node, &sources, &ended));
            if let Some(mut own) = own {
                let (ended, status) = (ended.as_fd(), || health::status(&sources.snapshot()));
                let context = SocketContext { health: &own_health, ..self.context };
                scope.spawn(move || own.serve(ended, self.pods, &status, context));
            }
            let terms =
                Terms { environment: &environment, sources, daemonset: &daemonset, own_node: &own_node };
            let served = self.lead(scope, &terms, reconciler);
            // Wakes the threads that poll the other end.
            drop(running);
            self.events.close();
            served
        })
    }

    /// Leads as often as the lead comes to this agent, until the signal to stop.
    fn lead<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        terms: &Terms<'scope>,
        mut reconciler: Reconciler<'scope>,
    ) -> Result<(), NodeError> {
        let (environment, log) = (terms.environment, self.context.log);
        let started = leader::pod_start(environment.pod_directory.as_deref());
        let candidate = Candidate::new(&environment.run, AGENT_LEADER, started, &environment.pod);
        let unknown = |source| NodeError::Lead { directory: environment.run.clone(), source };
        let mut former: Option<Answering<'_>> = None;
        loop {
            let mut is_prepared = || {
                let state = self.pods.state();
                let unknown = if self.ambient.is_some() { unknown_pods(state) } else { state.missing };
                unknown.is_none() && reconciler.has_settings()
            };
            let waits = || log.info("gybe node: another agent leads on this node; waiting", json!({}));
            let lead = candidate.wait(self.stop.as_fd(), &mut is_prepared, waits).map_err(unknown)?;
            let Some(lead) = lead else { return Ok(()) };
            // Before the role: while this agent leads, the sockets of the former term create a file that is not served,
            // and two threads would create the same file at once.
            let ambient = self.ambient.map(|node| Arc::clone(&node.pods));
            ambient.iter().for_each(|pods| pods.accept_hand_overs());
            let sockets = Sockets::open(self.facts, ambient, log)?;
            drop(former.take());
            self.context.role.set(Role::leads());
            log.info("gybe node: leads", json!({}));
            let (ends, running) = pipe().map_err(|why| waiting("the sockets")(errno(&why)))?;
            let (served, serving) = pipe().map_err(|why| waiting("the sockets")(errno(&why)))?;
            let sources = terms.sources;
            let thread = scope.spawn(move || {
                let _closed_at_the_end = serving;
                let status = || health::status(&sources.snapshot());
                sockets.serve(self.pods, self.calls, &status, ends.as_fd(), self.events, self.context)
            });
            match self.term(lead, Answering { thread, served, running }, terms, reconciler)? {
                Some((returned, answering)) => (reconciler, former) = (returned, Some(answering)),
                None => return Ok(()),
            }
        }
    }

    /// Keeps the node until the signal to stop, or until another agent leads: then returns the reconciler, and the
    /// sockets, which answer until the next leader has replaced their files.
    fn term<'scope>(
        &self,
        mut lead: Lead,
        sockets: Answering<'scope>,
        terms: &Terms<'_>,
        reconciler: Reconciler<'scope>,
    ) -> Result<Option<(Reconciler<'scope>, Answering<'scope>)>, NodeError> {
        let (halted, reconciling) = pipe().map_err(|why| waiting("the loop")(errno(&why)))?;
        let (end_http, http_ends) = oneshot::channel();
        let (end, continued) = thread::scope(|term| {
            let halted = halted.as_fd();
            let turns = term.spawn(move || reconciler.run(halted));
            term.spawn(move || self.act_on_broken_pods(terms, halted));
            // Ends before `lead` is released: the next leader writes the condition after it.
            term.spawn(move || self.keep_condition(terms, halted));
            match self.ambient {
                Some(ambient) => {
                    term.spawn(move || ambient.serve(self.pods, self.home.as_ref(), halted, self.context));
                }
                None => forget_exempted_pods(&terms.environment.probe, self.context.log),
            }
            term.spawn(|| self.serve_http(terms.environment, &terms.sources, http_ends));
            let ends = [self.stop.as_fd(), sockets.served.as_fd()];
            let mut end = lead.wait(&ends, self.context).map_err(waiting("the lead"));
            let has_stopped = !matches!(end, Ok(LeadEnd::Requested(_) | LeadEnd::Lost));
            // Queries that have arrived are answered while the loop runs.
            let (served, sockets) = if has_stopped { (sockets.end(), None) } else { (Ok(()), Some(sockets)) };
            if !has_stopped {
                let was_ready = health::status(&terms.sources.snapshot()).ready;
                self.context.role.set(Role::HandedOver { was_ready });
            }
            drop(reconciling);
            let mut reconciler = turns.join().ok();
            // Sockets that have failed end the wait, too.
            let is_signalled = matches!((&served, &end), (Ok(()), Ok(LeadEnd::Stopped)));
            if let Some(reconciler) = reconciler.take_if(|_| is_signalled) {
                end = self.uninstall_without_daemonset(reconciler, terms, &mut lead);
            }
            // The ports are free before the next agent leads.
            drop(end_http);
            (served.and(end), reconciler.zip(sockets))
        });
        let log = self.context.log;
        match end? {
            LeadEnd::Stopped => {}
            LeadEnd::Requested(successor) => {
                log.info(
                    "gybe node: hands over to a newer agent of this node",
                    json!({ "agent": successor.name }),
                );
                lead.hand_over(successor, self.stop.as_fd());
            }
            LeadEnd::Lost => {
                log.warn("gybe node: the lock file was removed, and another agent leads", json!({}));
            }
        }
        Ok(continued.map(|(reconciler, sockets)| (reconciler.paused(), sockets)))
    }

    fn follow_node(&self, own_node: &OwnNode, stop: &PipeReader) {
        let log = self.context.log;
        if let Some(home) = &self.home
            && let Err(why) = own_node.follow(home, stop, log)
        {
            log.error("the agent's node is not watched", json!({ "cause": why.to_string() }));
        }
    }

    fn follow_namespaces(&self, stop: &PipeReader) {
        let log = self.context.log;
        if let (Some(home), Some(ambient)) = (&self.home, self.ambient)
            && let Err(why) = ambient.namespaces.follow(home, stop, log)
        {
            log.error("gybe node: the namespaces are not watched", json!({ "cause": why.to_string() }));
        }
    }

    fn write_events(&self, environment: &Environment) {
        if let Some(home) = &self.home {
            let (role, log) = (self.context.role, self.context.log);
            let writer = EventWriter { home, instance: &environment.pod, pods: self.pods, role, log };
            self.events.write_all(&writer);
        }
    }

    fn act_on_broken_pods(&self, terms: &Terms<'_>, stop: BorrowedFd<'_>) {
        let (home, sources) = (self.home.as_ref(), &terms.sources);
        BrokenPods { home, sources, context: self.context }.serve(&terms.environment.probe, stop);
    }

    fn keep_taints(&self, own_node: &OwnNode, sources: &StatusSources<'_>, stop: &PipeReader) {
        if let Some(home) = &self.home {
            let (events, log) = (self.events, self.context.log);
            node_taint::keep(home, own_node, sources, stop.as_fd(), events, log);
        }
    }

    fn keep_condition(&self, terms: &Terms<'_>, stop: BorrowedFd<'_>) {
        if let Some(home) = &self.home {
            let (Terms { own_node, sources, .. }, log) = (terms, self.context.log);
            ConditionWriter { home, own_node, sources, log }.keep(&[self.stop.as_fd(), stop]);
        }
    }

    fn serve_http(&self, environment: &Environment, sources: &StatusSources<'_>, end: oneshot::Receiver<()>) {
        let health = |path: &str| health::page(path, &sources.snapshot()).unwrap_or_else(Page::not_found);
        let metrics = |path: &str| match path {
            "/metrics" => Page::metrics(metrics::text(&sources.snapshot())),
            "/status" => Page::json(&agent_status::page(&health::status(&sources.snapshot()))),
            _ => Page::not_found(),
        };
        let health = environment.health.map(|listen| http::Server {
            listen,
            page: &health,
            purpose: PortPurpose::Health,
        });
        let metrics = environment.metrics.map(|listen| http::Server {
            listen,
            page: &metrics,
            purpose: PortPurpose::Metrics,
        });
        let servers: Vec<http::Server<'_>> = health.into_iter().chain(metrics).collect();
        if let Err(why) = http::serve(&servers, end, self.context) {
            self.context
                .log
                .error("gybe node: nothing is served over HTTP", json!({ "why": why.to_string() }));
        }
    }

    /// Leaves the node as it is, unless the settings say to uninstall and the DaemonSet is gone: then removes the
    /// entry, the programs as soon as no sandbox needs them, and the files in the agent's directory. Ends early when
    /// another agent requests the lead.
    fn uninstall_without_daemonset(
        &self,
        mut reconciler: Reconciler<'_>,
        terms: &Terms<'_>,
        lead: &mut Lead,
    ) -> Result<LeadEnd, NodeError> {
        let Some(removal) = self.removal(reconciler.settings(), terms.daemonset) else {
            return Ok(LeadEnd::Stopped);
        };
        self.context.log.info("gybe node: the DaemonSet is gone; uninstalling", json!({ "mode": removal }));
        let (halted, uninstalling) = pipe().map_err(|why| waiting("the uninstall")(errno(&why)))?;
        let (ended, running) = pipe().map_err(|why| waiting("the uninstall")(errno(&why)))?;
        let (end, is_complete) = thread::scope(|scope| {
            let uninstall = scope.spawn(move || {
                let _closed_at_the_end = running;
                reconciler.uninstall(halted.as_fd())
            });
            let end = lead.wait(&[ended.as_fd()], self.context).map_err(waiting("the uninstall"));
            drop(uninstalling);
            (end, uninstall.join().unwrap_or(false))
        });
        // The agent of another pod that waits for the lead needs these files.
        if is_complete && matches!(end, Ok(LeadEnd::Stopped)) && !lead.is_awaited() {
            let Environment { run, probe, .. } = terms.environment;
            if let Err(why) = probe_exemption::uninstall(Path::new("/host"), probe) {
                let fields = json!({ "cause": chain(&why), "hint": probe_exemption::REMOVAL });
                self.context.log.warn("gybe node: the kubelet's probes may stay exempt", fields);
            }
            let failed = BTreeSet::from([run, probe])
                .into_iter()
                .flat_map(|directory| forget_run_directory(directory, true));
            for (path, why) in failed.chain(lead.remove_lock_file().err()) {
                let fields = json!({ "path": path.display().to_string(), "cause": why.to_string() });
                self.context.log.warn("gybe node: a file stays on this node", fields);
            }
        }
        end
    }

    /// Returns the setting by which the agent uninstalls as it ends; none when the node stays as it is.
    fn removal(&self, settings: &Settings, daemonset: &OwnDaemonSet<'_>) -> Option<&'static str> {
        let log = self.context.log;
        let leaves = settings.options.mode == NodeMode::Leave;
        if !leaves && !settings.options.leave_when_daemonset_gone {
            return None;
        }
        let stays = |message, cause: &str| {
            let hint = "to take the node out of the chain, run gybe uninstall on it";
            log.warn(message, json!({ "cause": cause, "hint": hint }));
            None
        };
        match daemonset.state()? {
            DaemonSetState::Present => None,
            // The operator has decided to uninstall. The API server may refuse the query because the RBAC rules were
            // deleted with the DaemonSet.
            _ if leaves => Some("mode: leave"),
            DaemonSetState::Absent | DaemonSetState::BeingDeleted => Some("leave_when_daemonset_gone"),
            DaemonSetState::Refused(cause) => stays(
                "gybe node: the API server refuses to show the DaemonSet; nothing is uninstalled",
                &cause,
            ),
            DaemonSetState::Unknown(cause) => {
                stays("gybe node: the state of the DaemonSet is unknown; nothing is uninstalled", &cause)
            }
        }
    }
}

fn waiting(what: &'static str) -> impl Fn(Errno) -> NodeError {
    move |source| NodeError::Wait { what, source }
}
