//! Observes what the desired state depends on besides the node's conf files: istio-cni's agent and program, and istiod.

use super::status_log::StatusLog;
use crate::agent::PodLookup;
use crate::agent::istio::{IstioAgent, IstioComponent};
use crate::host::conflist::ISTIO;
use crate::host::desired::TakeOver;
use crate::host::identity::Identity;
use crate::host::istio_cni::{our_stand_in, stand_in};
use crate::host::observe::{HashCache, NodeDirectories, ObserveScope, observe};
use crate::host::settings::{Settings, StandIn, TakeOverSetting};
use crate::log::Level;
use serde_json::json;
use std::time::{Duration, Instant};

/// The interval of reads of the runtime's result cache while istio-cni's program is unchanged: it has a file for each sandbox.
const CACHE_INTERVAL: Duration = Duration::from_secs(60);

/// The last observation.
#[derive(Debug, Default)]
pub(super) struct Environment {
    observed: Option<Instant>,
    /// The identity of the program under istio-cni's name; a change may mean that it is istio-cni's own again.
    program: Option<Identity>,
    stand_in: StandIn,
}

/// What the desired state depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct EnvironmentFacts {
    pub(super) istio: IstioAgent,
    pub(super) take_over: TakeOver,
    pub(super) stand_in: StandIn,
}

impl Environment {
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
        EnvironmentFacts { istio, take_over, stand_in: self.stand_in }
    }

    /// Observes the program under istio-cni's name: at once if its file has changed, otherwise once a minute.
    fn observe_program(&mut self, directories: &NodeDirectories, now: Instant) {
        let program = directories.programs.join(ISTIO).symlink_metadata().ok().map(|it| Identity::of(&it));
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

/// istiod's own pods must start before any pod can be in the mesh.
pub(super) fn istiod_in_mesh(pods: &dyn PodLookup, settings: &Settings) -> Option<String> {
    let namespace = &settings.environment.control_plane;
    let is_excluded = settings.options.conf.exclude_namespaces.contains(namespace);
    let is_in_mesh = !is_excluded && pods.has_pod_of(&IstioComponent::istiod(settings))?;
    is_in_mesh.then(|| format!("istiod runs in namespace {namespace}, which is not excluded"))
}
