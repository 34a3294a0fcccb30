//! RBAC: exactly the objects that the agent reads, and no verb that writes.

use crate::objects::Objects;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};

/// Returns a rule as one line: API groups, resources, names, verbs.
fn rule_line(rule: &PolicyRule) -> String {
    let join = |list: &Option<Vec<String>>| list.clone().unwrap_or_default().join(",");
    assert!(rule.non_resource_urls.is_none(), "{rule:?}");
    let names =
        rule.resource_names.as_ref().map(|names| format!(" [{}]", names.join(","))).unwrap_or_default();
    format!("{:?} {}{names}: {}", join(&rule.api_groups), join(&rule.resources), rule.verbs.join(" "))
}

const CLUSTER_RULES: [&str; 2] = [r#""" pods: get list watch"#, r#""" nodes: get"#];
const NAMESPACE_RULE: &str = r#""apps" daemonsets [gybe-node]: get"#;
/// Admits the pod on OpenShift.
const SCC_RULE: &str = r#""security.openshift.io" securitycontextconstraints [privileged]: use"#;

pub(crate) fn assert_read_only(objects: &Objects) {
    let cluster: ClusterRole = objects.one("ClusterRole");
    let rules: Vec<_> = cluster.rules.iter().flatten().map(rule_line).collect();
    assert_eq!(rules, CLUSTER_RULES);
    assert!(cluster.aggregation_rule.is_none());
    let roles: Vec<Role> = objects.of("Role");
    let rules: Vec<_> = roles.iter().flat_map(|role| role.rules.iter().flatten().map(rule_line)).collect();
    let other_rules = rules.iter().filter(|rule| *rule != NAMESPACE_RULE);
    assert!(
        rules.contains(&NAMESPACE_RULE.to_owned()) && other_rules.into_iter().all(|rule| rule == SCC_RULE),
        "{rules:?}"
    );
    let namespace = objects.daemon_set().metadata.namespace;
    assert!(roles.iter().all(|role| role.metadata.namespace == namespace));
    assert_bound(objects, &cluster, &roles);
}

/// Asserts that every role is bound once, and only to the agent's service account.
fn assert_bound(objects: &Objects, cluster: &ClusterRole, roles: &[Role]) {
    let account: ServiceAccount = objects.one("ServiceAccount");
    let assert_only_account = |subjects: Option<Vec<Subject>>| {
        let subjects = subjects.unwrap_or_default();
        let [subject] = subjects.as_slice() else { panic!("{subjects:?}") };
        assert_eq!(subject.kind, "ServiceAccount");
        assert_eq!(
            (Some(&subject.name), &subject.namespace),
            (account.metadata.name.as_ref(), &account.metadata.namespace)
        );
    };
    let kind_and_name = |role: &RoleRef| (role.kind.clone(), role.name.clone());
    let binding: ClusterRoleBinding = objects.one("ClusterRoleBinding");
    assert_eq!(
        Some(kind_and_name(&binding.role_ref)),
        cluster.metadata.name.clone().map(|name| ("ClusterRole".to_owned(), name))
    );
    assert_only_account(binding.subjects);
    let mut unbound: Vec<_> =
        roles.iter().map(|role| ("Role".to_owned(), role.metadata.name.clone().unwrap())).collect();
    for binding in objects.of::<RoleBinding>("RoleBinding") {
        assert_eq!(binding.metadata.namespace, account.metadata.namespace);
        unbound.retain(|role| *role != kind_and_name(&binding.role_ref));
        assert_only_account(binding.subjects);
    }
    assert!(unbound.is_empty(), "not bound: {unbound:?}");
}
