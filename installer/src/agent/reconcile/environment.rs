//! Observes what the desired state depends on besides the node's conf files: istio-cni's agent and program, istiod, and
//! the backend that the entry names, which the node's label, the settings and the last probe report decide.

use crate::agent::istio::{IstioAgent, IstioComponent};
use crate::agent::pods::PodLookup;
use crate::agent::reconcile::status_log::StatusLog;
use crate::cluster::{ObservedNode, OwnNode};
use crate::host::conflist::{ISTIO, PluginChain};
use crate::host::desired::TakeOver;
use crate::host::image::PLUGIN;
use crate::host::istio_cni::{our_stand_in, stand_in};
use crate::host::observe::{FileIdentity, HashCache, NodeDirectories, ObserveScope, observe};
use crate::host::settings::{Settings, StandIn, TakeOverSetting};
use crate::log::Level;
use crate::probe::node_backend::{LABEL, NodeBackend, NodeProbe, node_backend};
use gybe_netfilter::probe::choose::BackendSetting;
use gybe_plugin::conf::{PluginConf, ProbeHint};
use gybe_plugin::pod::PodFacts;
use gybe_plugin::probe_cache::{ProbeCache, this_node};
use serde_json::json;
use std::time::{Duration, Instant};

/// The interval of reads of the runtime's result cache while istio-cni's program is unchanged: it has a file for each
/// sandbox.
const CACHE_INTERVAL: Duration = Duration::from_secs(60);

/// The last observation.
#[derive(Debug, Default)]
pub(super) struct EnvironmentObserver {
    observed: Option<Instant>,
    /// The identity of the program under istio-cni's name; a change may mean that it is istio-cni's own again.
    program: Option<FileIdentity>,
    stand_in: StandIn,
}

/// What the desired state depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct EnvironmentFacts {
    pub(super) istio: IstioAgent,
    pub(super) take_over: TakeOver,
    pub(super) stand_in: StandIn,
    /// Whether pods of this node come with Istio's own init container, in a sentence.
    pub(super) istio_init: Option<&'static str>,
}

impl EnvironmentFacts {
    /// Returns a turn's notes with its own; those of a turn that could not observe the node have it already.
    pub(super) fn notes(&self, of_turn: Vec<String>) -> Vec<String> {
        let others = of_turn.into_iter().filter(|note| Some(note.as_str()) != self.istio_init);
        self.istio_init.map(str::to_owned).into_iter().chain(others).collect()
    }
}

impl EnvironmentObserver {
    /// Observes the node and the pods, and logs what conflicts with the settings.
    pub(super) fn observe(
        &mut self,
        settings: &Settings,
        pods: &dyn PodLookup,
        log: &mut StatusLog<'_>,
    ) -> EnvironmentFacts {
        let istio = IstioAgent::find(pods, settings);
        self.observe_program(&settings.environment.directories, Instant::now());
        let take_over = take_over(settings.options.take_over, istio);
        let is_early = take_over == TakeOver::Now && istio == IstioAgent::HasPod;
        let why = "istio-cni's agent is on this node too, and will write its entry again".to_owned();
        let hint = json!({ "hint": "if istio-cni serves ambient pods, keep it and exclude this node from Gybe; otherwise remove the DaemonSet istio-cni-node" });
        log.condition(Level::Warn, "gybe node: istio-cni's agent runs", is_early.then_some(why), hint);
        let why = istiod_in_mesh(pods, settings);
        log.condition(Level::Warn, "gybe node: istiod's namespace is not excluded", why, json!({}));
        let istio_init = has_istio_init(pods, settings).then_some(ISTIO_INIT);
        let hint = json!({ "hint": ISTIO_INIT_HINT });
        let message = "gybe node: pods of this node redirect themselves";
        log.condition(Level::Warn, message, istio_init.map(str::to_owned), hint);
        EnvironmentFacts { istio, take_over, stand_in: self.stand_in, istio_init }
    }

    /// Observes the program under istio-cni's name: at once if its file has changed, otherwise once a minute.
    fn observe_program(&mut self, directories: &NodeDirectories, now: Instant) {
        let program =
            directories.programs.join(ISTIO).symlink_metadata().ok().map(|it| FileIdentity::of(&it));
        let is_due = self.observed.is_none_or(|at| now.saturating_duration_since(at) >= CACHE_INTERVAL);
        if !is_due && program == self.program {
            return;
        }
        let observed = observe(directories, &ObserveScope::in_programs([]), &mut HashCache::default());
        if observed.lacks_descriptors() {
            return;
        }
        (self.observed, self.program) = (Some(now), program);
        self.stand_in = stand_in(&observed, our_stand_in(&directories.programs));
    }
}

/// Decides whether an istio-cni entry may be replaced.
fn take_over(setting: TakeOverSetting, istio: IstioAgent) -> TakeOver {
    match setting {
        TakeOverSetting::Wait if istio.may_run() => TakeOver::Waits,
        TakeOverSetting::Wait | TakeOverSetting::Now => TakeOver::Now,
    }
}

const ISTIO_INIT: &str = "pods of this node come with the init container istio-init, so Gybe leaves them alone: istiod does \
                          not have pilot.cni.enabled, or these pods are older than that setting";
const ISTIO_INIT_HINT: &str = "set pilot.cni.enabled=true (Helm), or unvalidatedValues.pilot.cni.enabled=true (istioctl, \
                               IstioOperator), and create the pods again; such a pod has istio-validation and no istio-init";

/// Reports whether a pod brings its own redirection. Pods of excluded namespaces do not count.
pub(super) fn has_istio_init(pods: &dyn PodLookup, settings: &Settings) -> bool {
    let excluded = &settings.options.conf.exclude_namespaces;
    let has_init = |pod: &PodFacts| {
        pod.init_containers.iter().any(|container| container.name == "istio-init")
            && !excluded.contains(&pod.namespace)
    };
    pods.has_pod(&has_init) == Some(true)
}

/// istiod's own pods must start before any pod can be in the mesh.
pub(super) fn istiod_in_mesh(pods: &dyn PodLookup, settings: &Settings) -> Option<String> {
    let namespace = &settings.environment.control_plane;
    let is_excluded = settings.options.conf.exclude_namespaces.contains(namespace);
    let istiod = IstioComponent::istiod(settings);
    let is_in_mesh = !is_excluded && pods.has_pod(&|pod| istiod.contains(pod))?;
    is_in_mesh.then(|| format!("istiod runs in namespace {namespace}, which is not excluded"))
}

/// How long the first turn waits for the label. A reachable API server responds within this time; without a response
/// the agent uses the label's last value, which is in the existing entry.
const LABEL_WAIT: Duration = Duration::from_secs(2);

/// The label of the node that names a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LabelState {
    /// The API server has not sent the node yet.
    Unknown,
    Absent,
    Set(String),
}

/// The last probe report, and the label.
#[derive(Debug)]
pub(super) struct BackendDecider {
    cache: ProbeCache,
    probe: Option<NodeProbe>,
    label: LabelState,
    /// Our entry as it was before the first turn.
    initial: Option<InitialEntry>,
}

/// The backend in our entry as it was before the first turn, and the cluster's setting then.
#[derive(Debug)]
struct InitialEntry {
    cluster: BackendSetting,
    setting: Option<BackendSetting>,
    probed: Option<ProbeHint>,
}

impl BackendDecider {
    pub(super) fn new(cache: ProbeCache) -> Self {
        Self { cache, probe: None, label: LabelState::Unknown, initial: None }
    }

    /// Decides the node's backend.
    pub(super) fn decide(
        &mut self,
        settings: &Settings,
        node: Option<&OwnNode>,
        log: &mut StatusLog<'_>,
    ) -> NodeBackend {
        // The plugin removes the report when a backend fails; until the next probe the agent uses the last one.
        if let (Some(capabilities), Ok(node)) = (self.cache.load(), this_node()) {
            self.probe = Some(NodeProbe { kernel: node.kernel, capabilities });
        }
        let cluster = settings.options.conf.backend;
        self.read_label(node, &settings.environment.directories, cluster);
        let label = match &self.label {
            LabelState::Set(label) => Some(label.as_str()),
            LabelState::Absent => None,
            LabelState::Unknown => {
                node.and(self.initial.as_ref()).and_then(|initial| initial.setting(cluster))
            }
        };
        let backend = node_backend(cluster, label, self.probe.as_ref());
        log.condition(Level::Warn, "gybe node: the node's label is ignored", backend.note(), json!({}));
        backend
    }

    /// Returns the probe result in our entry, until there is a report. It names the kernel for which it holds, so the
    /// entry may keep it; removing it would mean a write to the conf file at every boot.
    pub(super) fn recorded_probe(&self) -> Option<&ProbeHint> {
        self.initial.as_ref().filter(|_| self.probe.is_none())?.probed.as_ref()
    }

    fn read_label(&mut self, node: Option<&OwnNode>, directories: &NodeDirectories, cluster: BackendSetting) {
        let is_first = self.initial.is_none();
        if is_first {
            self.initial = Some(InitialEntry::read(directories, cluster));
        }
        let observed = node.and_then(|node| if is_first { node.wait(LABEL_WAIT) } else { node.read() });
        self.label = match observed {
            Some(ObservedNode { mut labels, .. }) => {
                labels.remove(LABEL).map_or(LabelState::Absent, LabelState::Set)
            }
            None => LabelState::Unknown,
        };
    }
}

impl InitialEntry {
    /// Reads the entry. The agent uses its setting until it knows the label, so that the backend does not change
    /// meanwhile.
    fn read(directories: &NodeDirectories, cluster: BackendSetting) -> Self {
        let observed = observe(directories, &ObserveScope::default(), &mut HashCache::default());
        let contents = observed.conf.files.values().filter_map(|file| file.content.as_ref().ok());
        let entries = contents.filter_map(|bytes| {
            let chain = PluginChain::read(bytes).ok()?;
            PluginConf::read(&serde_json::from_slice(chain.entry(PLUGIN)?).ok()?).ok()
        });
        let entry = entries.into_iter().next();
        let (setting, probed) = entry.map(|conf| (conf.backend, conf.probed)).unzip();
        Self { cluster, setting, probed }
    }

    /// Returns the setting, unless the cluster's setting changed since.
    fn setting(&self, cluster: BackendSetting) -> Option<&'static str> {
        self.setting.filter(|_| self.cluster == cluster).map(BackendSetting::as_str)
    }
}
