//! Each platform's manifests as kustomize makes them: all that holds for the base holds for them, and
//! the directories are the platform's. `make test-manifests` makes them first.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that meets what it did not expect has nothing better to do"
)]

#[path = "deployment/objects.rs"]
mod objects;
#[path = "deployment/pod.rs"]
mod pod;
#[path = "deployment/rights.rs"]
mod rights;
#[path = "deployment/wishes.rs"]
mod wishes;

use gybe_installer::host::desired::Shape;
use gybe_installer::host::observe::FileName;
use gybe_installer::host::settings::Settings;
use objects::Objects;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const CONF: &str = "/etc/cni/net.d";
const BIN: &str = "/opt/cni/bin";
const K3S: &str = "/var/lib/rancher/k3s/agent/etc/cni/net.d";

/// Where each platform's runtime looks for conf files and for plugins.
const PLATFORMS: [(&str, &str, &str); 7] = [
    ("default", CONF, BIN),
    ("gke", CONF, "/home/kubernetes/bin"),
    ("k3d", K3S, "/bin"),
    ("k3s", K3S, "/var/lib/rancher/k3s/data/cni"),
    ("microk8s", "/var/snap/microk8s/current/args/cni-network", "/var/snap/microk8s/current/opt/cni/bin"),
    ("minikube", CONF, BIN),
    ("openshift", "/etc/cni/multus/net.d", "/var/lib/cni/bin"),
];

fn made(platform: &str) -> Objects {
    Objects::in_file(&Path::new("../target/manifests").join(platform).with_extension("yaml"))
}

fn host_path(objects: &Objects, volume: &str) -> String {
    let volumes = objects.pod().volumes.unwrap();
    volumes.into_iter().find(|it| it.name == volume).and_then(|it| it.host_path).unwrap().path
}

#[test]
fn all_that_holds_for_the_base_holds_on_every_platform() {
    for (platform, conf, bin) in PLATFORMS {
        println!("{platform}");
        let objects = made(platform);
        objects.assert_known();
        rights::assert_read_only(&objects);
        pod::assert_confined(&objects);
        pod::assert_consistent(&objects);
        wishes::assert_understood(&objects);
        wishes::assert_arguments(&objects);
        assert_eq!(
            (host_path(&objects, "cni-conf"), host_path(&objects, "cni-bin")),
            (conf.into(), bin.into())
        );
    }
}

#[test]
fn every_overlay_is_a_platform_that_is_looked_at() {
    let overlays = fs::read_dir("../manifests/overlays").unwrap().map(|entry| entry.unwrap().file_name());
    let overlays: BTreeSet<_> = overlays.map(|name| name.into_string().unwrap()).collect();
    assert_eq!(overlays, PLATFORMS.map(|(name, ..)| name.to_owned()).into());
}

#[test]
fn a_foreign_owner_s_directories_cost_three_capabilities_and_nothing_else() {
    let (usual, mut pod) = (made("default").pod(), made("with-foreign-owner").pod());
    let install = pod.containers.iter_mut().find(|container| container.name == "install").unwrap();
    let capabilities = install.security_context.as_mut().unwrap().capabilities.as_mut().unwrap();
    let added = capabilities.add.take().unwrap();
    assert_eq!(added, ["DAC_OVERRIDE", "CHOWN", "FOWNER"]);
    assert_eq!(pod, usual);
}

#[test]
fn on_selinux_the_pod_gets_a_type_and_nothing_else() {
    let (usual, mut pod) = (made("default").pod(), made("with-selinux").pod());
    let options = pod.security_context.as_mut().unwrap().se_linux_options.take().unwrap();
    assert_eq!(options.type_.as_deref(), Some("spc_t"));
    assert_eq!(pod, usual);
}

#[test]
fn every_component_is_tried() {
    let components = fs::read_dir("../manifests/components").unwrap().map(|entry| entry.unwrap().file_name());
    let components: BTreeSet<_> = components.map(|name| name.into_string().unwrap()).collect();
    assert_eq!(components, ["foreign-owner", "selinux"].map(str::to_owned).into());
}

#[test]
fn on_openshift_the_entry_is_the_network_that_multus_is_asked_for() {
    let objects = made("openshift");
    let networks: Vec<serde_json::Value> = objects.of("NetworkAttachmentDefinition");
    let [network] = networks.as_slice() else { panic!("{networks:?}") };
    let metadata = &network["metadata"];
    assert_eq!((&metadata["namespace"], &metadata["name"]), (&"default".into(), &"istio-cni".into()));
    let settings = Settings::read(&wishes::given(&objects)).unwrap();
    assert_eq!(settings.options.shape, Shape::Standalone { file: FileName::new("istio-cni.conf").unwrap() });
    let context = objects.pod().security_context.unwrap();
    assert_eq!(context.se_linux_options.unwrap().type_.as_deref(), Some("spc_t"));
}
