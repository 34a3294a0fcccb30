//! Kubernetes objects out of YAML: each read as its own type, and nothing in it that the type does not have.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Namespace, PodSpec, ResourceQuota, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Everything of a deployment.
pub(crate) struct Objects(Vec<Value>);

/// Of Multus, which Kubernetes does not know.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NetworkAttachmentDefinition {
    api_version: String,
    kind: String,
    metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    spec: serde_json::Map<String, Value>,
}

impl Objects {
    /// Of every file there but the one that is kustomize's own.
    #[allow(dead_code, reason = "the base's tests read so")]
    pub(crate) fn in_directory(directory: &Path) -> Self {
        let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files.retain(|file| !file.ends_with("kustomization.yaml"));
        let all = files.iter().flat_map(|file| documents(&fs::read_to_string(file).unwrap()));
        Self(all.collect())
    }

    /// As kustomize prints them.
    #[allow(dead_code, reason = "the overlays' tests read so")]
    pub(crate) fn in_file(file: &Path) -> Self {
        let text = fs::read_to_string(file).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
        Self(documents(&text))
    }

    /// Those of a kind.
    pub(crate) fn of<T: DeserializeOwned>(&self, kind: &str) -> Vec<T> {
        let those = self.0.iter().filter(|object| object["kind"] == kind);
        those.map(|object| serde_json::from_value(object.clone()).unwrap()).collect()
    }

    /// The only one of a kind.
    pub(crate) fn one<T: DeserializeOwned>(&self, kind: &str) -> T {
        let mut all = self.of(kind);
        assert_eq!(all.len(), 1, "{kind}");
        all.remove(0)
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

    /// Its type takes it, and gives back all of it: what a type does not have, it drops.
    pub(crate) fn assert_known(&self) {
        assert!(self.0.len() >= 8, "{}", self.0.len());
        for object in &self.0 {
            let (kind, group) = (object["kind"].as_str().unwrap(), object["apiVersion"].as_str().unwrap());
            let through = match (group, kind) {
                ("v1", "Namespace") => through::<Namespace>,
                ("v1", "ServiceAccount") => through::<ServiceAccount>,
                ("v1", "ConfigMap") => through::<ConfigMap>,
                ("v1", "ResourceQuota") => through::<ResourceQuota>,
                ("apps/v1", "DaemonSet") => through::<DaemonSet>,
                ("rbac.authorization.k8s.io/v1", "ClusterRole") => through::<ClusterRole>,
                ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => through::<ClusterRoleBinding>,
                ("rbac.authorization.k8s.io/v1", "Role") => through::<Role>,
                ("rbac.authorization.k8s.io/v1", "RoleBinding") => through::<RoleBinding>,
                ("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition") => {
                    through::<NetworkAttachmentDefinition>
                }
                _ => panic!("nobody knows {group} {kind}"),
            };
            kept(object, &through(object), kind);
        }
    }
}

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

fn through<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
    let read: T = serde_json::from_value(object.clone()).unwrap_or_else(|why| panic!("{why}: {object}"));
    serde_json::to_value(read).unwrap()
}

/// All of `given` stands in `kept`, letter by letter.
fn kept(given: &Value, kept_of_it: &Value, place: &str) {
    match (given, kept_of_it) {
        (Value::Object(given), Value::Object(found)) => {
            for (key, value) in given {
                let place = format!("{place}.{key}");
                kept(value, found.get(key).unwrap_or_else(|| panic!("there is no {place}")), &place);
            }
        }
        (Value::Array(given), Value::Array(found)) if given.len() == found.len() => {
            for (n, (given, found)) in given.iter().zip(found).enumerate() {
                kept(given, found, &format!("{place}[{n}]"));
            }
        }
        _ => assert_eq!(given, kept_of_it, "{place}"),
    }
}

#[test]
fn a_field_that_no_type_has_is_found() {
    let typo = "{apiVersion: v1, kind: Namespace, metadata: {name: x, label: {a: b}}}";
    let objects = documents(typo);
    let found =
        std::panic::catch_unwind(|| kept(&objects[0], &through::<Namespace>(&objects[0]), "Namespace"));
    assert!(
        found.unwrap_err().downcast::<String>().unwrap().contains("there is no Namespace.metadata.label")
    );
}
