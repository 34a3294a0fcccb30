//! What the manifests tell the program, read by the program itself.

use crate::objects::Objects;
use gybe_installer::host::desired::Shape;
use gybe_installer::host::settings::{
    INCUMBENTS, KEYS, OURS, SettingName, Settings, SettingsSources, Support,
};
use k8s_openapi::api::core::v1::{ConfigMap, VolumeMount};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// As the kubelet would start the agent, on a node called worker-1.
pub(crate) fn given(objects: &Objects) -> SettingsSources {
    let namespace = objects.daemon_set().metadata.namespace.unwrap();
    let downward = [("spec.nodeName", "worker-1"), ("metadata.name", "gybe-node-x7k2p")];
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
    let config: ConfigMap = objects.one("ConfigMap");
    SettingsSources { environment, files: config.data.unwrap(), network_config: None }
}

pub(crate) fn assert_understood(objects: &Objects) {
    let given = given(objects);
    let honoured = |names: &[SettingName], said: &str| {
        names.iter().any(|name| name.name == said && name.support == Support::Honoured)
    };
    for name in given.environment.keys() {
        assert!(honoured(&OURS, name) || honoured(&INCUMBENTS, name), "{name}");
    }
    for key in given.files.keys() {
        assert!(honoured(&KEYS, key), "{key}");
    }
    let settings = Settings::read(&given).unwrap();
    assert_eq!(settings.notes, [""; 0]);
    let ground = &settings.environment;
    assert_eq!((ground.node.as_str(), ground.pod.as_str()), ("worker-1", "gybe-node-x7k2p"));
    let excluded = &settings.options.conf.exclude_namespaces;
    for namespace in ["kube-system", "istio-system", ground.namespace.as_str()] {
        assert!(excluded.contains(namespace), "{namespace}");
    }
    assert_eq!(settings.options.conf.facts.socket.as_deref(), Some(ground.facts_socket().as_path()));
    directories(objects, &settings);
    let ports = objects.container("install").ports.unwrap();
    let port = |name: &str| ports.iter().find(|it| it.name.as_deref() == Some(name)).unwrap().container_port;
    assert_eq!(ground.health.map(|it| i32::from(it.port)), Some(port("health")));
    assert_eq!(ground.metrics.map(|it| i32::from(it.port)), Some(port("metrics")));
}

/// Each directory the agent goes by is mounted, from the host where it must be the host's, and
/// writable only where it writes.
fn directories(objects: &Objects, settings: &Settings) {
    let (ground, install) = (&settings.environment, objects.container("install"));
    let volumes = objects.pod().volumes.unwrap();
    for (path, volume, writes) in [
        (ground.directories.conf.as_path(), "cni-conf", true),
        (&ground.directories.programs, "cni-bin", true),
        (ground.directories.results.parent().unwrap(), "cni-cache", false),
        (&ground.run, "run", true),
        (&ground.config, "config", false),
        (&ground.api.service_account, "token", false),
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
    assert_eq!(Path::new(&run.unwrap().path), ground.run, "the plugin looks there, on the host");
    assert_eq!(ground.image, Path::new(&install.command.unwrap()[0]).parent().unwrap());
}

/// `--help` behind them is an answer only when all before it could be read.
pub(crate) fn assert_arguments(objects: &Objects) {
    for container in objects.pod().containers {
        let words: Vec<String> = container.command.into_iter().chain(container.args).flatten().collect();
        #[expect(clippy::disallowed_methods, reason = "as a container's process is started")]
        let mut gybe = Command::new(env!("CARGO_BIN_EXE_gybe"));
        let output = gybe.args(&words[1..]).arg("--help").output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let shape = Settings::read(&given(objects)).unwrap().options.shape;
    assert!(matches!(shape, Shape::Chained { .. } | Shape::Standalone { .. }));
}
