//! What a kubelet makes of a container in a pod's specification, in the CRI's words. Only the host's
//! directories are this stage's; all else is taken from the manifests.

use std::collections::BTreeMap;

use gybe_containerd_tests::config;
use k8s_cri::v1;
use k8s_openapi::api::core::v1::{Container, PodSpec, SecurityContext, Volume};

/// What nobody knows before a pod is on a node.
pub(crate) struct Placed<'p> {
    /// For `fieldRef`.
    pub(crate) fields: BTreeMap<&'static str, String>,
    /// Variables for every container of a cluster.
    pub(crate) service: BTreeMap<&'static str, String>,
    /// Where volumes that are no host path were written, by name.
    pub(crate) written: &'p str,
}

/// The host's directories that are elsewhere on a stage.
const ELSEWHERE: [(&str, &str); 2] =
    [("/etc/cni/net.d", config::CONF_DIR), ("/opt/cni/bin", config::BIN_DIR)];

/// Where a volume is on this node.
pub(crate) fn source(volume: &Volume, placed: &Placed<'_>) -> String {
    let Some(host) = &volume.host_path else { return format!("{}/{}", placed.written, volume.name) };
    let elsewhere = ELSEWHERE.iter().find(|(path, _)| *path == host.path);
    elsewhere.map_or(host.path.clone(), |(_, stage)| (*stage).to_owned())
}

pub(crate) fn container(pod: &PodSpec, container: &Container, placed: &Placed<'_>) -> v1::ContainerConfig {
    let volumes = pod.volumes.as_deref().unwrap_or_default();
    let mounts = container.volume_mounts.iter().flatten().map(|mount| v1::Mount {
        container_path: mount.mount_path.clone(),
        host_path: source(volumes.iter().find(|volume| volume.name == mount.name).unwrap(), placed),
        readonly: mount.read_only == Some(true),
        ..v1::Mount::default()
    });
    let named = |name: &str, value: String| v1::KeyValue { key: name.to_owned(), value };
    let own = container.env.iter().flatten().map(|variable| {
        let field = variable.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
        let value = field.map(|field| placed.fields[field.field_path.as_str()].clone());
        named(&variable.name, value.or(variable.value.clone()).unwrap())
    });
    let service = placed.service.iter().map(|(name, value)| named(name, value.clone()));
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: container.name.clone(), attempt: 0 }),
        image: Some(v1::ImageSpec { image: container.image.clone().unwrap(), ..v1::ImageSpec::default() }),
        command: container.command.clone().unwrap_or_default(),
        args: container.args.clone().unwrap_or_default(),
        envs: service.chain(own).collect(),
        mounts: mounts.collect(),
        log_path: format!("{}.log", container.name),
        linux: Some(v1::LinuxContainerConfig {
            security_context: Some(security(pod, container.security_context.as_ref().unwrap())),
            ..v1::LinuxContainerConfig::default()
        }),
        ..v1::ContainerConfig::default()
    }
}

fn security(pod: &PodSpec, context: &SecurityContext) -> v1::LinuxContainerSecurityContext {
    let capabilities = context.capabilities.clone().unwrap_or_default();
    let number = |id: Option<i64>| id.map(|value| v1::Int64Value { value });
    let seccomp = pod.security_context.as_ref().and_then(|of_pod| of_pod.seccomp_profile.as_ref());
    let kind = match seccomp.map(|profile| profile.type_.as_str()) {
        Some("RuntimeDefault") => v1::security_profile::ProfileType::RuntimeDefault,
        _ => v1::security_profile::ProfileType::Unconfined,
    };
    v1::LinuxContainerSecurityContext {
        capabilities: Some(v1::Capability {
            add_capabilities: capabilities.add.unwrap_or_default(),
            drop_capabilities: capabilities.drop.unwrap_or_default(),
            ..v1::Capability::default()
        }),
        privileged: context.privileged == Some(true),
        namespace_options: Some(v1::NamespaceOption {
            network: mode(pod.host_network),
            pid: match pod.host_pid {
                Some(true) => v1::NamespaceMode::Node.into(),
                _ => v1::NamespaceMode::Container.into(),
            },
            ..v1::NamespaceOption::default()
        }),
        run_as_user: number(context.run_as_user),
        run_as_group: number(context.run_as_group),
        readonly_rootfs: context.read_only_root_filesystem == Some(true),
        no_new_privs: context.allow_privilege_escalation == Some(false),
        masked_paths: MASKED.map(str::to_owned).to_vec(),
        readonly_paths: READONLY.map(str::to_owned).to_vec(),
        seccomp: Some(v1::SecurityProfile { profile_type: kind.into(), localhost_ref: String::new() }),
        ..v1::LinuxContainerSecurityContext::default()
    }
}

fn mode(of_the_node: Option<bool>) -> i32 {
    match of_the_node {
        Some(true) => v1::NamespaceMode::Node.into(),
        _ => v1::NamespaceMode::Pod.into(),
    }
}

/// What a kubelet hides of /proc and /sys (`pkg/securitycontext/util.go`, v1.36).
const MASKED: [&str; 9] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];
const READONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];
