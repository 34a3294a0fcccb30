//! The settings, directories and arguments in the manifests, parsed by the program.

use crate::objects::Objects;
use gybe_installer::host::desired::Shape;
use gybe_installer::host::settings::{
    INCUMBENTS, KEYS, Listen, OURS, SettingName, Settings, SettingsSources, Support,
};
use k8s_openapi::api::core::v1::{ConfigMap, VolumeMount};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

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
        names.iter().any(|name| name.name == searched && name.support == Support::Honoured)
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
    assert!(matches!(shape, Shape::Chained { .. } | Shape::Standalone { .. }));
}

pub(crate) fn assert_command_accepted(arguments: &[String]) {
    assert_eq!(arguments[0], "/opt/gybe/bin/gybe");
    #[expect(clippy::disallowed_methods, reason = "runs the program under test")]
    let mut gybe = Command::new(env!("CARGO_BIN_EXE_gybe"));
    let output = gybe.args(&arguments[1..]).arg("--help").output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}
