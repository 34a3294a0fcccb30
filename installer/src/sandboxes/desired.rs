//! The desired state of a sandbox, decided as the plugin decided in its ADD: by the annotations that the runtime passed
//! then, if libcni has cached them, and otherwise by the present facts of the pod.

use super::{ConfOfAdd, Sandbox};
use crate::error::chain;
use crate::pod::enablement::is_announced;
use gybe_netfilter::inspect::verdict::{self, NamespaceVerdict, RedirectionState};
use gybe_netfilter::model::policy::{AmbientPolicy, RedirectPolicy};
use gybe_plugin::args::PodRef;
use gybe_plugin::conf::{FactsConf, PluginConf};
use gybe_plugin::decide::{Decision, decide, is_ambient_undecided};
use gybe_plugin::facts::ambient::{AmbientPod, PodUid};
use gybe_plugin::facts::{self, FactsError, matches};
use gybe_plugin::gates::{self, InitContainer, LeaveAloneReason};
use gybe_plugin::names::STATUS;
use gybe_plugin::network_conf::RuntimeAnnotations;
use gybe_plugin::pod::{Ambient, PodFacts};
use serde_json::json;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The deadline for one pod; a source that has the pod answers within milliseconds.
const PER_POD: Duration = Duration::from_secs(1);
/// The deadline for all pods, so that a source that does not respond does not cost a second for each.
const ALTOGETHER: Duration = Duration::from_secs(10);

/// The sources of a pod's desired state.
#[derive(Debug)]
pub struct PolicySources {
    conf: PluginConf,
    /// Manifests that an operator named.
    manifests: Vec<PodFacts>,
    until: Instant,
}

/// The policy of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodPolicy {
    pub policy: RedirectPolicy,
    /// Whether the facts have the pod's uid. Facts without a uid may be those of an earlier pod of that name.
    pub is_of_uid: bool,
    /// The annotations that have changed since the ADD.
    pub changed: Vec<String>,
    /// Why the ADD left the pod alone, or may have done so, by the settings of that time.
    pub left_alone_by_add: Option<String>,
}

/// An ambient pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AmbientEnrolment {
    pub(crate) policy: AmbientPolicy,
    /// The pod as ztunnel knows it, without its addresses.
    pub(crate) pod: AmbientPod,
}

/// A pod that is certainly not ambient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeavingPod {
    pub(crate) uid: PodUid,
    /// Whether the API server has the annotation by which other pods send it HBONE, as far as that is known.
    pub(crate) is_announced: bool,
}

/// The desired state of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DesiredRules {
    /// The rules of this policy.
    Policy(Box<PodPolicy>),
    /// The rules of this policy of an ambient pod.
    Ambient(Box<AmbientEnrolment>),
    /// No rule of ours.
    LeftAlone {
        reason: LeaveAloneReason,
        /// The pod, if it is certain that it is not ambient: by facts about it, or because its namespace is excluded.
        not_ambient: Option<LeavingPod>,
    },
    /// It is not known.
    NotKnown {
        why: String,
        /// The annotations show that the injector has changed the pod.
        is_injected: bool,
    },
}

impl PolicySources {
    /// The sources that the plugin's configuration names. Their deadline begins now.
    #[must_use]
    pub fn of(conf: PluginConf) -> Self {
        Self { conf, manifests: Vec::new(), until: Instant::now() + ALTOGETHER }
    }

    /// Adds manifests for their pods; they precede the other sources.
    #[must_use]
    pub fn with_manifests(self, manifests: Vec<PodFacts>) -> Self {
        Self { manifests, ..self }
    }

    /// `addresses` are those of the sandbox's namespace, read when they decide something.
    pub(crate) fn desired(
        &self,
        sandbox: &Sandbox,
        addresses: impl FnOnce() -> Result<Vec<IpAddr>, String>,
    ) -> DesiredRules {
        let passed = match &sandbox.annotations {
            None => RuntimeAnnotations::NotProvided,
            Some(none) if none.is_empty() => RuntimeAnnotations::Empty,
            Some(annotations) => RuntimeAnnotations::Present(annotations),
        };
        // In ambient mode the labels of a pod without the injector's annotation have to be known, too.
        let is_injected =
            matches!(passed, RuntimeAnnotations::Present(annotations) if annotations.contains_key(STATUS));
        let not_known = |why| DesiredRules::NotKnown { why, is_injected };
        let Some(pod) = &sandbox.pod else {
            // The plugin leaves a sandbox alone when the runtime names no pod.
            return match &sandbox.container {
                Some(_) => {
                    DesiredRules::LeftAlone { reason: LeaveAloneReason::NotKubernetes, not_ambient: None }
                }
                None => not_known("it is not known to which pod it belongs".to_owned()),
            };
        };
        if let Some(reason) =
            gates::check_without_facts(&self.conf, pod.namespace.as_str(), pod.name.as_str(), passed)
        {
            let is_excluded = reason == LeaveAloneReason::ExcludedNamespace && self.conf.ambient.is_some();
            let facts = pod.uid.as_ref().filter(|_| is_excluded).and_then(|_| self.facts(pod).ok());
            let not_ambient = facts.and_then(|facts| LeavingPod::of(&facts, pod));
            return DesiredRules::LeftAlone { reason, not_ambient };
        }
        let facts = match self.facts(pod) {
            Ok(facts) => facts,
            Err(why) => return not_known(why),
        };
        let is_of_uid = facts::same_uid(&facts, pod);
        // The annotations of its ADD do not show what the API server has.
        let leaving = LeavingPod::of(&facts, pod);
        // An operator names a manifest to judge the pod by it.
        let is_named = self.manifests.iter().any(|manifest| matches(manifest, pod));
        let (facts, changed) =
            match of_add(facts, if is_named { RuntimeAnnotations::NotProvided } else { passed }) {
                Ok(found) => found,
                Err(why) => return not_known(why),
            };
        let addresses = match addresses() {
            Ok(addresses) => addresses,
            Err(why) => return not_known(why),
        };
        match decide(&self.conf, &facts, &addresses, InitContainer::Counts) {
            Decision::LeaveAlone(_) if is_ambient_undecided(&self.conf, &facts) => {
                not_known(FactsError::Ambient.to_string())
            }
            Decision::LeaveAlone(reason) => {
                let is_certain = matches!(facts.ambient, Ambient::No { .. });
                DesiredRules::LeftAlone { reason, not_ambient: leaving.filter(|_| is_certain) }
            }
            Decision::Redirect(policy) => {
                let confs = sandbox.ended_add.iter().flat_map(|ended| &ended.confs);
                let left_alone_by_add = confs.filter_map(|conf| left_alone_by(conf, &facts)).next();
                DesiredRules::Policy(Box::new(PodPolicy { policy, is_of_uid, changed, left_alone_by_add }))
            }
            Decision::Ambient(_) if is_injected => {
                not_known("the annotations of its ADD are those of a pod with a sidecar".to_owned())
            }
            Decision::Ambient(_) if !is_of_uid => not_known("the facts about the pod have no uid".to_owned()),
            Decision::Ambient(policy) => match facts::ambient_pod(&facts) {
                Ok(pod) => DesiredRules::Ambient(Box::new(AmbientEnrolment { policy, pod })),
                Err(why) => not_known(chain(&why)),
            },
            Decision::Refuse(cause) => not_known(chain(&cause)),
        }
    }

    /// The plugin's configuration.
    #[must_use]
    pub fn into_conf(self) -> PluginConf {
        self.conf
    }

    /// Returns the facts of a pod from the first source that knows it.
    ///
    /// # Errors
    /// When no source knows the pod in time.
    pub fn facts(&self, pod: &PodRef) -> Result<PodFacts, String> {
        if let Some(manifest) = self.manifests.iter().find(|manifest| matches(manifest, pod)) {
            return Ok(manifest.clone());
        }
        let deadline = self.until.saturating_duration_since(Instant::now()).min(PER_POD);
        let conf = FactsConf { deadline, ..self.conf.facts.clone() };
        facts::look_up(&conf, pod, self.conf.ambient.is_some()).map_err(|why| chain(&why))
    }
}

/// Returns the facts with the annotations that the runtime passed in the ADD: later ones change no running pod. Also
/// returns the names of those that have changed.
fn of_add(facts: PodFacts, passed: RuntimeAnnotations<'_>) -> Result<(PodFacts, Vec<String>), String> {
    let RuntimeAnnotations::Present(passed) = passed else { return Ok((facts, Vec::new())) };
    let made = json!({ "metadata": { "annotations": passed }, "spec": { "containers": [] } });
    let made =
        PodFacts::from_manifest(&made).map_err(|why| format!("the cached result of its ADD: {why}"))?;
    let (before, now) = (&made.annotations, &facts.annotations);
    let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    // The kubelet adds some of these for the runtime.
    let names = names.into_iter().filter(|name| !name.starts_with("kubernetes.io/"));
    let changed = names.filter(|name| before.get(*name) != now.get(*name)).cloned().collect();
    Ok((PodFacts { annotations: made.annotations, ..facts }, changed))
}

/// Returns why the ADD left the pod alone; also when that is not known.
fn left_alone_by(conf: &ConfOfAdd, facts: &PodFacts) -> Option<String> {
    let conf = match conf {
        ConfOfAdd::NoEntry => return None,
        ConfOfAdd::NotKnown => return Some("the settings of its ADD are not known".to_owned()),
        ConfOfAdd::Entry(conf) => conf,
    };
    match gates::check(conf, facts, InitContainer::Counts) {
        Ok(None) => None,
        Ok(Some(reason)) => Some(format!("its ADD left it alone by the settings of that time: {reason}")),
        Err(why) => Some(chain(&why)),
    }
}

impl LeavingPod {
    /// None for facts that are not certainly those of the pod.
    fn of(facts: &PodFacts, pod: &PodRef) -> Option<Self> {
        let uid = PodUid::parse(&facts.uid).ok().filter(|_| facts::same_uid(facts, pod))?;
        Some(Self { uid, is_announced: is_announced(facts) })
    }
}

impl DesiredRules {
    pub(crate) fn for_verdict(&self) -> verdict::Desired<'_> {
        match self {
            Self::Policy(known) => verdict::Desired::Policy(&known.policy),
            Self::Ambient(enrolment) => verdict::Desired::Ambient(&enrolment.policy),
            // Gybe's image may be that of the init container, whose arguments are the policy.
            Self::LeftAlone { reason: LeaveAloneReason::IstioInit, .. } | Self::NotKnown { .. } => {
                verdict::Desired::NotKnown
            }
            Self::LeftAlone { .. } => verdict::Desired::LeftAlone,
        }
    }
}

/// Where [`DesiredRules::for_verdict`] has no policy: why.
pub(super) const BY_ISTIO_INIT: &str = "its init container istio-init wrote the rules";

/// Adapts the verdict on a namespace to the desired state of its pod.
pub(super) fn adapt_verdict(desired: &DesiredRules, found: NamespaceVerdict) -> NamespaceVerdict {
    let by_rules_alone = |found: NamespaceVerdict, why: &str| {
        let notes = [found.notes, vec![format!("judged by the rules alone: {why}")]].concat();
        NamespaceVerdict { notes, ..found }
    };
    match (desired, found.state) {
        (DesiredRules::LeftAlone { reason: LeaveAloneReason::IstioInit, .. }, state) => match state {
            RedirectionState::NotMeshed => NamespaceVerdict::because(
                RedirectionState::NotRedirected,
                "its init container istio-init has written no rules",
            ),
            RedirectionState::Redirected => by_rules_alone(found, BY_ISTIO_INIT),
            _ => found,
        },
        (DesiredRules::LeftAlone { reason, .. }, RedirectionState::NotMeshed | RedirectionState::Unknown) => {
            let notes = [found.reasons, found.notes].concat();
            NamespaceVerdict {
                notes,
                ..NamespaceVerdict::because(RedirectionState::NotMeshed, reason.to_string())
            }
        }
        (DesiredRules::NotKnown { why, is_injected: true }, RedirectionState::NotMeshed) => {
            let reason = format!("Istio's injector changed the pod, and there are no rules of Gybe; {why}");
            NamespaceVerdict::because(RedirectionState::Unknown, reason)
        }
        (DesiredRules::NotKnown { why, .. }, RedirectionState::NotMeshed) => {
            let reasons =
                found.reasons.iter().map(|reason| format!("{reason}, and its rules alone are judged"));
            let reasons = reasons.collect();
            NamespaceVerdict { reasons, ..by_rules_alone(found, why) }
        }
        (DesiredRules::NotKnown { why, .. }, RedirectionState::Redirected) => by_rules_alone(found, why),
        _ => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_plugin::args::{Namespace, PodName};
    use gybe_plugin::conf::{AmbientConf, Gates};
    use gybe_plugin::pod::Ambient;

    #[test]
    fn the_annotations_of_the_add_count_and_those_that_have_changed_are_named() {
        let of = |annotations: &serde_json::Value| {
            let pod = json!({ "metadata": { "annotations": annotations }, "spec": { "containers": [] } });
            PodFacts::from_manifest(&pod).unwrap()
        };
        let now =
            json!({ "istio.io/rev": "b", "sidecar.istio.io/status": "{}", "kubernetes.io/config.hash": "x" });
        let made = json!({ "istio.io/rev": "a", "sidecar.istio.io/inject": "true", "other": "x" });
        let (facts, changed) =
            of_add(of(&now), RuntimeAnnotations::Present(made.as_object().unwrap())).unwrap();
        assert_eq!(facts, of(&made));
        assert_eq!(changed, ["istio.io/rev", "sidecar.istio.io/inject", "sidecar.istio.io/status"]);
        let (facts, changed) = of_add(of(&now), RuntimeAnnotations::NotProvided).unwrap();
        assert_eq!((facts, changed), (of(&now), Vec::new()));
        let damaged = json!({ "a": 5 });
        assert!(of_add(of(&now), RuntimeAnnotations::Present(damaged.as_object().unwrap())).is_err());
    }

    #[test]
    fn rules_that_the_init_container_istio_init_wrote_are_judged_alone() {
        let desired = DesiredRules::LeftAlone { reason: LeaveAloneReason::IstioInit, not_ambient: None };
        assert!(matches!(desired.for_verdict(), verdict::Desired::NotKnown));
        let found = |state| NamespaceVerdict { reasons: Vec::new(), ..NamespaceVerdict::because(state, "") };
        let judged = adapt_verdict(&desired, found(RedirectionState::Redirected));
        assert!(judged.holds() && judged.notes[0].contains("istio-init wrote the rules"), "{judged:?}");
        for (state, expected) in [
            (RedirectionState::NotMeshed, RedirectionState::NotRedirected),
            (RedirectionState::Unknown, RedirectionState::Unknown),
            (RedirectionState::ByOthers, RedirectionState::ByOthers),
        ] {
            assert_eq!(adapt_verdict(&desired, found(state)).state, expected);
        }
    }

    #[test]
    fn a_pod_of_which_no_source_knows_whether_it_is_ambient_is_not_left_alone() {
        let pod = json!({ "metadata": { "namespace": "shop", "name": "a" }, "spec": { "containers": [] } });
        let plain = PodFacts::from_manifest(&pod).unwrap();
        let not_ambient =
            PodFacts { ambient: Ambient::No { why: "no selector".to_owned() }, ..plain.clone() };
        let in_ambient_mode =
            || PluginConf { ambient: Some(AmbientConf::default()), ..PluginConf::default() };
        let excluded = PluginConf { exclude_namespaces: ["shop".to_owned()].into(), ..in_ambient_mode() };
        let pod = PodRef {
            namespace: Namespace::parse("shop").unwrap(),
            name: PodName::parse("a").unwrap(),
            uid: None,
        };
        let sandbox = Sandbox { pod: Some(pod), ..Sandbox::in_namespace("/x".into()) };
        for (conf, facts, is_known) in [
            (in_ambient_mode(), &plain, false),
            (in_ambient_mode(), &not_ambient, true),
            (excluded, &plain, true),
            (PluginConf::default(), &plain, true),
        ] {
            let sources = PolicySources::of(conf).with_manifests(vec![facts.clone()]);
            let desired = sources.desired(&sandbox, || Ok(Vec::new()));
            assert_eq!(matches!(desired, DesiredRules::LeftAlone { .. }), is_known, "{desired:?}");
            let is_unknown = matches!(&desired, DesiredRules::NotKnown { why, .. } if why.contains("whether the pod is ambient"));
            assert_eq!(is_unknown, !is_known, "{desired:?}");
        }
    }

    #[test]
    fn a_pod_whose_namespace_is_excluded_leaves_by_the_facts_about_it() {
        let facts = |uid: &str| PodFacts {
            namespace: "shop".to_owned(),
            name: "a".to_owned(),
            uid: uid.to_owned(),
            annotations: [("ambient.istio.io/redirection".to_owned(), "enabled".to_owned())].into(),
            ..PodFacts::default()
        };
        let pod = PodRef {
            namespace: Namespace::parse("shop").unwrap(),
            name: PodName::parse("a").unwrap(),
            uid: Some("u-1".to_owned()),
        };
        let sandbox = Sandbox { pod: Some(pod), ..Sandbox::in_namespace("/x".into()) };
        let excluded = ["shop".to_owned()].into();
        let (ambient, conf) = (Some(AmbientConf::default()), PluginConf::default());
        let conf = PluginConf { exclude_namespaces: excluded, ambient, ..conf };
        let leaving = LeavingPod { uid: PodUid::parse("u-1").unwrap(), is_announced: true };
        for (known, expected) in [("u-1", Some(leaving)), ("", None)] {
            let sources = PolicySources::of(conf.clone()).with_manifests(vec![facts(known)]);
            let desired = sources.desired(&sandbox, || Ok(Vec::new()));
            let reason = LeaveAloneReason::ExcludedNamespace;
            assert_eq!(desired, DesiredRules::LeftAlone { reason, not_ambient: expected });
        }
    }

    #[test]
    fn a_pod_that_its_add_left_alone_by_the_settings_of_that_time_is_recognized() {
        let pod: serde_json::Value =
            serde_json::from_str(include_str!("../../../examples/pod.json")).unwrap();
        let facts = PodFacts::from_manifest(&pod).unwrap();
        let entry = |conf| ConfOfAdd::Entry(Box::new(conf));
        let excluded = [facts.namespace.clone()].into();
        let mut alone = facts.clone();
        alone.containers.retain(|container| container.name == "istio-proxy");
        let strict = || entry(PluginConf { gates: Gates::Strict, ..PluginConf::default() });
        for (conf, facts, expected) in [
            (ConfOfAdd::NoEntry, &facts, None),
            (entry(PluginConf::default()), &facts, None),
            (ConfOfAdd::NotKnown, &facts, Some("not known")),
            (
                entry(PluginConf { exclude_namespaces: excluded, ..PluginConf::default() }),
                &facts,
                Some("its namespace is excluded"),
            ),
            (strict(), &facts, None),
            (strict(), &alone, Some("fewer than two containers")),
        ] {
            let found = left_alone_by(&conf, facts);
            assert_eq!(found.is_some(), expected.is_some(), "{conf:?}: {found:?}");
            assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()), "{conf:?}");
        }
    }

    #[test]
    fn the_desired_state_decides_the_verdict_on_a_namespace_without_rules_of_ours() {
        let not_known = |is_injected| DesiredRules::NotKnown { why: "no agent".to_owned(), is_injected };
        let left_alone = |reason| DesiredRules::LeftAlone { reason, not_ambient: None };
        for (desired, found, expected, says) in [
            (
                left_alone(LeaveAloneReason::NoProxy),
                RedirectionState::NotMeshed,
                RedirectionState::NotMeshed,
                "no container istio-proxy",
            ),
            (
                left_alone(LeaveAloneReason::NoProxy),
                RedirectionState::Unknown,
                RedirectionState::NotMeshed,
                "no container istio-proxy",
            ),
            (
                left_alone(LeaveAloneReason::IstioInit),
                RedirectionState::NotMeshed,
                RedirectionState::NotRedirected,
                "istio-init has written no rules",
            ),
            (
                left_alone(LeaveAloneReason::IstioInit),
                RedirectionState::ByOthers,
                RedirectionState::ByOthers,
                "as found",
            ),
            (
                left_alone(LeaveAloneReason::ExcludedNamespace),
                RedirectionState::Redirected,
                RedirectionState::Redirected,
                "as found",
            ),
            (
                not_known(true),
                RedirectionState::NotMeshed,
                RedirectionState::Unknown,
                "Istio's injector changed the pod",
            ),
            (
                not_known(false),
                RedirectionState::NotMeshed,
                RedirectionState::NotMeshed,
                "its rules alone are judged",
            ),
            (not_known(true), RedirectionState::Redirected, RedirectionState::Redirected, "as found"),
            (not_known(true), RedirectionState::NotRedirected, RedirectionState::NotRedirected, "as found"),
        ] {
            let verdict = adapt_verdict(&desired, NamespaceVerdict::because(found, "as found"));
            assert_eq!(verdict.state, expected, "{desired:?}");
            assert!(verdict.reasons.iter().any(|reason| reason.contains(says)), "{desired:?}: {verdict:?}");
        }
    }
}
