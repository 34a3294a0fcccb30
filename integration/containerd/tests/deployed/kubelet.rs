//! Translates a container of a pod's specification to the CRI as the kubelet does.

use std::collections::BTreeMap;

use k8s_cri::v1;
use k8s_openapi::api::core::v1::{Container, PodSpec, SecurityContext, Volume};

/// What a pod's containers need besides the pod's specification.
pub(crate) struct PodContext<'p> {
    /// The values for `fieldRef`.
    pub(crate) fields: BTreeMap<&'static str, String>,
    /// Variables with the API server's address, which every container receives.
    pub(crate) service: BTreeMap<&'static str, String>,
    /// The directory of volumes that are not host paths.
    pub(crate) volumes: &'p str,
}

/// Returns a volume's directory on the test node.
pub(crate) fn source(volume: &Volume, context: &PodContext<'_>) -> String {
    let host = volume.host_path.as_ref().map(|host| host.path.clone());
    host.unwrap_or_else(|| format!("{}/{}", context.volumes, volume.name))
}

pub(crate) fn container(
    pod: &PodSpec,
    container: &Container,
    context: &PodContext<'_>,
    attempt: u32,
) -> v1::ContainerConfig {
    let volumes = pod.volumes.as_deref().unwrap_or_default();
    let mounts = container.volume_mounts.iter().flatten().map(|mount| v1::Mount {
        container_path: mount.mount_path.clone(),
        host_path: source(volumes.iter().find(|volume| volume.name == mount.name).unwrap(), context),
        readonly: mount.read_only == Some(true),
        ..v1::Mount::default()
    });
    let variable = |name: &str, value: String| v1::KeyValue { key: name.to_owned(), value };
    let variables = container.env.iter().flatten().map(|it| {
        let field = it.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
        let value = field.map(|field| context.fields[field.field_path.as_str()].clone());
        variable(&it.name, value.or(it.value.clone()).unwrap())
    });
    let service = context.service.iter().map(|(name, value)| variable(name, value.clone()));
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: container.name.clone(), attempt }),
        image: Some(v1::ImageSpec { image: container.image.clone().unwrap(), ..v1::ImageSpec::default() }),
        command: container.command.clone().unwrap_or_default(),
        args: container.args.clone().unwrap_or_default(),
        envs: service.chain(variables).collect(),
        mounts: mounts.collect(),
        log_path: format!("{}.{attempt}.log", container.name),
        linux: Some(v1::LinuxContainerConfig {
            security_context: Some(security_context(pod, container.security_context.as_ref().unwrap())),
            ..v1::LinuxContainerConfig::default()
        }),
        ..v1::ContainerConfig::default()
    }
}

fn security_context(pod: &PodSpec, container: &SecurityContext) -> v1::LinuxContainerSecurityContext {
    let capabilities = container.capabilities.clone().unwrap_or_default();
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
        privileged: container.privileged == Some(true),
        namespace_options: Some(v1::NamespaceOption {
            network: match pod.host_network {
                Some(true) => v1::NamespaceMode::Node.into(),
                _ => v1::NamespaceMode::Pod.into(),
            },
            pid: match pod.host_pid {
                Some(true) => v1::NamespaceMode::Node.into(),
                _ => v1::NamespaceMode::Container.into(),
            },
            ..v1::NamespaceOption::default()
        }),
        run_as_user: number(container.run_as_user),
        run_as_group: number(container.run_as_group),
        readonly_rootfs: container.read_only_root_filesystem == Some(true),
        no_new_privs: container.allow_privilege_escalation == Some(false),
        masked_paths: MASKED.map(str::to_owned).to_vec(),
        readonly_paths: READONLY.map(str::to_owned).to_vec(),
        seccomp: Some(v1::SecurityProfile { profile_type: kind.into(), localhost_ref: String::new() }),
        ..v1::LinuxContainerSecurityContext::default()
    }
}

/// The paths that a kubelet masks (`pkg/securitycontext/util.go`, v1.36).
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
