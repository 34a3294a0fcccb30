//! RBAC: exactly what the agent reads, and no verb that writes, anywhere.

use crate::objects::Objects;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};

/// What a rule says, in one line.
fn told(rule: &PolicyRule) -> String {
    let join = |list: &Option<Vec<String>>| list.clone().unwrap_or_default().join(",");
    assert!(rule.non_resource_urls.is_none(), "{rule:?}");
    let names =
        rule.resource_names.as_ref().map(|names| format!(" [{}]", names.join(","))).unwrap_or_default();
    format!("{:?} {}{names}: {}", join(&rule.api_groups), join(&rule.resources), rule.verbs.join(" "))
}

const OF_THE_CLUSTER: [&str; 2] = [r#""" pods: get list watch"#, r#""" nodes: get"#];
const OF_ITS_NAMESPACE: &str = r#""apps" daemonsets [gybe-node]: get"#;
/// Leave to be admitted, on OpenShift.
const ADMITTED: &str = r#""security.openshift.io" securitycontextconstraints [privileged]: use"#;

pub(crate) fn assert_read_only(objects: &Objects) {
    let cluster: ClusterRole = objects.one("ClusterRole");
    let rules: Vec<_> = cluster.rules.iter().flatten().map(told).collect();
    assert_eq!(rules, OF_THE_CLUSTER);
    assert!(cluster.aggregation_rule.is_none());
    let roles: Vec<Role> = objects.of("Role");
    let rules: Vec<_> = roles.iter().flat_map(|role| role.rules.iter().flatten().map(told)).collect();
    let more = rules.iter().filter(|rule| *rule != OF_ITS_NAMESPACE);
    assert!(
        rules.contains(&OF_ITS_NAMESPACE.to_owned()) && more.into_iter().all(|rule| rule == ADMITTED),
        "{rules:?}"
    );
    let namespace = objects.daemon_set().metadata.namespace;
    assert!(roles.iter().all(|role| role.metadata.namespace == namespace));
    bound(objects, &cluster, &roles);
}

/// Every role is bound once, to the agent's account and to nobody else.
fn bound(objects: &Objects, cluster: &ClusterRole, roles: &[Role]) {
    let account: ServiceAccount = objects.one("ServiceAccount");
    let to_account = |subjects: Option<Vec<Subject>>| {
        let subjects = subjects.unwrap_or_default();
        let [subject] = subjects.as_slice() else { panic!("{subjects:?}") };
        assert_eq!(subject.kind, "ServiceAccount");
        assert_eq!(
            (Some(&subject.name), &subject.namespace),
            (account.metadata.name.as_ref(), &account.metadata.namespace)
        );
    };
    let named = |of: &RoleRef| (of.kind.clone(), of.name.clone());
    let binding: ClusterRoleBinding = objects.one("ClusterRoleBinding");
    assert_eq!(
        Some(named(&binding.role_ref)),
        cluster.metadata.name.clone().map(|name| ("ClusterRole".to_owned(), name))
    );
    to_account(binding.subjects);
    let mut held: Vec<_> =
        roles.iter().map(|role| ("Role".to_owned(), role.metadata.name.clone().unwrap())).collect();
    for binding in objects.of::<RoleBinding>("RoleBinding") {
        assert_eq!(binding.metadata.namespace, account.metadata.namespace);
        held.retain(|role| *role != named(&binding.role_ref));
        to_account(binding.subjects);
    }
    assert!(held.is_empty(), "not bound: {held:?}");
}
