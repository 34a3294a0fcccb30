//! What the agents request from the API server, by its audit log, compared with what the chart's rules allow: the same,
//! and nothing is refused.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;

use gybe_bench::report::Report;
use gybe_integration::failure::Failure;
use serde_json::Value;

use super::Mesh;
use super::application::{PLAIN, annotated, create, delete_all, get, start};
use super::gybe::NAMESPACE;
use crate::agent;
use crate::api::wait_until;
use crate::checks::Checks;
use crate::cluster::Cluster;
use crate::components::AUDIT_LOG;
use crate::pods::{self, Kind};

/// The agents' service account.
const ACCOUNT: &str = "gybe-node";
/// A pod whose ADD is refused, and again with each attempt of the kubelet.
const REFUSED: &str = "refused";
/// A pod that is too large for the agent's cache, so that its ADD makes the agent request it.
const LARGE: &str = "large";
/// A pod that loses its rules.
const BROKEN: &str = "broken";

/// The values of `settings.repair` with which the agent acts on a pod without rules.
#[derive(Debug, Clone, Copy)]
enum Repair {
    Label,
    Delete,
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Repair::Label => "label",
            Repair::Delete => "delete",
        })
    }
}

/// A verb on a resource, which a rule allows or a request used.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    verb: String,
    group: String,
    /// With the subresource: `pods/proxy`.
    resource: String,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if self.group.is_empty() { Ok(()) } else { write!(f, ".{}", self.group) }
    }
}

pub(super) fn run(mesh: &Mesh) -> Result<Report, Failure> {
    let cluster = &mesh.cluster;
    let mut checks = Checks::default();
    mesh.ensure_gybe()?;
    let mut log = AuditLog::default();
    log.read(cluster)?;
    // Those of other scenarios.
    log.refused.clear();
    log.agent = new_agent(cluster)?;
    mesh.wait_for_backend("nft")?;
    request_pods_and_events(mesh, &mut log)?;
    compare(cluster, &mut checks, &log, "default values")?;
    let defaults = log.requested.clone();
    for mode in [Repair::Label, Repair::Delete] {
        mesh.gybe.install(cluster, &["settings.backend=nft", &format!("settings.repair={mode}")])?;
        // A running agent would notice the setting within about a minute.
        log.agent = new_agent(cluster)?;
        log.requested.clone_from(&defaults);
        mesh.wait_for_backend("nft")?;
        act_on_a_broken_pod(mesh, mode)?;
        log.read(cluster)?;
        compare(cluster, &mut checks, &log, &format!("settings.repair={mode}"))?;
    }
    mesh.ensure_gybe()?;
    Ok(checks.report("Requests of the agents, and their rights"))
}

/// Replaces the agent, and returns the name of the new one's pod.
fn new_agent(cluster: &Cluster) -> Result<String, Failure> {
    agent::replace(cluster)?;
    agent::first_pod(cluster)
}

/// Makes the agent send each kind of request that it sends only for some pods.
fn request_pods_and_events(mesh: &Mesh, log: &mut AuditLog) -> Result<(), Failure> {
    let (cluster, workstation) = (&mesh.cluster, &mesh.workstation);
    let key = "traffic.sidecar.istio.io/excludeInboundPorts";
    let list = (20_000..24_000).map(|port: u16| port.to_string()).collect::<Vec<_>>().join(",");
    let meshed = |name| pods::pod(Kind::Meshed, PLAIN, name, name);
    start(workstation, PLAIN, &annotated(meshed(LARGE), &[(key, &list)]))?;
    let refused = annotated(meshed(REFUSED), &[("traffic.sidecar.istio.io/excludeOutboundPorts", "none")]);
    create(workstation, PLAIN, &refused)?;
    wait_until("the event about the refused pod is repeated", || {
        log.read(cluster)?;
        Ok(log.requested.iter().any(|right| right.verb == "patch" && right.resource == "events"))
    })?;
    delete_all(workstation, PLAIN)
}

/// Removes the rules of a running pod, and waits until the agent has labelled or deleted it.
fn act_on_a_broken_pod(mesh: &Mesh, mode: Repair) -> Result<(), Failure> {
    let (cluster, workstation) = (&mesh.cluster, &mesh.workstation);
    start(workstation, PLAIN, &pods::pod(Kind::Meshed, PLAIN, BROKEN, BROKEN))?;
    mesh.gybe.shell(cluster, &format!("gybe remove --pod {PLAIN}/{BROKEN}"))?;
    wait_until(&format!("the agent acts on a pod without its rules ({mode})"), || {
        let pod = get(workstation, (PLAIN, BROKEN))?.unwrap_or_default();
        let is_deleted = pod.is_null() || pod.pointer("/metadata/deletionTimestamp").is_some();
        let is_labelled = pod.pointer("/metadata/labels/cni.istio.io~1uninitialized").is_some();
        Ok(match mode {
            Repair::Label => is_labelled && !is_deleted,
            Repair::Delete => is_deleted,
        })
    })?;
    delete_all(workstation, PLAIN)
}

fn compare(cluster: &Cluster, checks: &mut Checks, log: &AuditLog, what: &str) -> Result<(), Failure> {
    checks.equal(&format!("{what}: refused requests"), &log.refused, &Vec::new());
    let allowed = allowed(cluster)?;
    let list = |rights: BTreeSet<Right>| rights.iter().map(Right::to_string).collect::<Vec<_>>();
    checks.equal(&format!("{what}: what the agents request"), &list(log.requested.clone()), &list(allowed));
    Ok(())
}

/// The requests of the agents so far. The API server logs no others.
#[derive(Debug, Default)]
struct AuditLog {
    /// How many bytes have been read.
    position: usize,
    /// The pod whose requests are in `requested`.
    agent: String,
    requested: BTreeSet<Right>,
    /// The requests of all agents that were answered with 401 or 403.
    refused: Vec<String>,
}

impl AuditLog {
    /// Reads what the API server has written since.
    fn read(&mut self, cluster: &Cluster) -> Result<(), Failure> {
        let text = fs::read_to_string(cluster.host().path(AUDIT_LOG))?;
        let new = text.get(self.position..).unwrap_or_default();
        // The last line may be incomplete.
        let Some(end) = new.rfind('\n') else { return Ok(()) };
        self.position += end + 1;
        for line in new.split_at(end).0.lines() {
            self.add(&serde_json::from_str(line)?);
        }
        Ok(())
    }

    fn add(&mut self, event: &Value) {
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let resource = [text("/objectRef/resource"), text("/objectRef/subresource")];
        let right = Right {
            verb: text("/verb").to_owned(),
            group: text("/objectRef/apiGroup").to_owned(),
            resource: resource.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/"),
        };
        let code = event.pointer("/responseStatus/code").and_then(Value::as_u64);
        if matches!(code, Some(401 | 403)) {
            self.refused.push(format!("{right}: {}", text("/requestURI")));
        }
        // A token of the kubelet's names the pod.
        if text("/user/extra/authentication.kubernetes.io~1pod-name/0") == self.agent {
            self.requested.insert(right);
        }
    }
}

/// Returns the rights in the rules of each Role and ClusterRole to which the service account is bound.
fn allowed(cluster: &Cluster) -> Result<BTreeSet<Right>, Failure> {
    const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
    let mut rights = BTreeSet::new();
    let mut bindings = cluster.api.list(&format!("{RBAC}/clusterrolebindings"))?;
    bindings.extend(cluster.api.list(&format!("{RBAC}/namespaces/{NAMESPACE}/rolebindings"))?);
    for binding in bindings {
        let subjects = binding.get("subjects").and_then(Value::as_array).cloned().unwrap_or_default();
        let is_account = |subject: &Value| {
            subject.get("kind").and_then(Value::as_str) == Some("ServiceAccount")
                && subject.get("name").and_then(Value::as_str) == Some(ACCOUNT)
                && subject.get("namespace").and_then(Value::as_str) == Some(NAMESPACE)
        };
        if !subjects.iter().any(is_account) {
            continue;
        }
        let name = binding.pointer("/roleRef/name").and_then(Value::as_str).unwrap_or_default();
        let role = match binding.pointer("/roleRef/kind").and_then(Value::as_str) {
            Some("ClusterRole") => format!("{RBAC}/clusterroles/{name}"),
            _ => format!("{RBAC}/namespaces/{NAMESPACE}/roles/{name}"),
        };
        let role = cluster.api.get(&role)?.unwrap_or_default();
        for rule in role.get("rules").and_then(Value::as_array).into_iter().flatten() {
            rights.extend(rights_of(rule));
        }
    }
    Ok(rights)
}

/// Returns each combination of a rule.
fn rights_of(rule: &Value) -> Vec<Right> {
    let texts = |key: &str| {
        let texts = rule.get(key).and_then(Value::as_array).into_iter().flatten();
        texts.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    let (verbs, groups, resources) = (texts("verbs"), texts("apiGroups"), texts("resources"));
    let mut rights = Vec::new();
    for verb in &verbs {
        for group in &groups {
            for resource in &resources {
                rights.push(Right { verb: verb.clone(), group: group.clone(), resource: resource.clone() });
            }
        }
    }
    rights
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_rule_allows_each_combination_and_a_request_uses_one() {
        let rule =
            json!({ "apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get", "patch"] });
        let allowed: Vec<_> = rights_of(&rule).iter().map(Right::to_string).collect();
        assert_eq!(allowed, ["get pods", "get pods/status", "patch pods", "patch pods/status"]);
        let event = |agent: &str, code: u64| {
            json!({
                "user": { "extra": { "authentication.kubernetes.io/pod-name": [agent] } },
                "verb": "patch",
                "requestURI": "/uri",
                "objectRef": { "resource": "pods", "subresource": "status" },
                "responseStatus": { "code": code },
            })
        };
        let mut log = AuditLog { agent: "new".to_owned(), ..AuditLog::default() };
        log.add(&event("old", 200));
        assert!(log.requested.is_empty() && log.refused.is_empty());
        log.add(&event("old", 403));
        assert!(log.requested.is_empty());
        assert_eq!(log.refused, ["patch pods/status: /uri"]);
        log.add(&event("new", 200));
        assert_eq!(log.refused.len(), 1);
        assert_eq!(log.requested.iter().map(Right::to_string).collect::<Vec<_>>(), ["patch pods/status"]);
    }
}
