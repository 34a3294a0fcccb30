//! Istio's components on this node: their pods, and whether istio-cni's agent runs.
//!
//! Neither an entry nor a program of istio-cni shows whether its agent runs: the agent writes a removed entry again,
//! and removes its entry and its program when it ends.

use crate::agent::pods::PodLookup;
use crate::host::istio_cni::accepts_log;
use crate::host::settings::Settings;
use gybe_plugin::pod::PodFacts;
use std::collections::BTreeSet;

/// The namespace into which the Sail operator installs istio-cni.
const SAIL_NAMESPACE: &str = "istio-cni";

/// A component of Istio whose pods matter to the agent. It is recognized by namespace, name and the label of Istio's
/// charts: any tenant can give a pod that name or that label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IstioComponent {
    prefix: &'static str,
    label: (&'static str, &'static str),
    namespaces: BTreeSet<String>,
}

impl IstioComponent {
    /// istio-cni's agent, in a namespace of the cluster, of the mesh or of ours, or in one that an operator names. The
    /// name of its DaemonSet is fixed (docs/ISTIO.md, section 5). Our DaemonSet has the label too, because istiod's
    /// untaint controller looks for it.
    #[must_use]
    pub fn istio_cni(settings: &Settings) -> Self {
        let (environment, options) = (&settings.environment, &settings.options);
        let namespaces =
            [environment.namespace.as_str(), &environment.control_plane, "kube-system", SAIL_NAMESPACE];
        let namespaces = namespaces.into_iter().filter(|name| !name.is_empty()).map(str::to_owned);
        let excluded = options.conf.exclude_namespaces.iter().cloned();
        let named = options.istio_cni_namespace.iter().map(ToString::to_string);
        let label = ("k8s-app", "istio-cni-node");
        let namespaces = namespaces.chain(excluded).chain(named).collect();
        Self { prefix: "istio-cni-node-", label, namespaces }
    }

    /// istiod, in the namespace of the settings.
    #[must_use]
    pub fn istiod(settings: &Settings) -> Self {
        let namespaces = [settings.environment.control_plane.clone()].into();
        Self { prefix: "istiod-", label: ("app", "istiod"), namespaces }
    }

    #[must_use]
    pub fn contains(&self, pod: &PodFacts) -> bool {
        let (key, value) = self.label;
        pod.name.starts_with(self.prefix)
            && pod.labels.get(key).is_some_and(|it| it == value)
            && self.namespaces.contains(&pod.namespace)
    }
}

/// Whether istio-cni's agent runs on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IstioAgent {
    /// One of its pods is on this node, a terminating one included.
    HasPod,
    /// A process listens at its log socket.
    Listens,
    Absent,
    /// No process listens, and this node's pods are not known yet.
    Unknown,
}

impl IstioAgent {
    /// Looks for the pod, which exists before the socket and after it, and for the socket, which needs no API server.
    pub(crate) fn find(pods: &dyn PodLookup, settings: &Settings) -> Self {
        let component = IstioComponent::istio_cni(settings);
        match pods.has_pod(&|pod| component.contains(pod)) {
            Some(true) => Self::HasPod,
            _ if accepts_log(&settings.environment.istio_run) => Self::Listens,
            Some(false) => Self::Absent,
            None => Self::Unknown,
        }
    }

    /// Reports whether it may still write its entry.
    #[must_use]
    pub(crate) fn may_run(self) -> bool {
        self != Self::Absent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::settings::SettingsSources;
    use gybe_plugin::pod::ISTIO_COMPONENTS;
    use serde_json::json;

    fn pod(namespace: &str, name: &str, label: (&str, &str)) -> PodFacts {
        let (key, value) = label;
        let metadata =
            json!({ "namespace": namespace, "name": name, "labels": { key: value, "secret": "x" } });
        PodFacts::from_manifest(&json!({ "metadata": metadata, "spec": { "containers": [] } })).unwrap()
    }

    fn settings(files: &[(&str, &str)]) -> Settings {
        let pairs = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let environment = pairs(&[("POD_NAMESPACE", "gybe-system"), ("SYSTEM_NAMESPACE", "mesh")]);
        Settings::read(&SettingsSources { environment, files: pairs(files), network_config: None }).unwrap()
    }

    #[test]
    fn a_tenants_pod_with_istio_cnis_name_or_label_is_not_istio_cni() {
        let [label, _] = ISTIO_COMPONENTS;
        let component = IstioComponent::istio_cni(&settings(&[("exclude_namespaces", "mesh, cni-of-istio")]));
        for namespace in ["gybe-system", "mesh", "kube-system", "istio-cni", "cni-of-istio"] {
            assert!(component.contains(&pod(namespace, "istio-cni-node-x7x2p", label)), "{namespace}");
            assert!(
                !component.contains(&pod(namespace, "istio-cni-node-x7x2p", ("k8s-app", "x"))),
                "{namespace}"
            );
            assert!(
                !component.contains(&pod(namespace, "gybe-node-x7x2p", label)),
                "{namespace}: our own agent"
            );
        }
        assert!(!component.contains(&pod("shop", "istio-cni-node-x7x2p", label)));
    }

    #[test]
    fn a_setting_names_one_more_namespace_of_istio_cni() {
        let [label, _] = ISTIO_COMPONENTS;
        for (files, is_contained) in [(&[][..], false), (&[("istio_cni_namespace", "mesh-cni")], true)] {
            let component = IstioComponent::istio_cni(&settings(files));
            assert_eq!(component.contains(&pod("mesh-cni", "istio-cni-node-x7x2p", label)), is_contained);
            assert!(!component.contains(&pod("shop", "istio-cni-node-x7x2p", label)));
        }
    }

    #[test]
    fn istiod_is_expected_in_the_namespace_of_the_settings() {
        let [_, label] = ISTIO_COMPONENTS;
        let component = IstioComponent::istiod(&settings(&[]));
        assert!(component.contains(&pod("mesh", "istiod-5d8f-x", label)));
        assert!(!component.contains(&pod("shop", "istiod-5d8f-x", label)));
        assert!(!component.contains(&pod("mesh", "istiod-5d8f-x", ("app", "shop"))));
    }

    #[test]
    fn only_the_labels_that_components_are_recognized_by_are_kept() {
        let [label, _] = ISTIO_COMPONENTS;
        assert_eq!(pod("mesh", "istio-cni-node-x", label).labels.len(), 1);
        assert_eq!(pod("mesh", "cart-0", ("app", "cart")).labels.len(), 0);
    }
}
