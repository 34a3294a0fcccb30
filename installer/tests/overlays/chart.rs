//! The chart's values, as helm renders the files in `manifests/chart-values`.

use crate::objects::Objects;
use crate::{pod, rendered};
use gybe_installer::host::desired::Shape;
use gybe_installer::host::observe::FileName;
use gybe_installer::host::settings::{KEYS, RepairMode, Settings};
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::probe::choose::BackendSetting;
use gybe_plugin::conf::LogLevel;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Container, ResourceQuota, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::Role;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

fn install(set: &DaemonSet) -> Container {
    let containers = set.spec.template.spec.clone().unwrap().containers;
    containers.into_iter().find(|container| container.name == "install").unwrap()
}

/// Returns how many agents may run, by the quota.
fn quota(objects: &Objects) -> String {
    let quota: ResourceQuota = objects.one("ResourceQuota");
    quota.spec.unwrap().hard.unwrap()["pods"].0.clone()
}

#[test]
fn each_pool_has_a_daemonset_and_a_configmap_and_no_node_is_in_two() {
    let objects = rendered("pools");
    objects.assert_all_fields_known();
    let mut sets: Vec<DaemonSet> = objects.of("DaemonSet");
    sets.sort_by_key(|set| set.metadata.name.clone());
    let names: Vec<_> = sets.iter().map(|set| set.metadata.name.clone().unwrap()).collect();
    assert_eq!(names, ["gybe-node", "gybe-node-canary", "gybe-node-edge"]);
    let [others, canary, edge] = sets.as_slice() else { panic!("{names:?}") };
    for (set, pool) in [(canary, "canary"), (edge, "edge")] {
        let pod = set.spec.template.spec.clone().unwrap();
        let labels = set.spec.template.metadata.clone().unwrap().labels.unwrap();
        assert_eq!(pod.node_selector.unwrap()["gybe.dev/pool"], pool);
        assert_eq!(labels["gybe.dev/pool"], pool);
        assert_eq!(set.spec.selector.match_labels.clone().unwrap()["gybe.dev/pool"], pool);
        assert_eq!(labels["app.kubernetes.io/name"], "gybe-node", "the name by which agents are found");
        let name = install(set).env.unwrap().into_iter().find(|variable| variable.name == "GYBE_DAEMONSET");
        assert_eq!(name.unwrap().value, set.metadata.name);
        let mounted = pod.volumes.unwrap().into_iter().find_map(|volume| volume.config_map).unwrap();
        assert_eq!(mounted.name, format!("gybe-config-{pool}"));
    }
    let affinity = others.spec.template.spec.clone().unwrap().affinity.unwrap().node_affinity.unwrap();
    let terms = affinity.required_during_scheduling_ignored_during_execution.unwrap().node_selector_terms;
    for term in &terms {
        let excluded = term.match_expressions.iter().flatten().find(|it| it.key == "gybe.dev/pool").unwrap();
        assert_eq!(
            (excluded.operator.as_str(), excluded.values.clone().unwrap()),
            ("NotIn", vec!["canary".to_owned(), "edge".to_owned()])
        );
        assert_eq!(term.match_expressions.iter().flatten().count(), 2, "the affinity of the values stays");
    }
    let role = objects.of::<Role>("Role").remove(0).rules.unwrap().remove(0);
    assert_eq!(role.resource_names, Some(names));

    // A pool's own values have precedence, also those that are false.
    let image = |set: &DaemonSet| install(set).image.unwrap();
    assert_eq!((image(canary).as_str(), image(others)), ("gybe:0.2.0", image(edge)));
    let added = |set: &DaemonSet| install(set).security_context.unwrap().capabilities.unwrap().add;
    assert!(added(canary).is_none() && added(others).is_some() && added(edge).is_some());
    let maps: Vec<ConfigMap> = objects.of("ConfigMap");
    let backend = |name: &str| {
        let map = maps.iter().find(|map| map.metadata.name.as_deref() == Some(name)).unwrap();
        map.data.clone().unwrap()["backend"].clone()
    };
    assert_eq!(
        [backend("gybe-config"), backend("gybe-config-canary"), backend("gybe-config-edge")],
        ["auto", "nft", "auto"]
    );
    // 101 nodes: at most 11 of one pool with 10%, rounded up in each of the three.
    assert_eq!(quota(&objects), "114");
    let spec = objects.one::<ResourceQuota>("ResourceQuota").spec.unwrap();
    let scope = &spec.scope_selector.unwrap().match_expressions.unwrap()[0];
    let classes = scope.values.clone().unwrap();
    assert_eq!(classes, ["system-node-critical", "edge-critical"], "the agents' of every pool");
}

#[test]
fn the_program_accepts_the_settings_of_a_chart_with_all_values() {
    let objects = rendered("all");
    objects.assert_all_fields_known();
    let settings = Settings::read(&pod::settings_sources(&objects)).unwrap();
    assert_eq!(settings.notes, [""; 0]);
    assert_eq!(settings.options.repair.mode, RepairMode::Off, "an unquoted `off`");
    assert!(settings.options.leave_when_daemonset_gone);
    assert_eq!((settings.options.node_taints.len(), settings.options.node_condition), (1, true));
    let excluded = &settings.options.conf.exclude_namespaces;
    assert!(excluded.contains("ops") && excluded.contains("kube-system"));
    let environment = settings.environment;
    assert_eq!(environment.control_plane, "mesh");
    let (health, metrics) = (environment.health.unwrap(), environment.metrics.unwrap());
    assert_eq!((health.address, health.port), (None, 8001));
    assert_eq!((metrics.address, metrics.port), (Some("::1".parse().unwrap()), 15015));
    let pod = objects.pod();
    let digest = "0".repeat(64);
    for container in &pod.containers {
        assert_eq!(container.image, Some(format!("registry.example/gybe@sha256:{digest}")));
    }
    let secrets: Vec<_> = pod.image_pull_secrets.unwrap().into_iter().map(|secret| secret.name).collect();
    assert_eq!(secrets, ["registry", "mirror"]);
    let annotations = objects.daemon_set().spec.template.metadata.unwrap().annotations.unwrap();
    assert_eq!(annotations["prometheus.io/port"], "15015");
    // The API server refuses a surge beside nodes without an agent.
    let update = objects.daemon_set().spec.update_strategy.unwrap().rolling_update.unwrap();
    assert_eq!((update.max_unavailable, update.max_surge), (Some(IntOrString::Int(1)), None));
    assert_eq!(quota(&objects), "5000");
}

/// Returns the text of every name of an object, and of every reference to one.
fn names_in(value: &Value, names: &mut BTreeSet<String>) {
    let keys =
        ["name", "policyName", "serviceAccountName", "resourceNames", "value", "expression", "command"];
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| match value {
            Value::String(text) if keys.contains(&key.as_str()) => drop(names.insert(text.clone())),
            Value::Array(texts) if keys.contains(&key.as_str()) => {
                names.extend(texts.iter().filter_map(Value::as_str).map(str::to_owned));
            }
            other => names_in(other, names),
        }),
        Value::Array(items) => items.iter().for_each(|item| names_in(item, names)),
        _ => {}
    }
}

#[test]
fn another_name_reaches_every_object_and_every_reference() {
    let objects = rendered("renamed");
    objects.assert_all_fields_known();
    let sets: Vec<DaemonSet> = objects.of("DaemonSet");
    for set in &sets {
        let labels = set.spec.template.metadata.clone().unwrap().labels.unwrap();
        assert_eq!(labels["app.kubernetes.io/name"], "gybe-node", "the name by which agents are found");
        let variable = install(set).env.unwrap().into_iter().find(|it| it.name == "GYBE_DAEMONSET");
        assert_eq!(variable.unwrap().value, set.metadata.name);
    }
    let mut names = BTreeSet::new();
    for object in objects.by_name().values() {
        names_in(object, &mut names);
    }
    let kept: Vec<_> =
        names.iter().filter(|name| name.contains("gybe-") && !name.contains("gybe-redirect-")).collect();
    // The namespace and the pod's own directory are no objects of the chart.
    assert_eq!(
        kept,
        ["--configmap-namespace=gybe-system", "--namespace=gybe-system", "/run/gybe-pod/agent"],
        "{names:#?}"
    );
    for expected in [
        "gybe-redirect-node",
        "gybe-redirect-node-canary",
        "gybe-redirect-config-canary",
        "gybe-redirect-leave",
    ] {
        assert!(names.contains(expected), "{names:#?}");
    }
}

#[test]
fn an_operators_service_account_and_rights_take_the_place_of_the_charts() {
    let objects = rendered("own-rights");
    objects.assert_all_fields_known();
    for kind in ["Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"] {
        assert_eq!(objects.of::<Value>(kind), [] as [Value; 0], "{kind}");
    }
    let accounts: Vec<ServiceAccount> = objects.of("ServiceAccount");
    let accounts: Vec<_> = accounts.into_iter().map(|account| account.metadata.name.unwrap()).collect();
    assert_eq!(accounts, ["gybe-leave"], "of the Job, which has no right without a role");
    let pod = objects.pod();
    assert_eq!(pod.service_account_name.as_deref(), Some("mesh-agents"));
    // The policies limit the rights of that account.
    let policies: Vec<ValidatingAdmissionPolicy> = objects.of("ValidatingAdmissionPolicy");
    assert_eq!(policies.len(), 3);
    for policy in policies {
        let condition = policy.spec.unwrap().match_conditions.unwrap().remove(0);
        assert!(
            condition.expression.ends_with("\"system:serviceaccount:gybe-system:mesh-agents\""),
            "{condition:?}"
        );
    }

    let install = install(&objects.daemon_set());
    let env = install.env.unwrap();
    let source = env.iter().find(|it| it.name == "CLUSTER").unwrap().value_from.clone().unwrap();
    assert_eq!(source.config_map_key_ref.unwrap().name, "cluster");
    assert!(env.iter().any(|it| it.name == "LOG_OUTPUT_LEVEL" && it.value.as_deref() == Some("debug")));
    assert!(pod.volumes.unwrap().iter().any(|it| it.name == "certificates" && it.config_map.is_some()));
    assert!(install.volume_mounts.unwrap().iter().any(|it| it.mount_path == "/etc/ssl/certs"));
    let (ready, live) = (install.readiness_probe.unwrap(), install.liveness_probe.unwrap());
    assert_eq!((ready.period_seconds, ready.timeout_seconds), (Some(2), Some(3)));
    assert_eq!((live.period_seconds, live.timeout_seconds), (Some(10), Some(20)));
    let command = |probe: k8s_openapi::api::core::v1::Probe| probe.exec.unwrap().command.unwrap().pop();
    assert_eq!((command(ready).as_deref(), command(live).as_deref()), (Some("ready"), Some("healthy")));
}

#[test]
fn the_notes_say_what_to_do_next() {
    let notes = |name: &str| {
        let text = fs::read_to_string(format!("../target/notes/{name}.yaml")).unwrap();
        let rendered: Value = serde_saphyr::from_str(&text).unwrap();
        rendered["notes"].as_str().unwrap().to_owned()
    };
    let default = notes("default");
    assert!(default.contains("install istiod with pilot.cni.enabled=true"), "{default}");
    assert!(default.contains("kubectl -n gybe-system rollout status daemonset gybe-node\n"), "{default}");
    assert!(default.contains("Set settings.mode=leave before"), "{default}");
    assert!(!default.contains("NOTE:"), "{default}");
    let ignored = notes("istio-cni");
    assert!(ignored.contains("NOTE: ownerName has no effect"), "{ignored}");
    let pools = notes("pools");
    for set in ["mesh-node\n", "mesh-node-canary\n", "mesh-node-edge\n"] {
        assert!(pools.contains(&format!("rollout status daemonset {set}")), "{pools}");
    }
}

#[test]
fn the_values_of_istio_cnis_chart_have_their_meaning() {
    let objects = rendered("istio-cni");
    objects.assert_all_fields_known();
    let settings = Settings::read(&pod::settings_sources(&objects)).unwrap();
    let options = &settings.options;
    assert_eq!(options.shape, Shape::Standalone { file: FileName::new("mesh.conf").unwrap() }.into());
    assert_eq!(options.repair.mode, RepairMode::Off);
    assert!(options.conf.exclude_namespaces.contains("ops"));
    assert_eq!(options.conf.backend, BackendSetting::Only(BackendKind::Nft));
    assert_eq!(options.conf.log_level, LogLevel::Debug);
    assert_eq!(objects.container("install").image_pull_policy.as_deref(), Some("Always"));
    assert_eq!(objects.pod().image_pull_secrets.unwrap()[0].name, "registry");
    assert_eq!(crate::host_path(&objects, "cni-conf"), crate::K3S);
    // Its limit counts nodes; an update here has more pods than nodes.
    assert_eq!(quota(&objects), "5500");
}

#[test]
fn the_servicemonitor_selects_the_service_of_the_agents() {
    let objects = rendered("servicemonitor");
    objects.assert_all_fields_known();
    let (service, monitor): (Service, Value) = (objects.one("Service"), objects.one("ServiceMonitor"));
    let labels = service.metadata.labels.unwrap();
    for (name, value) in monitor["spec"]["selector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(labels.get(name).map(String::as_str), value.as_str(), "{name}");
    }
    let spec = service.spec.unwrap();
    let pods = objects.daemon_set().spec.template.metadata.unwrap().labels.unwrap();
    for (name, value) in spec.selector.unwrap() {
        assert_eq!(pods.get(&name), Some(&value));
    }
    let port = spec.ports.unwrap().remove(0);
    let endpoint = &monitor["spec"]["endpoints"][0];
    assert_eq!((port.name.as_deref(), port.port), (endpoint["port"].as_str(), 15_014));
    let relabelings = endpoint["relabelings"].as_array().unwrap();
    let job = relabelings.iter().find(|it| it["targetLabel"] == "job").unwrap();
    let alerts = include_str!("../../../manifests/chart/files/alerts.yaml");
    assert!(job["replacement"] == "gybe-system/gybe-node" && alerts.contains("up{job=~\".*/gybe-node\"}"));
}

#[test]
fn a_global_value_sets_only_what_is_not_set() {
    let objects = rendered("global");
    let conf = Settings::read(&pod::settings_sources(&objects)).unwrap().options.conf;
    assert_eq!(conf.backend, BackendSetting::Iptables);
    assert_eq!(conf.log_level, LogLevel::Debug);
    let install = objects.container("install");
    assert_eq!(install.image_pull_policy.as_deref(), Some("Always"));
    assert_eq!(objects.pod().image_pull_secrets.unwrap()[0].name, "own");
    assert!(crate::host_path(&objects, "cni-conf").starts_with("/var/snap/microk8s"));
    assert_eq!(objects.of::<Value>("NetworkPolicy").len(), 0);
}

#[test]
fn the_values_of_istio_cnis_chart_select_the_mode_and_the_label_of_repair_and_the_policy_allows_only_that_label()
 {
    let objects = rendered("istio-cni-label");
    let options = Settings::read(&pod::settings_sources(&objects)).unwrap().options.repair;
    assert_eq!(
        (options.mode, options.label.to_string().as_str()),
        (RepairMode::Label, "example.com/broken=true")
    );
    let policy: ValidatingAdmissionPolicy = objects.one("ValidatingAdmissionPolicy");
    let variables = policy.spec.unwrap().variables.unwrap();
    let keys = variables.iter().find(|variable| variable.name == "keys").unwrap();
    assert_eq!(keys.expression, "['example.com/broken']");
}

#[test]
fn the_job_before_the_deletion_leaves_every_pool_and_has_three_rights() {
    let objects = rendered("leave");
    let job: Job = objects.one("Job");
    assert_eq!(job.metadata.annotations.unwrap()["helm.sh/hook"], "pre-delete");
    let spec = job.spec.unwrap();
    let pod = spec.template.spec.unwrap();
    let account = objects.one::<ServiceAccount>("ServiceAccount").metadata.name;
    assert_eq!((&pod.service_account_name, pod.host_network), (&account, None));
    let container = &pod.containers[0];
    let command = container.command.clone().unwrap();
    pod::assert_command_accepted(&command);
    let timeout = command.iter().find_map(|it| it.strip_prefix("--timeout=")?.parse::<i64>().ok()).unwrap();
    assert!(timeout < 300, "helm waits for 300 seconds");
    assert!(spec.active_deadline_seconds.unwrap() > timeout);
    let context = container.security_context.clone().unwrap();
    assert_eq!(context.capabilities.unwrap().drop.unwrap(), ["ALL"]);
    assert_eq!(
        (context.read_only_root_filesystem, context.allow_privilege_escalation),
        (Some(true), Some(false))
    );
    let user = pod.security_context.unwrap();
    assert_eq!((user.run_as_non_root, user.run_as_user), (Some(true), Some(65_532)));
    let tolerations: Vec<_> =
        pod.tolerations.unwrap().into_iter().map(|it| (it.operator, it.effect)).collect();
    assert_eq!(tolerations, [(Some("Exists".to_owned()), Some("NoSchedule".to_owned()))]);
    // As in installer/tests/agent/leave.rs.
    let rules: Vec<_> = objects.one::<Role>("Role").rules.unwrap().iter().map(pod::rule_line).collect();
    let maps = r#""" configmaps [gybe-config,gybe-config-canary,gybe-config-edge]: patch"#;
    assert_eq!(rules, [maps, r#""" pods: list"#, r#""apps" daemonsets: list"#]);
}

#[test]
fn a_prune_leaves_what_an_agent_needs_to_find_out_that_its_daemonset_is_gone() {
    let unpruned = [
        ("argocd.argoproj.io/sync-options", "Prune=false,Delete=false"),
        ("kustomize.toolkit.fluxcd.io/prune", "disabled"),
    ];
    let unpruned = unpruned.map(|(key, value)| (key.to_owned(), value.to_owned()));
    // Only the values `all` set leave_when_daemonset_gone.
    for (name, expected) in [("all", Some(BTreeMap::from(unpruned))), ("pools", None)] {
        let mut objects = rendered(name);
        let annotations = ["ServiceAccount", "Role", "RoleBinding"].map(|kind| {
            let object = objects.take(kind, "gybe-node");
            serde_json::from_value::<Option<BTreeMap<String, String>>>(
                object["metadata"]["annotations"].clone(),
            )
            .unwrap()
        });
        assert_eq!(annotations, [expected.clone(), expected.clone(), expected], "{name}");
    }
}

#[test]
fn on_openshift_the_job_names_no_user() {
    let job: Job = rendered("leave-openshift").one("Job");
    let user = job.spec.unwrap().template.spec.unwrap().security_context.unwrap();
    assert_eq!((user.run_as_non_root, user.run_as_user, user.run_as_group), (Some(true), None, None));
}

#[test]
fn values_that_cannot_be_applied_are_refused_together() {
    let message = fs::read_to_string("../target/manifests/chart/refused").unwrap();
    for key in ["hub", "profile", "platform", "global.resourceScope"] {
        assert!(message.contains(&format!("\n- {key}: ")), "{key}: {message}");
    }
}

#[test]
fn the_schema_has_every_key_of_the_configmap() {
    let schema: Value =
        serde_json::from_str(include_str!("../../../manifests/chart/values.schema.json")).unwrap();
    let keys = schema["definitions"]["settings"]["properties"].as_object().unwrap().keys();
    // `nodeTaints` and `nodeCondition` of the chart also give the right to change them.
    let of_values = ["node_taints", "node_condition"];
    let known = KEYS.iter().map(|key| key.name).filter(|key| !of_values.contains(key));
    assert_eq!(keys.map(String::as_str).collect::<BTreeSet<_>>(), known.collect());
}

#[test]
fn every_value_of_istio_cnis_chart_has_one_meaning_here() {
    let table = include_str!("../../../manifests/chart/files/istio-cni-values.yaml");
    let table: Vec<Value> = serde_saphyr::from_str(table).unwrap();
    let schema: Value =
        serde_json::from_str(include_str!("../../../manifests/chart/values.schema.json")).unwrap();
    let keys: BTreeSet<_> = table.iter().map(|row| row["key"].as_str().unwrap()).collect();
    assert_eq!(keys.len(), table.len(), "a key is there twice");
    for row in &table {
        let meanings = ["to", "refused", "ignored"].into_iter().filter(|name| row.get(name).is_some());
        assert_eq!(meanings.count(), 1, "{row}");
        for path in [row.get("key"), row.get("to")].into_iter().flatten() {
            let mut node = &schema;
            for name in path.as_str().unwrap().split('.') {
                // Below, helm accepts any name.
                let Some(known) = node.get("properties") else { break };
                node = known.get(name).unwrap_or_else(|| panic!("the schema has no {name} of {path}"));
            }
        }
    }
}

#[test]
fn each_alert_names_its_entry_in_the_troubleshooting_page() {
    let alerts: Value =
        serde_saphyr::from_str(include_str!("../../../manifests/chart/files/alerts.yaml")).unwrap();
    let page = include_str!("../../../docs/TROUBLESHOOTING.md");
    let rules = alerts["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() >= 8);
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        assert!(page.contains(&format!("\n### {name}\n")), "docs/TROUBLESHOOTING.md lacks {name}");
        let anchor = format!("docs/TROUBLESHOOTING.md#{}", name.to_lowercase());
        assert_eq!(rule["annotations"]["runbook"], anchor.as_str());
    }
    // A chart without `home` knows no address.
    let rendered = rendered("all").one::<Value>("PrometheusRule");
    let rendered = rendered["spec"]["groups"][0]["rules"].as_array().unwrap();
    assert_eq!(rendered.len(), rules.len());
    for rule in rendered {
        let notes = &rule["annotations"];
        let url = format!("https://runbooks.example/gybe/{}", notes["runbook"].as_str().unwrap());
        assert_eq!(notes["runbook_url"], url.as_str());
    }
}
