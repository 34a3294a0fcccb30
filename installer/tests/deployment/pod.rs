//! The agent pod in the manifests: its security settings and mounts, its rights in the cluster (RBAC), the
//! references between the objects, and its settings, directories and arguments, parsed by the program.

use crate::objects::Objects;
use gybe_installer::host::desired::{Shape, ShapeSetting};
use gybe_installer::host::settings::{
    INCUMBENTS, KEYS, Listen, OURS, SettingName, Settings, SettingsSources, Support,
};
use gybe_installer::probe::NEEDED;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, Namespace, SecurityContext, ServiceAccount, Volume, VolumeMount,
};
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

pub(crate) fn assert_confined(objects: &Objects) {
    let pod = objects.pod();
    assert_eq!(pod.host_network, Some(true));
    assert_eq!((pod.host_pid, pod.host_ipc, pod.share_process_namespace), (None, None, None));
    assert_eq!(pod.automount_service_account_token, Some(false));
    let account: ServiceAccount = objects.one("ServiceAccount");
    assert_eq!(account.automount_service_account_token, Some(false));
    assert!(pod.init_containers.is_none() && pod.ephemeral_containers.is_none());
    let seccomp = pod.security_context.clone().unwrap().seccomp_profile.unwrap();
    assert_eq!(seccomp.type_, "RuntimeDefault");
    assert_eq!(pod.containers.len(), 2);
    assert_capabilities(&objects.container("install"), &[]);
    // The agent's container has no capabilities; that of the container `repair` has those that `gybe probe` reports if
    // missing.
    let mut needed = NEEDED.map(|(_, name, _)| name.strip_prefix("CAP_").unwrap());
    needed.sort_unstable();
    assert_capabilities(&objects.container("repair"), &needed);
    assert!(objects.container("repair").command.unwrap().contains(&"--repair".to_owned()));
    assert_mounts(&pod.containers, &pod.volumes.unwrap());
}

pub(crate) fn assert_capabilities(container: &Container, expected: &[&str]) {
    let context: SecurityContext = container.security_context.clone().unwrap();
    let capabilities = context.capabilities.unwrap();
    assert_eq!(capabilities.drop, Some(vec!["ALL".to_owned()]), "{}", container.name);
    let mut added = capabilities.add.unwrap_or_default();
    added.sort();
    assert_eq!(added, expected, "{}", container.name);
    assert_eq!((context.privileged, context.allow_privilege_escalation), (Some(false), Some(false)));
    assert_eq!(context.read_only_root_filesystem, Some(true), "{}", container.name);
    // The files in the host's directories belong to root.
    assert_eq!((context.run_as_user, context.run_as_group), (Some(0), Some(0)), "{}", container.name);
    assert!(context.seccomp_profile.is_none() && context.proc_mount.is_none());
    // The kubelet updates neither variables nor mounts with a subPath in a running pod.
    assert!(container.env_from.is_none(), "{}", container.name);
    for variable in container.env.iter().flatten() {
        let from = variable.value_from.as_ref();
        let from_map =
            from.is_some_and(|from| from.config_map_key_ref.is_some() || from.secret_key_ref.is_some());
        assert!(!from_map, "{}", variable.name);
    }
    for mount in container.volume_mounts.iter().flatten() {
        assert!(mount.sub_path.is_none() && mount.sub_path_expr.is_none(), "{}", mount.name);
        assert!(mount.mount_propagation.is_none(), "{}", mount.name);
    }
}

/// Asserts that only the agent's container has a token, which is short-lived, and that only the needed host directories
/// are mounted.
fn assert_mounts(containers: &[Container], volumes: &[Volume]) {
    // Returns the containers that mount a volume, each with whether the mount is read-only.
    let mounts = |name: &str| -> Vec<(String, bool)> {
        let mounts_of = |container: &Container| {
            let mounts = container.volume_mounts.clone().unwrap_or_default();
            let mounts = mounts.into_iter().filter(|mount| mount.name == name);
            mounts.map(|mount| (container.name.clone(), mount.read_only == Some(true))).collect::<Vec<_>>()
        };
        containers.iter().flat_map(mounts_of).collect()
    };
    let only = |container: &str, read_only| vec![(container.to_owned(), read_only)];
    for volume in volumes {
        let mounted = mounts(&volume.name);
        match volume.name.as_str() {
            "token" => {
                let projected = volume.projected.as_ref().unwrap();
                let sources = projected.sources.clone().unwrap();
                let token = sources.iter().find_map(|source| source.service_account_token.clone()).unwrap();
                assert!(token.expiration_seconds.unwrap() <= 3600);
                assert_eq!(mounted, only("install", true));
            }
            "config" | "cni-cache" => assert_eq!(mounted, only("install", true)),
            "proc" => assert_eq!(mounted, only("repair", true)),
            "cni-conf" | "cni-bin" | "run" | "pod" => assert_eq!(mounted, only("install", false)),
            other => panic!("unexpected volume {other}"),
        }
        assert!(volume.secret.is_none());
        if let Some(path) = volume.host_path.as_ref().map(|host| host.path.as_str()) {
            assert!(!["/", "/etc", "/run", "/var", "/var/run", "/var/lib", "/opt"].contains(&path), "{path}");
        }
    }
}

/// Asserts that two agents fit on a node, and that the kubelet queries each by itself.
pub(crate) fn assert_surges(objects: &Objects) {
    let update = objects.daemon_set().spec.update_strategy.unwrap().rolling_update.unwrap();
    assert_eq!(update.max_unavailable, Some(IntOrString::Int(0)));
    assert!(update.max_surge.is_some_and(|surge| surge != IntOrString::Int(0)));
    for container in objects.pod().containers {
        // With hostNetwork the API server makes each port a port of the host, and the scheduler keeps two such pods
        // off one node.
        assert!(container.ports.is_none(), "{}", container.name);
    }
    let install = objects.container("install");
    for (probe, question) in [(install.readiness_probe, "ready"), (install.liveness_probe, "healthy")] {
        let command = probe.unwrap().exec.unwrap().command.unwrap();
        assert_eq!(command[1..], ["agent-status", question]);
    }
}

pub(crate) fn assert_consistent(objects: &Objects) {
    let set = objects.daemon_set();
    let (metadata, spec) = (set.metadata, set.spec);
    let template = spec.template.metadata.unwrap();
    let labels = template.labels.unwrap();
    let selector = spec.selector.match_labels.unwrap();
    assert!(selector.iter().all(|(key, value)| labels.get(key) == Some(value)), "{selector:?}");
    for (key, value) in [("k8s-app", "istio-cni-node"), ("sidecar.istio.io/inject", "false")] {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    let pod = spec.template.spec.unwrap();
    let account: ServiceAccount = objects.one("ServiceAccount");
    assert_eq!(pod.service_account_name, account.metadata.name);
    let namespace: Namespace = objects.one("Namespace");
    assert_eq!(
        (&metadata.namespace, &account.metadata.namespace),
        (&namespace.metadata.name, &namespace.metadata.name)
    );
    let level = namespace.metadata.labels.unwrap()["pod-security.kubernetes.io/enforce"].clone();
    assert_eq!(level, "privileged");
    let volumes = pod.volumes.unwrap();
    let config: ConfigMap = objects.one("ConfigMap");
    let mounted = volumes.iter().find_map(|volume| volume.config_map.clone()).unwrap();
    assert_eq!((Some(mounted.name), config.metadata.namespace), (config.metadata.name, metadata.namespace));
    for container in &pod.containers {
        for mount in container.volume_mounts.iter().flatten() {
            assert!(volumes.iter().any(|volume| volume.name == mount.name), "{}", mount.name);
        }
        let requests = container.resources.clone().unwrap().requests.unwrap();
        assert!(requests.contains_key("cpu") && requests.contains_key("memory"), "{}", container.name);
    }
    let annotations = template.annotations.unwrap();
    assert_eq!(annotations["prometheus.io/port"], "15014");
    let effects: Vec<_> =
        pod.tolerations.unwrap().into_iter().map(|it| it.effect.or(it.key).unwrap()).collect();
    assert_eq!(effects, ["NoSchedule", "NoExecute", "CriticalAddonsOnly"]);
    assert_eq!(pod.priority_class_name.as_deref(), Some("system-node-critical"));
    // The time that an uninstall at the agent's shutdown may take, in seconds.
    assert_eq!(pod.termination_grace_period_seconds, Some(360));
    assert_eq!(pod.node_selector.unwrap()["kubernetes.io/os"], "linux");
}

/// Returns a rule as one line: API groups, resources, names, verbs.
pub(crate) fn rule_line(rule: &PolicyRule) -> String {
    let join = |list: &Option<Vec<String>>| list.clone().unwrap_or_default().join(",");
    assert!(rule.non_resource_urls.is_none(), "{rule:?}");
    let names =
        rule.resource_names.as_ref().map(|names| format!(" [{}]", names.join(","))).unwrap_or_default();
    format!("{:?} {}{names}: {}", join(&rule.api_groups), join(&rule.resources), rule.verbs.join(" "))
}

const CLUSTER_RULES: [&str; 3] =
    [r#""" pods: get list watch"#, r#""" nodes: watch"#, r#""events.k8s.io" events: create patch"#];
const NAMESPACE_RULE: &str = r#""apps" daemonsets [gybe-node]: get"#;
/// Admits the pod on OpenShift.
const SCC_RULE: &str = r#""security.openshift.io" securitycontextconstraints [privileged]: use"#;

pub(crate) fn assert_rights_to_read_and_to_write_events(objects: &Objects) {
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

/// Returns the environment and ConfigMap of the agent on the node worker-1.
pub(crate) fn settings_sources(objects: &Objects) -> SettingsSources {
    let namespace = objects.daemon_set().metadata.namespace.unwrap();
    let downward =
        [("spec.nodeName", "worker-1"), ("metadata.name", "gybe-node-x7k2p"), ("status.hostIP", "10.0.0.7")];
    let mut environment = BTreeMap::new();
    for variable in objects.container("install").env.unwrap() {
        let field = variable.value_from.and_then(|from| from.field_ref).map(|field| field.field_path);
        let value = match field.as_deref() {
            None => variable.value.unwrap(),
            Some("metadata.namespace") => namespace.clone(),
            Some(field) => downward.iter().find(|(name, _)| *name == field).unwrap().1.to_owned(),
        };
        environment.insert(variable.name, value);
    }
    let mounted = objects.pod().volumes.unwrap().into_iter().find_map(|volume| volume.config_map).unwrap();
    let is_mounted = |map: &ConfigMap| map.metadata.name.as_ref() == Some(&mounted.name);
    let config = objects.of("ConfigMap").into_iter().find(is_mounted).unwrap();
    SettingsSources { environment, files: config.data.unwrap(), network_config: None }
}

pub(crate) fn assert_accepted(objects: &Objects) {
    let sources = settings_sources(objects);
    let is_honoured = |names: &[SettingName], searched: &str| {
        let mut supported =
            names.iter().filter(|name| matches!(name.support, Support::Honoured | Support::Ambient));
        supported.any(|name| name.name == searched)
    };
    for name in sources.environment.keys() {
        assert!(is_honoured(&OURS, name) || is_honoured(&INCUMBENTS, name), "{name}");
    }
    for key in sources.files.keys() {
        assert!(is_honoured(&KEYS, key), "{key}");
    }
    let settings = Settings::read(&sources).unwrap();
    assert_eq!(settings.notes, [""; 0]);
    let environment = &settings.environment;
    assert_eq!((environment.node.as_str(), environment.pod.as_str()), ("worker-1", "gybe-node-x7k2p"));
    let excluded = &settings.options.conf.exclude_namespaces;
    for namespace in ["kube-system", "istio-system", environment.namespace.as_str()] {
        assert!(excluded.contains(namespace), "{namespace}");
    }
    assert_eq!(settings.options.conf.facts.socket.as_deref(), Some(environment.facts_socket().as_path()));
    assert_directories_mounted(objects, &settings);
    let node = "10.0.0.7".parse().unwrap();
    assert_eq!(environment.health, Some(Listen { address: Some(node), port: 8000 }));
    assert_eq!(environment.metrics.and_then(|it| it.address), Some(node));
    let annotations = objects.daemon_set().spec.template.metadata.unwrap().annotations.unwrap();
    let metrics = environment.metrics.map(|it| it.port.to_string());
    assert_eq!(metrics.as_ref(), annotations.get("prometheus.io/port"));
}

/// Asserts that each directory of the agent is mounted from the right volume, and writable only where the agent writes.
fn assert_directories_mounted(objects: &Objects, settings: &Settings) {
    let (environment, install) = (&settings.environment, objects.container("install"));
    let volumes = objects.pod().volumes.unwrap();
    for (path, volume, writes) in [
        (environment.directories.conf.as_path(), "cni-conf", true),
        (&environment.directories.programs, "cni-bin", true),
        (environment.directories.results.parent().unwrap(), "cni-cache", false),
        (&environment.run, "run", true),
        (environment.pod_directory.as_deref().and_then(Path::parent).unwrap(), "pod", true),
        (&environment.config, "config", false),
        (&environment.api.service_account, "token", false),
    ] {
        let at = |mount: &&VolumeMount| Path::new(&mount.mount_path) == path;
        let mount = install.volume_mounts.iter().flatten().find(at);
        let mount = mount.unwrap_or_else(|| panic!("nothing is mounted at {}", path.display()));
        assert_eq!(
            (mount.name.as_str(), mount.read_only != Some(true)),
            (volume, writes),
            "{}",
            path.display()
        );
    }
    let run = volumes.iter().find(|volume| volume.name == "run").and_then(|volume| volume.host_path.clone());
    assert_eq!(Path::new(&run.unwrap().path), environment.run, "the plugin uses this directory of the host");
    assert_eq!(environment.image, Path::new(&install.command.unwrap()[0]).parent().unwrap());
}

/// Asserts that `gybe` accepts the arguments in the manifests: followed by `--help` they succeed only if all are valid.
pub(crate) fn assert_arguments_accepted(objects: &Objects) {
    let pod = objects.pod();
    for container in pod.init_containers.into_iter().flatten().chain(pod.containers) {
        let command: Vec<String> = container.command.into_iter().chain(container.args).flatten().collect();
        let probes = [container.readiness_probe, container.liveness_probe].into_iter().flatten();
        let probes = probes.map(|probe| probe.exec.unwrap().command.unwrap());
        for arguments in probes.chain([command]) {
            assert_command_accepted(&arguments);
        }
    }
    let shape = Settings::read(&settings_sources(objects)).unwrap().options.shape;
    assert!(matches!(shape, ShapeSetting::Auto | ShapeSetting::Fixed(Shape::Standalone { .. })));
}

pub(crate) fn assert_command_accepted(arguments: &[String]) {
    assert_eq!(arguments[0], "/opt/gybe/bin/gybe");
    #[expect(clippy::disallowed_methods, reason = "runs the program under test")]
    let mut gybe = Command::new(env!("CARGO_BIN_EXE_gybe"));
    let output = gybe.args(&arguments[1..]).arg("--help").output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}
