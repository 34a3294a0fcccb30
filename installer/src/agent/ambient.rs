//! Ambient mode of the agent: decides which of its node's pods are ambient, and serves ztunnel while the agent leads.
//!
//! `pod::enablement` has the decision, `cluster`'s watch the labels of the namespaces, `ztunnel` the pods that were
//! handed over and the server. None of it exists where ambient mode is off.

use super::annotation::{ANNOTATION, AnnotationStatus, AnnotationWriter};
use super::exempted_pods::ExemptionFiles;
use super::facts_socket::MAX_REQUEST_FILES;
use super::pods::{PodLookup, PodsState};
use super::ztunnel::{AmbientPods, PodState, TIMEOUT, ZtunnelServer, ZtunnelStatus};
use crate::cluster::{ClusterNode, NamespaceLabels};
use crate::error::chain;
use crate::host::settings::AmbientEnvironment;
use crate::lead::socket::{SocketContext, SocketHealth};
use crate::log::Log;
use crate::pod::enablement::{Enablement, EnablementSelectors, is_announced};
use crate::retry::since_boot;
use gybe_plugin::args::PodRef;
use gybe_plugin::facts::ambient::{AmbientPod, PodUid};
use gybe_plugin::facts::wire::FactsResponse;
use gybe_plugin::names::STATUS;
use gybe_plugin::pod::{Ambient, PodFacts, Selectable};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// How long an ambient pod may wait for ztunnel before the agent is not ready: a hand-over waits 10 s.
const MAX_PENDING: Duration = Duration::from_secs(15);

/// After how long the server's socket, or the node's pods, are looked for again.
const RETRY: Duration = Duration::from_secs(1);

/// The most pods that the container `repair` has to look at before the others. It looks at all of them each minute.
const MAX_DUE: usize = 128;

/// The files that are reserved: 2,048, for requests and hand-overs that wait, and for sockets and watches.
const OTHER_FILES: usize = MAX_REQUEST_FILES.next_power_of_two();

/// The most characters of a reason that is sent to a client.
const MAX_WHY: usize = 300;

/// The state of ambient mode, which outlives the terms in which the agent leads.
#[derive(Debug)]
pub struct AmbientNode {
    environment: AmbientEnvironment,
    pub pods: Arc<AmbientPods>,
    pub(super) namespaces: NamespaceLabels,
    /// None while no settings are known.
    selection: Mutex<Option<Arc<Selection>>>,
    /// Of the server's socket.
    health: SocketHealth,
    exemption: ExemptionFiles,
    pub(super) annotations: Mutex<AnnotationStatus>,
    due: Mutex<DuePods>,
}

/// What is kept of the pods that are due.
#[derive(Debug, Default)]
struct DuePods {
    /// Since when ambient pods are not enrolled, by uid.
    unenrolled: BTreeMap<String, Instant>,
    /// The minute, since the boot, of the pods that were last returned.
    minute: u64,
    /// The uid at which these begin.
    first: String,
}

/// The settings that decide which pods are ambient.
#[derive(Debug)]
struct Selection {
    selectors: EnablementSelectors,
    /// Namespaces in which no pod is.
    excluded: BTreeSet<String>,
}

impl AmbientNode {
    /// `shared` is the directory that the agent shares with the container `repair`.
    pub fn new(environment: AmbientEnvironment, shared: PathBuf) -> Self {
        Self {
            exemption: ExemptionFiles::new(shared, environment.probes),
            environment,
            pods: Arc::default(),
            namespaces: NamespaceLabels::default(),
            selection: Mutex::new(None),
            health: SocketHealth::default(),
            annotations: Mutex::default(),
            due: Mutex::default(),
        }
    }

    /// Raises the limit of open files as far as this process may, and holds no more namespaces than it allows beside the
    /// agent's other files.
    pub(super) fn allow_many_files(&self, log: &Log) {
        let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(current, most)| {
            let raised = setrlimit(Resource::RLIMIT_NOFILE, most, most);
            let files = if raised.is_ok() { most } else { current };
            let files = usize::try_from(files).unwrap_or(usize::MAX);
            self.pods.hold_at_most(files - OTHER_FILES.min(files / 2));
            raised
        });
        if let Err(why) = raised {
            log.warn(
                "gybe node: the limit of open files cannot be raised",
                json!({ "why": why.to_string() }),
            );
        }
    }

    /// Decides by these selectors from now on, except about pods in the excluded namespaces.
    pub(super) fn set_selectors(&self, selectors: Option<&EnablementSelectors>, excluded: &BTreeSet<String>) {
        let selection =
            selectors.cloned().map(|selectors| Selection { selectors, excluded: excluded.clone() });
        *self.selection.lock().unwrap_or_else(PoisonError::into_inner) = selection.map(Arc::new);
    }

    /// Serves ztunnel until `end` is readable. A ztunnel that connects stops the proxies of pods that it does not receive,
    /// so the server starts when the node's pods are known: then ztunnel keeps every pod that an earlier agent may have
    /// handed over. Afterwards the plugin hands over to another agent.
    pub(super) fn serve(
        &self,
        pods: &dyn PodLookup,
        home: Option<&ClusterNode>,
        end: BorrowedFd<'_>,
        context: SocketContext<'_>,
    ) {
        let context = SocketContext { health: &self.health, ..context };
        if self.knows_pods(pods, end) {
            self.keep_pods(pods, context.log);
            thread::scope(|scope| {
                scope.spawn(|| self.exemption.keep(&self.pods, &|| self.due(pods), end, context.log));
                if let Some(home) = home {
                    let writer = AnnotationWriter { home, node: self, pods, log: context.log };
                    scope.spawn(move || writer.follow(end));
                }
                self.serve_ztunnel(end, context);
            });
            // A pod that was acknowledged at the end is in the file that the next agent reads.
            if let Err(why) = self.exemption.store(&self.pods, BTreeSet::new()) {
                let fields = json!({ "why": why.to_string() });
                context
                    .log
                    .error("gybe node: the addresses of ambient pods cannot be kept for repair", fields);
            }
        }
        self.pods.end_hand_overs();
    }

    /// Waits until the pods of the node are known; reports whether they are, before `end` is readable.
    fn knows_pods(&self, pods: &dyn PodLookup, end: BorrowedFd<'_>) -> bool {
        while let Some(why) = unknown_pods(pods.state()) {
            let why = format!("ztunnel is not served before the pods of this node are known: {why}");
            self.health.has_changed(&self.environment.socket, Some(&why));
            if has_ended(end, RETRY) {
                return false;
            }
        }
        true
    }

    fn serve_ztunnel(&self, end: BorrowedFd<'_>, context: SocketContext<'_>) {
        let path = &self.environment.socket;
        loop {
            let opened = ZtunnelServer::open(path, TIMEOUT);
            let opened = opened.map_err(|why| format!("{}; {SOCKET_HINT}", chain(&why)));
            let is_new = self.health.has_changed(path, opened.as_ref().err());
            match opened.map(|mut server| server.serve(&self.pods, end, context)) {
                Ok(Ok(())) => return,
                Ok(Err(why)) => context.log.error(FAILED, json!({ "why": why.to_string() })),
                Err(why) if is_new => context.log.error(FAILED, json!({ "why": why })),
                Err(_) => {}
            }
            if has_ended(end, RETRY) {
                return;
            }
        }
    }

    /// Keeps the pods that an earlier agent may have handed over: all but those that have ended or are certainly not
    /// ambient. ztunnel ignores those that it does not know.
    fn keep_pods(&self, pods: &dyn PodLookup, log: &Log) {
        let (found, addresses) = (RefCell::new(Vec::new()), self.exemption.kept(log));
        pods.has_pod(&|facts| {
            let is_out =
                matches!(&facts.ambient, Ambient::Undecided(it) if it.is_host_network || it.has_ended);
            if !is_out && facts.annotation(STATUS).is_none() {
                let pod = AmbientPod::parse(&facts.uid, &facts.namespace, &facts.name, "default");
                let addresses = addresses.get(&facts.uid).into_iter().flatten().copied();
                found.borrow_mut().push(pod.map(|pod| pod.with_addresses(addresses)));
            }
            false
        });
        for pod in found.into_inner().into_iter().flatten() {
            self.pods.adopt(pod, None);
        }
    }

    /// Returns the uids of the pods that are not ambient, and whose namespace is held or that have the annotation, and
    /// of those that are ambient, and whose namespace is not held or without rules: a label has changed, or an earlier
    /// agent got the namespace. A pod that has not started is among them until its ADD.
    fn due(&self, pods: &dyn PodLookup) -> BTreeSet<String> {
        let states = self.pods.states();
        let found = self.select(pods, |uid, facts, decision| match (decision, states.get(&uid)) {
            (Ambient::Yes { .. }, Some(PodState::Redirected | PodState::Enrolled)) => None,
            (Ambient::Yes { .. }, _) => Some((facts.uid.clone(), true)),
            (Ambient::No { .. }, Some(PodState::NotHeld)) if !is_announced(facts) => None,
            (Ambient::No { .. }, Some(_)) => Some((facts.uid.clone(), false)),
            _ => None,
        });
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let unenrolled = found.iter().filter(|(_, is_ambient)| *is_ambient);
        let since = |(uid, _): &(String, _)| (uid.clone(), due.unenrolled.get(uid).copied().unwrap_or(now));
        due.unenrolled = unenrolled.map(since).collect();
        due.in_minute_of(since_boot(), &found.into_iter().map(|(uid, _)| uid).collect())
    }

    /// Returns what `select` returns for each pod that has not ended and has a network of its own, with the decision
    /// about it; nothing while the pods are not known.
    pub(super) fn select<T>(
        &self,
        pods: &dyn PodLookup,
        select: impl Fn(PodUid, &PodFacts, &Ambient) -> Option<T>,
    ) -> Vec<T> {
        let found = RefCell::new(Vec::new());
        pods.has_pod(&|facts| {
            if let (Ambient::Undecided(of), Ok(uid)) = (&facts.ambient, PodUid::parse(&facts.uid))
                && !of.is_host_network
                && !of.has_ended
            {
                let decision = self.decide(facts, of, None).unwrap_or_default();
                found.borrow_mut().extend(select(uid, facts, &decision));
            }
            false
        });
        found.into_inner()
    }

    /// Decides about a pod; none while the labels of its namespace are not known, for which it waits until `until`.
    fn decide(&self, facts: &PodFacts, of: &Selectable, until: Option<Instant>) -> Option<Ambient> {
        let selection = self.selection.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Without settings the plugin refuses a pod without a sidecar.
        let Some(Selection { selectors, excluded }) = selection.as_deref() else {
            return Some(Ambient::Unknown);
        };
        if excluded.contains(&facts.namespace) {
            return Some(Ambient::No { why: "its namespace is excluded".to_owned() });
        }
        let namespace = || match until {
            None => self.namespaces.of(&facts.namespace),
            Some(until) => self.namespaces.wait_for(&facts.namespace, until),
        };
        let decision = selectors.decide(facts, of, &self.environment.system_namespace, namespace)?;
        let why = decision.to_string().chars().take(MAX_WHY).collect();
        Some(match decision {
            Enablement::Yes { .. } => Ambient::Yes { service_account: of.service_account.clone(), why },
            Enablement::No(_) => Ambient::No { why },
        })
    }

    pub(super) fn status(&self) -> AmbientStatus {
        let problems = self.health.problems();
        let problems = problems.into_iter().chain(self.exemption.not_ready(&self.pods)).collect();
        let due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        AmbientStatus {
            ztunnel: self.pods.status(),
            problems,
            unwatched: self.namespaces.unwatched(),
            annotations: self.annotations.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            unenrolled: due.unenrolled.values().filter(|since| since.elapsed() > MAX_PENDING).count(),
        }
    }
}

impl DuePods {
    /// Returns the pods of `found` that are due at this time: all, or [`MAX_DUE`] of them, and in the next minute those that
    /// follow, so that pods that stay due do not delay the others.
    fn in_minute_of(&mut self, time: Duration, found: &BTreeSet<String>) -> BTreeSet<String> {
        let minute = time.as_secs() / 60;
        let from =
            |first: &String| found.range::<String, _>(first..).chain(found.range::<String, _>(..first));
        if self.minute != minute {
            self.minute = minute;
            let next = from(&self.first).nth(MAX_DUE).cloned();
            self.first = next.unwrap_or_default();
        }
        from(&self.first).take(MAX_DUE).cloned().collect()
    }
}

const FAILED: &str = "gybe node: ztunnel is not served";

/// The remedy when the socket cannot be opened.
const SOCKET_HINT: &str = "mount the host's directory of this socket, writable (chart: ambient.enabled), or set ZTUNNEL_UDS_ADDRESS";

/// Returns why the list of the node's pods may lack one that an earlier agent has handed over.
pub(super) fn unknown_pods(state: PodsState) -> Option<String> {
    let unwatched = state.unwatched.map(|why| format!("they are not watched: {why}"));
    state.missing.or(unwatched)
}

/// Waits for the end, at most for `timeout`.
fn has_ended(end: BorrowedFd<'_>, timeout: Duration) -> bool {
    let mut ends = [PollFd::new(end, PollFlags::POLLIN)];
    poll(&mut ends, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO)).is_ok_and(|ready| ready > 0)
}

/// The observed state of ambient mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AmbientStatus {
    pub(crate) ztunnel: ZtunnelStatus,
    /// Why the socket for ztunnel is not served, or the kubelet's probes are not exempt.
    problems: Vec<String>,
    /// Why the namespaces are not watched.
    unwatched: Option<String>,
    /// The ambient pods that have not been enrolled for some time.
    unenrolled: usize,
    pub(crate) annotations: AnnotationStatus,
}

impl AmbientStatus {
    /// Returns what does not concern a pod started now, or not yet, in sentences.
    pub(crate) fn notes(&self) -> Vec<String> {
        let unwatched = self.unwatched.as_ref();
        let unwatched = unwatched.map(|why| format!("changed labels of namespaces are not known: {why}"));
        let unenrolled = Some(self.unenrolled).filter(|pods| *pods > 0).map(|pods| {
            format!(
                "{pods} ambient pods are not enrolled: they have not started, or a label has changed; the container \
                 repair enrols pods that run with the setting repair: repair, and its log has the reason if it cannot"
            )
        });
        let unannotated = self.annotations.failing.as_ref().map(|(pods, why)| {
            format!("cannot write or remove the annotation {ANNOTATION} of {pods} pods: {why}")
        });
        unwatched.into_iter().chain(unenrolled).chain(unannotated).collect()
    }

    /// Returns why an ambient pod started now would not be in the mesh, in sentences.
    pub(crate) fn not_ready(&self) -> Vec<String> {
        let ztunnel = &self.ztunnel;
        let mut reasons = self.problems.clone();
        if ztunnel.connected == 0 {
            reasons.push("no ztunnel is connected; check the ztunnel pod of this node".to_owned());
        } else if !ztunnel.is_snapshot_acknowledged {
            reasons.push("ztunnel has not acknowledged the pods of this node yet".to_owned());
        }
        let late = ztunnel.longest_pending.filter(|pending| *pending > MAX_PENDING);
        if let (Some(pending), 1..) = (late, ztunnel.connected) {
            let (pods, seconds) = (ztunnel.pending, pending.as_secs());
            reasons.push(format!("{pods} ambient pods wait for ztunnel, one for {seconds} s"));
        }
        if let (Some((time, why)), 1..) = (&ztunnel.failing, ztunnel.connected)
            && *time > MAX_PENDING
        {
            let seconds = time.as_secs();
            reasons
                .push(format!("no ambient pod has got into the mesh for {seconds} s; the last one: {why}"));
        }
        reasons
    }
}

/// Another lookup's pods, with the decision whether each is ambient.
pub(super) struct AmbientLookup<'a> {
    pub(super) pods: &'a dyn PodLookup,
    pub(super) node: &'a AmbientNode,
}

impl AmbientLookup<'_> {
    /// Adds the decision; none while it is not known.
    fn decided(&self, response: FactsResponse, until: Option<Instant>) -> Option<FactsResponse> {
        let FactsResponse::Pod(facts) = response else { return Some(response) };
        let Ambient::Undecided(of) = &facts.ambient else { return Some(FactsResponse::Pod(facts)) };
        let ambient = self.node.decide(&facts, of, until)?;
        Some(FactsResponse::Pod(Box::new(PodFacts { ambient, ..*facts })))
    }
}

impl PodLookup for AmbientLookup<'_> {
    fn find(&self, pod: &PodRef) -> Option<FactsResponse> {
        self.decided(self.pods.find(pod)?, None)
    }

    fn wait_for(&self, pod: &PodRef, until: Instant) -> FactsResponse {
        let unknown = || {
            let why = self.node.namespaces.unwatched().map_or(String::new(), |why| format!(": {why}"));
            FactsResponse::Error(format!("the labels of namespace {} are not known yet{why}", pod.namespace))
        };
        self.decided(self.pods.wait_for(pod, until), Some(until)).unwrap_or_else(unknown)
    }

    fn state(&self) -> PodsState {
        let state = self.pods.state();
        let missing = state.missing.or_else(|| self.node.namespaces.missing());
        PodsState { missing, ..state }
    }

    fn has_pod(&self, is_such: &dyn Fn(&PodFacts) -> bool) -> Option<bool> {
        self.pods.has_pod(is_such)
    }

    fn take_assigned(&self, pod: &str) -> Option<SystemTime> {
        self.pods.take_assigned(pod)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_netfilter::model::policy::ambient::ProbeAddresses;

    #[test]
    fn hand_overs_that_all_fail_make_the_agent_unready_and_pods_that_are_not_enrolled_are_a_note() {
        let environment = AmbientEnvironment {
            socket: "/run/ztunnel.sock".into(),
            probes: ProbeAddresses::default(),
            system_namespace: "istio-system".to_owned(),
        };
        let node = AmbientNode::new(environment, "/run/gybe".into());
        let mut status = node.status();
        (status.ztunnel.connected, status.ztunnel.is_snapshot_acknowledged) = (1, true);
        let refused = "ztunnel refused the pod: \"no room\"".to_owned();
        status.ztunnel.failing = Some((MAX_PENDING, refused.clone()));
        assert_eq!(status.not_ready(), Vec::<String>::new(), "one may fail");
        status.ztunnel.failing = Some((MAX_PENDING + Duration::from_secs(1), refused));
        let reason = "no ambient pod has got into the mesh for 16 s; the last one: ztunnel refused the pod: \"no room\"";
        assert_eq!((status.not_ready(), status.notes()), (vec![reason.to_owned()], Vec::new()));
        (status.unenrolled, status.unwatched) = (3, Some("403".to_owned()));
        status.annotations.failing = Some((2, "403".to_owned()));
        let [namespaces, unenrolled, unannotated] = status.notes().try_into().unwrap();
        assert!(unannotated.ends_with("redirection of 2 pods: 403"), "{unannotated}");
        assert_eq!(namespaces, "changed labels of namespaces are not known: 403");
        assert!(unenrolled.starts_with("3 ambient pods are not enrolled"), "{unenrolled}");
    }

    #[test]
    fn pods_that_stay_due_do_not_delay_the_others_for_more_than_some_minutes() {
        for pods in [0, 1, MAX_DUE, MAX_DUE + 1, 3 * MAX_DUE - 1] {
            let found: BTreeSet<_> = (0..pods).map(|number| number.to_string()).collect();
            let minute = Duration::from_secs(60);
            let minutes = u32::try_from(pods.div_ceil(MAX_DUE)).unwrap();
            let mut kept = DuePods::default();
            let due: Vec<_> =
                (7..7 + minutes).map(|number| kept.in_minute_of(number * minute, &found)).collect();
            assert!(due.iter().all(|it| it.len() == pods.min(MAX_DUE)), "{pods}");
            assert_eq!(due.into_iter().flatten().collect::<BTreeSet<_>>().len(), pods);
        }
    }

    #[test]
    fn within_a_minute_a_pod_that_comes_or_goes_changes_which_are_due_by_one() {
        let mut found: BTreeSet<_> = (0..3 * MAX_DUE).map(|number| format!("{number:03}")).collect();
        let (mut kept, minute) = (DuePods::default(), Duration::from_secs(60));
        for time in (1..8).map(|number| number * minute) {
            let before = kept.in_minute_of(time, &found);
            assert!(found.insert("0".to_owned()));
            let added = kept.in_minute_of(time + minute / 3, &found);
            assert!(found.remove("0"));
            assert!(found.remove("001"));
            let removed = kept.in_minute_of(time + minute / 2, &found);
            assert!(found.insert("001".to_owned()));
            assert!(before.difference(&added).count() <= 1, "{time:?}");
            assert!(before.difference(&removed).count() <= 1, "{time:?}");
        }
    }

    #[test]
    fn ztunnel_is_served_only_while_the_nodes_pods_are_watched() {
        let state = |missing: Option<&str>, unwatched: Option<&str>| PodsState {
            missing: missing.map(str::to_owned),
            unwatched: unwatched.map(str::to_owned),
            pods: 1,
            watch: None,
        };
        assert_eq!(unknown_pods(state(None, None)), None);
        assert_eq!(unknown_pods(state(Some("not known"), Some("401"))).unwrap(), "not known");
        assert_eq!(unknown_pods(state(None, Some("401"))).unwrap(), "they are not watched: 401");
    }
}
