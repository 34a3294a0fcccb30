//! Istio's own parts, known by where their pods run and by the labels that Istio's charts give them. A name alone
//! proves nothing: any tenant can give it to a pod.

use crate::host::settings::Settings;
use gybe_plugin::pod::PodFacts;
use std::collections::BTreeSet;

/// Where the Sail operator installs istio-cni.
const OF_SAIL: &str = "istio-cni";

/// A part of Istio whose pods matter to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    prefix: &'static str,
    label: (&'static str, &'static str),
    namespaces: BTreeSet<String>,
}

impl Part {
    /// istio-cni's agent, in a namespace that is the cluster's, the mesh's or ours, or that an operator names. Its DaemonSet's name is fixed
    /// (docs/ISTIO.md, section 5). Ours has the label too, because istiod's untaint controller looks for it.
    #[must_use]
    pub fn istio_cni(settings: &Settings) -> Self {
        let (ground, choices) = (&settings.ground, &settings.choices);
        let namespaces = [ground.namespace.as_str(), &ground.control_plane, "kube-system", OF_SAIL];
        let namespaces = namespaces.into_iter().filter(|name| !name.is_empty()).map(str::to_owned);
        let excluded = choices.conf.exclude_namespaces.iter().cloned();
        let named = choices.istio_cni_namespace.iter().map(ToString::to_string);
        let label = ("k8s-app", "istio-cni-node");
        Self {
            prefix: "istio-cni-node-",
            label,
            namespaces: namespaces.chain(excluded).chain(named).collect(),
        }
    }

    /// istiod, where the settings say it is.
    #[must_use]
    pub fn istiod(settings: &Settings) -> Self {
        let namespaces = [settings.ground.control_plane.clone()].into();
        Self { prefix: "istiod-", label: ("app", "istiod"), namespaces }
    }

    /// Whether a pod is one of its own.
    #[must_use]
    pub fn contains(&self, pod: &PodFacts) -> bool {
        let (key, value) = self.label;
        pod.name.starts_with(self.prefix)
            && pod.labels.get(key).is_some_and(|it| it == value)
            && self.namespaces.contains(&pod.namespace)
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
    fn a_tenants_pod_of_istio_cnis_name_or_label_is_not_istio_cni() {
        let [label, _] = ISTIO_COMPONENTS;
        let part = Part::istio_cni(&settings(&[("exclude_namespaces", "mesh, cni-of-istio")]));
        for namespace in ["gybe-system", "mesh", "kube-system", "istio-cni", "cni-of-istio"] {
            assert!(part.contains(&pod(namespace, "istio-cni-node-x7x2p", label)), "{namespace}");
            assert!(!part.contains(&pod(namespace, "istio-cni-node-x7x2p", ("k8s-app", "x"))), "{namespace}");
            assert!(!part.contains(&pod(namespace, "gybe-node-x7x2p", label)), "{namespace}: our own agent");
        }
        assert!(!part.contains(&pod("shop", "istio-cni-node-x7x2p", label)));
    }

    #[test]
    fn a_setting_names_one_more_namespace_of_istio_cni() {
        let [label, _] = ISTIO_COMPONENTS;
        for (files, is_part) in [(&[][..], false), (&[("istio_cni_namespace", "mesh-cni")], true)] {
            let part = Part::istio_cni(&settings(files));
            assert_eq!(part.contains(&pod("mesh-cni", "istio-cni-node-x7x2p", label)), is_part);
            assert!(!part.contains(&pod("shop", "istio-cni-node-x7x2p", label)));
        }
    }

    #[test]
    fn istiod_is_looked_for_where_the_settings_say_it_is() {
        let [_, label] = ISTIO_COMPONENTS;
        let part = Part::istiod(&settings(&[]));
        assert!(part.contains(&pod("mesh", "istiod-5d8f-x", label)));
        assert!(!part.contains(&pod("shop", "istiod-5d8f-x", label)));
        assert!(!part.contains(&pod("mesh", "istiod-5d8f-x", ("app", "shop"))));
    }

    #[test]
    fn of_labels_only_those_that_are_read_are_kept() {
        let [label, _] = ISTIO_COMPONENTS;
        assert_eq!(pod("mesh", "istio-cni-node-x", label).labels.len(), 1);
        assert_eq!(pod("mesh", "cart-0", ("app", "cart")).labels.len(), 0);
    }
}
