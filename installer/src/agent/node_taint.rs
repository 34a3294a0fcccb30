//! The taints of our node: removed when the agent is ready, and set again when pods would start without redirection.
//! The settings name them; without names the agent writes nothing.

use super::events::{Event, EventQueue, Reason};
use super::istio::IstioAgent;
use super::status::{FollowedSettings, StatusSources};
use crate::cluster::{ClusterNode, OwnNode, SET_AFTER, TaintOrder, TaintState, TaintWriter};
use crate::lead::process::Role;
use crate::log::Log;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// How often the agent's state is compared with the node's; and how often the settings are, without taints.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);
pub(super) const IDLE_INTERVAL: Duration = Duration::from_secs(10);

/// Keeps the agent's taints until `stop` is readable.
pub(super) fn keep(
    home: &ClusterNode,
    own_node: &OwnNode,
    sources: &StatusSources<'_>,
    stop: BorrowedFd<'_>,
    events: &EventQueue,
    log: &Log,
) {
    let written = |state, names: &str| {
        let event = match state {
            TaintState::Absent => {
                let note = format!("this node redirects pods; removed the taint {names}");
                Event::of_node(Reason::TaintRemoved, &note)
            }
            TaintState::Present => {
                let note = format!("pods would start without redirection; set the taint {names}");
                Event::of_node(Reason::TaintSet, &note)
            }
        };
        events.post(event);
    };
    TaintWriter { home, own_node, log, written: &written }.follow(stop, || {
        let agent = sources.snapshot();
        let taints = agent.settings.taints.clone();
        let (status, is_ready) = (&agent.status, agent.not_ready().is_empty());
        let leads = matches!(agent.role, Role::Leads { .. });
        let desired = leads
            .then(|| desired(status.report.istio, &agent.settings, is_ready, status.unredirected_for()))
            .flatten();
        // Before the first turn the setting is not known.
        let is_idle = taints.is_empty() && agent.status.turned.is_some();
        TaintOrder { taints, desired, wait: if is_idle { IDLE_INTERVAL } else { INTERVAL } }
    });
}

/// Returns the state that the taints should have; none when they should stay as they are.
fn desired(
    istio: Option<IstioAgent>,
    settings: &FollowedSettings,
    is_ready: bool,
    unredirected_for: Option<Duration>,
) -> Option<TaintState> {
    if settings.taints.is_empty() {
        return None;
    }
    if is_ready {
        return Some(TaintState::Absent);
    }
    // Pods that istio-cni redirects are not redirected by us.
    let is_istio = istio.is_none_or(IstioAgent::may_run);
    let is_followed = settings.error.is_none();
    let is_lost = unredirected_for.is_some_and(|time| time >= SET_AFTER);
    (is_lost && is_followed && !is_istio).then_some(TaintState::Present)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::settings::NodeTaint;

    fn taints() -> Vec<NodeTaint> {
        vec![NodeTaint::parse("cni.istio.io/not-ready").unwrap()]
    }

    #[test]
    fn taints_are_removed_when_ready_and_set_after_thirty_seconds_without_redirection() {
        type Change = fn(&mut FollowedSettings);
        let (lost, same): (_, Change) = (|seconds| Some(Duration::from_secs(seconds)), |_| {});
        for (what, is_ready, lost_for, change, expected) in [
            ("ready", true, None, same, Some(TaintState::Absent)),
            ("not ready, and pods are redirected or refused", false, None, same, None),
            ("lost for a moment", false, lost(29), same, None),
            ("lost", false, lost(30), same, Some(TaintState::Present)),
            ("lost, without names of taints", false, lost(30), |it| it.taints = Vec::new(), None),
            ("ready, without names of taints", true, None, |it| it.taints = Vec::new(), None),
            ("the ConfigMap is invalid", false, lost(30), |it| it.error = Some("x".to_owned()), None),
        ] {
            let mut settings = FollowedSettings { taints: taints(), ..FollowedSettings::default() };
            change(&mut settings);
            let found = desired(Some(IstioAgent::Absent), &settings, is_ready, lost_for);
            assert_eq!(found, expected, "{what}");
        }
        let settings = FollowedSettings { taints: taints(), ..FollowedSettings::default() };
        assert_eq!(desired(Some(IstioAgent::HasPod), &settings, false, lost(30)), None);
    }
}
