//! What the scenarios of the components share: another node, and requests that a component's policy refuses.

use gybe_bench::report::{Table, Target, cells};
use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use super::none;
use crate::cluster::Cluster;

/// A node without a kubelet.
pub(super) const OTHER_NODE: &str = "without-kubelet";
/// The kinds of a component's objects.
const OBJECTS: &str =
    "clusterrole,clusterrolebinding,validatingadmissionpolicy,validatingadmissionpolicybinding";

pub(super) fn create_other_node(cluster: &Cluster, spec: &Value) -> Result<(), Failure> {
    let node =
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": OTHER_NODE }, "spec": spec });
    cluster.api.create("/api/v1/nodes", &node).map(drop)
}

pub(super) fn delete_other_node(cluster: &Cluster) -> Result<(), Failure> {
    cluster.api.delete(&format!("/api/v1/nodes/{OTHER_NODE}"))
}

/// Deletes the component's objects. The ConfigMap stays.
pub(super) fn delete_component(cluster: &Cluster, component: &str) -> Result<(), Failure> {
    cluster.run("kubectl", &["delete", "--timeout=240s", OBJECTS, &format!("gybe-{component}")]).map(drop)
}

/// Requests that a component's policy should allow or refuse.
#[derive(Default)]
pub(super) struct AdmissionChecks(Vec<Vec<String>>);

impl AdmissionChecks {
    /// Adds a request, which `described` describes, to an API server with this component.
    pub(super) fn add<T>(
        &mut self,
        component: &str,
        expected: &str,
        response: Result<T, Failure>,
        described: [&str; 2],
    ) {
        let observed = admission_verdict(response, component);
        let described = described.map(str::to_owned);
        self.0.push([[expected.to_owned(), observed], described].concat());
    }

    /// Returns their table, and the target that all are as expected.
    pub(super) fn report(self, title: &str, described: [&str; 2]) -> (Table, Target) {
        let wrong = self.0.iter().filter(|row| row.first() != row.get(1)).count();
        let head = [cells(["Expected", "Observed"]), cells(described)].concat();
        (Table { title: title.to_owned(), head, rows: self.0 }, none("requests not as expected", wrong))
    }
}

fn admission_verdict<T>(response: Result<T, Failure>, component: &str) -> String {
    let refusal = format!("ValidatingAdmissionPolicy 'gybe-{component}'");
    match response.map_err(|error| format!("{error:?}")) {
        Ok(_) => "allowed".to_owned(),
        Err(error) if error.contains(&refusal) => "refused".to_owned(),
        Err(error) => error,
    }
}
