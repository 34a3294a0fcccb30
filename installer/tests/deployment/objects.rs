//! Kubernetes objects in YAML, each parsed as its type without unknown fields.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, Namespace, PodSpec, ResourceQuota, Service, ServiceAccount,
};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// All objects of a deployment.
pub(crate) struct Objects(Vec<Value>);

/// A custom resource of Multus.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NetworkAttachmentDefinition {
    api_version: String,
    kind: String,
    metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    spec: serde_json::Map<String, Value>,
}

impl Objects {
    /// Reads every file of a directory except `kustomization.yaml`.
    #[allow(dead_code, reason = "only the tests of the base use it")]
    pub(crate) fn in_directory(directory: &Path) -> Self {
        let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files.retain(|file| !file.ends_with("kustomization.yaml"));
        let all = files.iter().flat_map(|file| documents(&fs::read_to_string(file).unwrap()));
        Self(all.collect())
    }

    /// Reads a file that kustomize has built.
    #[allow(dead_code, reason = "only the tests of the overlays use it")]
    pub(crate) fn in_file(file: &Path) -> Self {
        let text = fs::read_to_string(file)
            .unwrap_or_else(|error| panic!("{}: {error}; run: make -C manifests test", file.display()));
        Self(documents(&text))
    }

    /// Returns the objects by kind, namespace and name, without namespaces, which the chart leaves to helm.
    #[allow(dead_code, reason = "only the tests of the overlays use it")]
    pub(crate) fn by_name(&self) -> BTreeMap<String, Value> {
        let name = |object: &Value| {
            let [namespace, name] = ["namespace", "name"].map(|key| object["metadata"][key].as_str());
            format!("{} {}/{}", object["kind"], namespace.unwrap_or_default(), name.unwrap())
        };
        let objects = self.0.iter().filter(|object| object["kind"] != "Namespace");
        let mut by_name: BTreeMap<_, _> =
            objects.clone().map(|object| (name(object), object.clone())).collect();
        // kustomize puts a patched volume first.
        for object in by_name.values_mut() {
            if let Some(volumes) = object.pointer_mut("/spec/template/spec/volumes") {
                volumes.as_array_mut().unwrap().sort_by_key(|volume| volume["name"].to_string());
            }
        }
        assert_eq!(by_name.len(), objects.count(), "two objects have one name");
        by_name
    }

    /// Returns the objects of a kind.
    pub(crate) fn of<T: DeserializeOwned>(&self, kind: &str) -> Vec<T> {
        let objects = self.0.iter().filter(|object| object["kind"] == kind);
        objects.map(|object| serde_json::from_value(object.clone()).unwrap()).collect()
    }

    /// Returns the only object of a kind.
    pub(crate) fn one<T: DeserializeOwned>(&self, kind: &str) -> T {
        let mut all = self.of(kind);
        assert_eq!(all.len(), 1, "{kind}");
        all.remove(0)
    }

    /// Takes the object of this kind and name.
    #[allow(dead_code, reason = "only the tests of the overlays use it")]
    pub(crate) fn take(&mut self, kind: &str, name: &str) -> Value {
        let is = |object: &Value| object["kind"] == kind && object["metadata"]["name"] == name;
        self.0.remove(self.0.iter().position(is).unwrap())
    }

    pub(crate) fn daemon_set(&self) -> DaemonSet {
        self.one("DaemonSet")
    }

    pub(crate) fn pod(&self) -> PodSpec {
        self.daemon_set().spec.template.spec.unwrap()
    }

    pub(crate) fn container(&self, name: &str) -> Container {
        self.pod().containers.into_iter().find(|container| container.name == name).unwrap()
    }

    /// Asserts that each object is the same after parsing and serializing it as its type, which drops unknown fields.
    pub(crate) fn assert_all_fields_known(&self) {
        assert!(self.0.len() >= 8, "{}", self.0.len());
        for object in &self.0 {
            let (kind, group) = (object["kind"].as_str().unwrap(), object["apiVersion"].as_str().unwrap());
            let round_trip = match (group, kind) {
                ("v1", "Namespace") => round_trip::<Namespace>,
                ("v1", "ServiceAccount") => round_trip::<ServiceAccount>,
                ("v1", "ConfigMap") => round_trip::<ConfigMap>,
                ("v1", "ResourceQuota") => round_trip::<ResourceQuota>,
                ("v1", "Service") => round_trip::<Service>,
                ("apps/v1", "DaemonSet") => round_trip::<DaemonSet>,
                ("batch/v1", "Job") => round_trip::<Job>,
                ("networking.k8s.io/v1", "NetworkPolicy") => round_trip::<NetworkPolicy>,
                // Custom resources of the Prometheus Operator.
                ("monitoring.coreos.com/v1", "PodMonitor" | "ServiceMonitor" | "PrometheusRule") => {
                    Value::clone
                }
                ("rbac.authorization.k8s.io/v1", "ClusterRole") => round_trip::<ClusterRole>,
                ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => round_trip::<ClusterRoleBinding>,
                ("rbac.authorization.k8s.io/v1", "Role") => round_trip::<Role>,
                ("rbac.authorization.k8s.io/v1", "RoleBinding") => round_trip::<RoleBinding>,
                ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy") => {
                    round_trip::<ValidatingAdmissionPolicy>
                }
                ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding") => {
                    round_trip::<ValidatingAdmissionPolicyBinding>
                }
                ("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition") => {
                    round_trip::<NetworkAttachmentDefinition>
                }
                _ => panic!("unknown kind {group} {kind}"),
            };
            assert_contains(object, &round_trip(object), kind);
        }
    }
}

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

fn round_trip<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
    let read: T = serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{error}: {object}"));
    serde_json::to_value(read).unwrap()
}

/// Asserts that `parsed` contains every member of `original`.
fn assert_contains(original: &Value, parsed: &Value, path: &str) {
    match (original, parsed) {
        (Value::Object(original), Value::Object(parsed)) => {
            for (key, value) in original {
                let path = format!("{path}.{key}");
                assert_contains(
                    value,
                    parsed.get(key).unwrap_or_else(|| panic!("there is no {path}")),
                    &path,
                );
            }
        }
        (Value::Array(original), Value::Array(parsed)) if original.len() == parsed.len() => {
            for (index, (original, parsed)) in original.iter().zip(parsed).enumerate() {
                assert_contains(original, parsed, &format!("{path}[{index}]"));
            }
        }
        _ => assert_eq!(original, parsed, "{path}"),
    }
}

#[test]
fn an_unknown_field_is_detected() {
    let typo = "{apiVersion: v1, kind: Namespace, metadata: {name: x, label: {a: b}}}";
    let objects = documents(typo);
    let result = std::panic::catch_unwind(|| {
        assert_contains(&objects[0], &round_trip::<Namespace>(&objects[0]), "Namespace");
    });
    assert!(
        result.unwrap_err().downcast::<String>().unwrap().contains("there is no Namespace.metadata.label")
    );
}
