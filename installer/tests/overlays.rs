//! The manifests of each platform, which `make -C manifests test` builds first with kustomize and with the chart: both
//! have the same objects, the assertions about the base hold for them, and their directories are the platform's.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failed expectation ends the test"
)]

#[path = "overlays/chart.rs"]
mod chart;
#[path = "deployment/objects.rs"]
mod objects;
#[path = "deployment/pod.rs"]
mod pod;

use gybe_installer::host::desired::Shape;
use gybe_installer::host::observe::FileName;
use gybe_installer::host::settings::Settings;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role};
use objects::Objects;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const CONF: &str = "/etc/cni/net.d";
const BIN: &str = "/opt/cni/bin";
const K3S: &str = "/var/lib/rancher/k3s/agent/etc/cni/net.d";

/// The directories of conf files and of plugins of each platform's runtime.
const PLATFORMS: [(&str, &str, &str); 7] = [
    ("default", CONF, BIN),
    ("gke", CONF, "/home/kubernetes/bin"),
    ("k3d", K3S, "/bin"),
    ("k3s", K3S, "/var/lib/rancher/k3s/data/cni"),
    ("microk8s", "/var/snap/microk8s/current/args/cni-network", "/var/snap/microk8s/current/opt/cni/bin"),
    ("minikube", CONF, BIN),
    ("openshift", "/etc/cni/multus/net.d", "/var/lib/cni/bin"),
];

/// The platforms of the chart that need no overlay, because their runtimes have the default directories.
const LIKE_DEFAULT: [&str; 5] = ["aks", "eks", "iks", "k0s", "talos"];

fn built(platform: &str) -> Objects {
    Objects::in_file(&Path::new("../target/manifests").join(platform).with_extension("yaml"))
}

/// Returns the objects of the chart.
fn rendered(name: &str) -> Objects {
    built(&format!("chart/{name}"))
}

fn host_path(objects: &Objects, volume: &str) -> String {
    let volumes = objects.pod().volumes.unwrap();
    volumes.into_iter().find(|it| it.name == volume).and_then(|it| it.host_path).unwrap().path
}

#[test]
fn the_assertions_about_the_base_hold_on_every_platform() {
    for (platform, conf, bin) in PLATFORMS {
        println!("{platform}");
        let objects = built(platform);
        objects.assert_all_fields_known();
        pod::assert_rights_to_read_and_to_write_events(&objects);
        pod::assert_confined(&objects);
        pod::assert_consistent(&objects);
        pod::assert_surges(&objects);
        pod::assert_accepted(&objects);
        pod::assert_arguments_accepted(&objects);
        assert_eq!(
            (host_path(&objects, "cni-conf"), host_path(&objects, "cni-bin")),
            (conf.into(), bin.into())
        );
    }
}

#[test]
fn the_chart_has_the_objects_of_each_overlay() {
    for (platform, ..) in PLATFORMS {
        assert_eq!(rendered(platform).by_name(), built(platform).by_name(), "{platform}");
    }
    for platform in LIKE_DEFAULT {
        assert_eq!(rendered(platform).by_name(), built("default").by_name(), "{platform}");
    }
}

#[test]
fn the_chart_has_the_objects_of_each_component() {
    for component in ["foreign-owner", "istio-cni-taint", "probe-once", "selinux"] {
        let name = format!("with-{component}");
        assert_eq!(rendered(&name).by_name(), built(&name).by_name(), "{component}");
    }
    // One value of the chart is the setting, too.
    for (component, key, value) in [
        ("with-node-condition", "node_condition", "true"),
        ("with-node-taint", "node_taints", "cni.istio.io/not-ready"),
    ] {
        let mut rendered = rendered(component).by_name();
        let settings = &mut rendered.get_mut("\"ConfigMap\" gybe-system/gybe-config").unwrap()["data"];
        assert_eq!(settings.as_object_mut().unwrap().remove(key).unwrap(), value);
        assert_eq!(rendered, built(component).by_name());
    }
    for mode in ["delete", "label"] {
        let component = format!("with-repair-{mode}");
        let (mut rendered, mut built) = (rendered(&component).by_name(), built(&component).by_name());
        let setting = |objects: &mut BTreeMap<String, serde_json::Value>| {
            let settings = &mut objects.get_mut("\"ConfigMap\" gybe-system/gybe-config").unwrap()["data"];
            settings.as_object_mut().unwrap().remove("repair").unwrap()
        };
        assert_eq!((setting(&mut rendered), setting(&mut built)), (mode.into(), "repair".into()));
        assert_eq!(rendered, built, "{component}");
    }
}

#[test]
fn on_bottlerocket_the_pod_has_the_selinux_type_that_may_write_the_hosts_files() {
    let (default, mut pod) = (rendered("default").pod(), rendered("bottlerocket").pod());
    let options = pod.security_context.as_mut().unwrap().se_linux_options.take().unwrap();
    assert_eq!(options.type_.as_deref(), Some("super_t"));
    assert_eq!(pod, default);
}

#[test]
fn every_overlay_is_tested() {
    let overlays = fs::read_dir("../manifests/overlays").unwrap().map(|entry| entry.unwrap().file_name());
    let overlays: BTreeSet<_> = overlays.map(|name| name.into_string().unwrap()).collect();
    assert_eq!(overlays, PLATFORMS.map(|(name, ..)| name.to_owned()).into());
    let platforms = fs::read_to_string("../manifests/chart/files/platforms.yaml").unwrap();
    let platforms: BTreeMap<String, serde_json::Value> = serde_saphyr::from_str(&platforms).unwrap();
    let tested = PLATFORMS.map(|(name, ..)| name).into_iter().chain(LIKE_DEFAULT).chain(["bottlerocket"]);
    assert_eq!(platforms.into_keys().collect::<BTreeSet<_>>(), tested.map(str::to_owned).collect());
}

#[test]
fn the_component_foreign_owner_adds_only_three_capabilities() {
    let (default, mut pod) = (built("default").pod(), built("with-foreign-owner").pod());
    let install = pod.containers.iter_mut().find(|container| container.name == "install").unwrap();
    let capabilities = install.security_context.as_mut().unwrap().capabilities.as_mut().unwrap();
    let added = capabilities.add.take().unwrap();
    assert_eq!(added, ["DAC_OVERRIDE", "CHOWN", "FOWNER"]);
    assert_eq!(pod, default);
}

#[test]
fn the_component_probe_once_leaves_no_container_with_capabilities_and_no_repair() {
    let (default, once) = (built("default"), built("with-probe-once"));
    once.assert_all_fields_known();
    pod::assert_arguments_accepted(&once);
    let (before, mut pod) = (default.pod(), once.pod());
    let probes = pod.init_containers.take().unwrap();
    let ([probe], [install]) = (probes.as_slice(), pod.containers.as_slice()) else { panic!("{pod:?}") };
    assert_eq!(*install, default.container("install"));
    // Where the container `repair` has them, and nothing else.
    let repair = default.container("repair");
    assert_eq!(
        (&probe.security_context, &probe.volume_mounts),
        (&repair.security_context, &repair.volume_mounts)
    );
    assert!(!probe.command.clone().unwrap().contains(&"--watch".to_owned()));
    pod.containers = before.containers.clone();
    assert_eq!(pod, before);
    assert_eq!(once.one::<ConfigMap>("ConfigMap").data.unwrap()["repair"], "off");
}

#[test]
fn the_component_selinux_sets_only_the_type() {
    let (default, mut pod) = (built("default").pod(), built("with-selinux").pod());
    let options = pod.security_context.as_mut().unwrap().se_linux_options.take().unwrap();
    assert_eq!(options.type_.as_deref(), Some("spc_t"));
    assert_eq!(pod, default);
}

#[test]
fn a_component_that_grants_a_right_adds_only_that_right_and_the_policy_that_confines_it() {
    for (component, right) in [
        ("node-condition", r#""" nodes/status: patch"#),
        ("node-taint", r#""" nodes: patch"#),
        ("repair-delete", r#""" pods: delete"#),
        ("repair-label", r#""" pods/status: patch"#),
        ("ambient-annotation", r#""" pods/status: patch"#),
    ] {
        assert_adds_one_confined_right(component, right);
    }
}

fn assert_adds_one_confined_right(component: &str, right: &str) {
    let (default, extended) = (built("default"), built(&format!("with-{component}")));
    extended.assert_all_fields_known();
    assert_eq!(extended.pod(), default.pod());
    let roles: Vec<ClusterRole> = extended.of("ClusterRole");
    let added: Vec<_> = roles.into_iter().filter(|role| *role != default.one("ClusterRole")).collect();
    let [role] = added.as_slice() else { panic!("{added:?}") };
    let rules: Vec<_> = role.rules.iter().flatten().map(pod::rule_line).collect();
    assert_eq!(rules, [right]);
    let bindings: Vec<ClusterRoleBinding> = extended.of("ClusterRoleBinding");
    let of_role = bindings.iter().filter(|it| Some(&it.role_ref.name) == role.metadata.name.as_ref());
    let subjects: Vec<_> = of_role.flat_map(|it| it.subjects.iter().flatten()).collect();
    let [subject] = subjects.as_slice() else { panic!("{subjects:?}") };
    let user = format!("system:serviceaccount:{}:{}", subject.namespace.as_deref().unwrap(), subject.name);
    let policy: ValidatingAdmissionPolicy = extended.one("ValidatingAdmissionPolicy");
    let binding: ValidatingAdmissionPolicyBinding = extended.one("ValidatingAdmissionPolicyBinding");
    let (spec, bound) = (policy.spec.unwrap(), binding.spec);
    assert_eq!(Some(bound.policy_name), policy.metadata.name);
    assert_eq!(bound.validation_actions, ["Deny"]);
    assert_eq!((spec.failure_policy.as_deref(), bound.match_resources), (Some("Fail"), None));
    // The policy applies to the resource of the right.
    let rules = spec.match_constraints.unwrap().resource_rules.unwrap();
    let [rule] = rules.as_slice() else { panic!("{rules:?}") };
    assert_eq!(rule.resources.as_ref(), role.rules.as_ref().and_then(|rules| rules[0].resources.as_ref()));
    let operation = if right.ends_with("delete") { "DELETE" } else { "UPDATE" };
    assert_eq!(rule.operations, Some(vec![operation.to_owned()]));
    let conditions: Vec<_> = spec.match_conditions.into_iter().flatten().map(|it| it.expression).collect();
    assert_eq!(conditions, [format!("request.userInfo.username == {user:?}")]);
}

#[test]
fn ambient_mode_adds_the_objects_of_its_component_a_variable_a_mount_and_the_watch_of_namespaces() {
    let (default, mut ambient) = (rendered("default").by_name(), rendered("ambient"));
    ambient.assert_all_fields_known();
    pod::assert_arguments_accepted(&ambient);
    let of_component = built("with-ambient-annotation").by_name();
    let added: Vec<_> = of_component.into_iter().filter(|(name, _)| !default.contains_key(name)).collect();
    assert_eq!(added.len(), 4, "{added:?}");
    for (name, object) in added {
        assert_eq!(ambient.by_name().get(&name), Some(&object), "{name}");
    }
    let role: ClusterRole = serde_json::from_value(ambient.take("ClusterRole", "gybe-node")).unwrap();
    assert!(role.rules.iter().flatten().map(pod::rule_line).any(|line| line == r#""" namespaces: watch"#));
    let differ = |objects: BTreeMap<String, serde_json::Value>| -> Vec<String> {
        objects
            .into_iter()
            .filter(|(name, it)| default.get(name).is_some_and(|before| before != it))
            .map(|(name, _)| name)
            .collect()
    };
    assert_eq!(differ(ambient.by_name()), [r#""DaemonSet" gybe-system/gybe-node"#]);
}

#[test]
fn with_ambient_mode_and_repair_by_label_each_policy_leaves_the_part_of_the_other_to_it() {
    let part = |objects: &Objects, name: &str, part: &str| {
        let policies: Vec<ValidatingAdmissionPolicy> = objects.of("ValidatingAdmissionPolicy");
        let policy = policies.into_iter().find(|it| it.metadata.name.as_deref() == Some(name)).unwrap();
        policy.spec.unwrap().validations.unwrap().pop().unwrap().expression.contains(part)
    };
    let (label, annotation) = ("gybe-repair-label", "gybe-ambient-annotation");
    let both = rendered("ambient-label");
    both.assert_all_fields_known();
    assert!(!part(&both, label, "metadata.annotations") && !part(&both, annotation, "metadata.labels"));
    assert!(part(&rendered("with-repair-label"), label, "metadata.annotations"));
    assert!(part(&rendered("ambient"), annotation, "metadata.labels"));
}

#[test]
fn the_component_istio_cni_taint_adds_to_node_taint_a_container_and_the_right_to_get_its_configmap() {
    let (tainting, mut critical) = (built("with-node-taint"), built("with-istio-cni-taint"));
    critical.assert_all_fields_known();
    let list = critical.take("ConfigMap", "gybe-critical-daemonsets");
    pod::assert_arguments_accepted(&critical);
    let mut pod = critical.pod();
    let container = pod.containers.pop().unwrap();
    assert_eq!((container.name.as_str(), &pod), ("taint", &tainting.pod()));
    pod::assert_capabilities(&container, &[]);
    let mounts: Vec<_> = container.volume_mounts.iter().flatten().map(|it| it.name.as_str()).collect();
    assert_eq!(mounts, ["token"]);
    let text = |key: &str| list["metadata"][key].as_str().unwrap();
    let arguments = ["namespace", "name"].map(|key| format!("--configmap-{key}={}", text(key)));
    assert_eq!(container.command.unwrap()[1..], [&["istio-cni-taint".to_owned()], &arguments[..]].concat());
    let role: Role = serde_json::from_value(critical.take("Role", "gybe-critical-daemonsets")).unwrap();
    let rules: Vec<_> = role.rules.iter().flatten().map(pod::rule_line).collect();
    assert_eq!(rules, [r#""" configmaps [gybe-critical-daemonsets]: get"#]);
    critical.take("RoleBinding", "gybe-critical-daemonsets");
    // Nothing else is added.
    for kind in ["ConfigMap", "Role", "RoleBinding", "ClusterRole", "ValidatingAdmissionPolicy"] {
        let of = |objects: &Objects| objects.of::<serde_json::Value>(kind);
        assert_eq!(of(&critical), of(&tainting), "{kind}");
    }
}

#[test]
fn every_component_is_tested() {
    let components = fs::read_dir("../manifests/components").unwrap().map(|entry| entry.unwrap().file_name());
    let components: BTreeSet<_> = components.map(|name| name.into_string().unwrap()).collect();
    assert_eq!(
        components,
        [
            "ambient-annotation",
            "foreign-owner",
            "istio-cni-taint",
            "node-condition",
            "node-taint",
            "probe-once",
            "repair-delete",
            "repair-label",
            "selinux"
        ]
        .map(str::to_owned)
        .into()
    );
}

#[test]
fn on_openshift_the_entry_is_the_network_that_the_injector_requests() {
    let objects = built("openshift");
    let networks: Vec<serde_json::Value> = objects.of("NetworkAttachmentDefinition");
    let [network] = networks.as_slice() else { panic!("{networks:?}") };
    let metadata = &network["metadata"];
    assert_eq!((&metadata["namespace"], &metadata["name"]), (&"default".into(), &"istio-cni".into()));
    let settings = Settings::read(&pod::settings_sources(&objects)).unwrap();
    let file = FileName::new("istio-cni.conf").unwrap();
    assert_eq!(settings.options.shape, Shape::Standalone { file }.into());
    let context = objects.pod().security_context.unwrap();
    assert_eq!(context.se_linux_options.unwrap().type_.as_deref(), Some("spc_t"));
}
