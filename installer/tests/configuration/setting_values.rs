//! Values of settings, the precedence of their sources, and the mounted ConfigMap while the kubelet replaces it:
//! never a mixture of two versions.

use crate::{Pairs, read, refused};
use gybe_installer::host::desired::{PutBack, Shape, ShapeSetting};
use gybe_installer::host::settings::{
    CONFIG, FailedInit, NodeMode, PodSource, RepairMode, RepairOptions, ServerTrust, SettingsSources,
    TakeOverSetting, config_directory,
};
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::probe::choose::BackendSetting;
use gybe_plugin::conf::LogLevel;
use gybe_test_support::{TestDir, write_volume};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

fn names(all: &[&str]) -> BTreeSet<String> {
    all.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn pods_are_repaired_unless_the_key_or_a_variable_of_the_incumbent_switches_it_off() {
    // As the incumbent's chart sets them with its default values.
    let chart = [
        ("REPAIR_ENABLED", "true"),
        ("REPAIR_REPAIR_PODS", "true"),
        ("REPAIR_DELETE_PODS", "false"),
        ("REPAIR_LABEL_PODS", "false"),
        ("REPAIR_INIT_CONTAINER_NAME", "istio-validation"),
        ("REPAIR_BROKEN_POD_LABEL_KEY", "cni.istio.io/uninitialized"),
        ("REPAIR_BROKEN_POD_LABEL_VALUE", "true"),
        ("REPAIR_NODE_NAME", "worker-1"),
    ];
    for (environment, files, mode) in [
        (&[][..], &[][..], RepairMode::Repair),
        (&chart, &[], RepairMode::Repair),
        (&[("REPAIR_ENABLED", "false"), ("REPAIR_REPAIR_PODS", "true")], &[], RepairMode::Off),
        (&[("REPAIR_REPAIR_PODS", "false")], &[], RepairMode::Off),
        (&[("REPAIR_ENABLED", "false")], &[("repair", "repair")], RepairMode::Repair),
        (&chart, &[("repair", "off")], RepairMode::Off),
        (&[("REPAIR_DELETE_PODS", "true"), ("REPAIR_LABEL_PODS", "true")], &[], RepairMode::Delete),
        (&[("REPAIR_REPAIR_PODS", "false"), ("REPAIR_LABEL_PODS", "true")], &[], RepairMode::Label),
        (&[("REPAIR_REPAIR_PODS", "true"), ("REPAIR_DELETE_PODS", "true")], &[], RepairMode::Repair),
        (&[("REPAIR_DELETE_PODS", "true")], &[("repair", "label")], RepairMode::Label),
    ] {
        let settings = read(environment, files);
        assert_eq!(settings.options.repair.mode, mode, "{environment:?} {files:?}");
    }
    assert_eq!(read(&chart, &[]).environment.node, "worker-1");
    assert!(refused(&[], &[("repair", "remove")]).contains("must be one of repair, delete, label, off"));
}

#[test]
fn the_label_the_selectors_and_the_exit_code_of_repair_have_the_incumbents_variables_and_keys() {
    let default = read(&[("REPAIR_INIT_CONTAINER_NAME", "istio-validation")], &[]).options.repair;
    assert_eq!(default, RepairOptions::default());
    assert_eq!(default.label.to_string(), "cni.istio.io/uninitialized=true");
    let failed = |container: &str, exit_code| Some(FailedInit { container: container.to_owned(), exit_code });
    let variables = [
        ("REPAIR_LABEL_PODS", "true"),
        ("REPAIR_BROKEN_POD_LABEL_KEY", "example.com/broken"),
        ("REPAIR_BROKEN_POD_LABEL_VALUE", "yes"),
        ("REPAIR_INIT_CONTAINER_EXIT_CODE", "126"),
        ("REPAIR_LABEL_SELECTORS", "app in (a, b)"),
        ("REPAIR_FIELD_SELECTORS", "metadata.namespace=shop"),
    ];
    let options = read(&variables, &[]).options.repair;
    assert_eq!(options.label.to_string(), "example.com/broken=yes");
    assert_eq!(options.failed_init, failed("istio-validation", 126));
    assert_eq!(options.label_selector, "app in (a, b)");
    assert_eq!(options.field_selector, "metadata.namespace=shop");
    let keys = [
        ("repair_label", "broken="),
        ("repair_exit_code", "0"),
        ("repair_init_container", "check"),
        ("repair_label_selector", "app=c"),
    ];
    let options = read(&variables, &keys).options.repair;
    assert_eq!((options.label.to_string(), options.label_selector), ("broken=".into(), "app=c".into()));
    assert_eq!(options.failed_init, failed("check", 0));
    for (key, value) in [
        ("repair_label", "broken"),
        ("repair_label", "=true"),
        ("repair_label", "a b=c"),
        ("repair_label", "a=-"),
        ("repair_exit_code", "256"),
        ("repair_exit_code", "x"),
        ("repair_label_selector", "a=b\nc=d"),
    ] {
        assert!(refused(&[], &[("repair", "label"), (key, value)]).contains(key), "{key}: {value}");
    }
    // In the mode `repair` a selector would have no effect, and pods that the operator excluded would be repaired.
    assert!(refused(&[("REPAIR_LABEL_SELECTORS", "app=a")], &[]).contains("another mode"));
    assert!(read(&[("REPAIR_LABEL_SELECTORS", "app=a"), ("REPAIR_ENABLED", "false")], &[]).notes.is_empty());
}

#[test]
fn the_defaults_without_any_setting() {
    let settings = read(&[], &[]);
    let (environment, options) = (settings.environment, settings.options);
    assert_eq!((options.mode, options.shape), (NodeMode::Install, ShapeSetting::Auto));
    assert_eq!((options.pod_source, options.take_over), (PodSource::Agent, TakeOverSetting::Wait));
    assert_eq!((options.put_back, options.unknown_members.len()), (PutBack::Nothing, 0));
    assert_eq!(options.conf.exclude_namespaces, names(&["kube-system", "istio-system"]));
    assert_eq!(environment.directories.results, Path::new("/host/var/lib/cni/results"));
    assert_eq!(options.conf.facts.socket.as_deref(), Some(Path::new("/run/gybe/facts.sock")));
    assert_eq!(
        (options.conf.facts.kubeconfig, environment.kubeconfig_mode, environment.conf_mode),
        (None, 0o600, 0o600)
    );
    assert_eq!(settings.notes, [""; 0]);
}

#[test]
fn kube_system_gybes_own_and_the_control_planes_namespace_are_excluded_by_default() {
    let of =
        |environment: Pairs<'_>, files: Pairs<'_>| read(environment, files).options.conf.exclude_namespaces;
    let own = ("POD_NAMESPACE", "gybe-system");
    assert_eq!(of(&[own], &[]), names(&["gybe-system", "kube-system", "istio-system"]));
    let control_plane = ("SYSTEM_NAMESPACE", "mesh");
    assert_eq!(of(&[own, control_plane], &[]), names(&["gybe-system", "kube-system", "mesh"]));
    assert_eq!(of(&[own, ("EXCLUDE_NAMESPACES", "a")], &[]), names(&["a"]));
    assert_eq!(of(&[own, ("EXCLUDE_NAMESPACES", "a")], &[("exclude_namespaces", "b\n")]), names(&["b"]));
    assert_eq!(of(&[own], &[("exclude_namespaces", "")]), names(&[]));
    let notes = read(&[("EXCLUDE_NAMESPACES", "a")], &[]).notes;
    assert!(notes[0].contains("istio-system"), "{notes:?}");
    assert!(read(&[], &[("exclude_namespaces", "istio-system")]).notes.is_empty());
}

#[test]
fn lists_are_trimmed_and_empty_elements_dropped() {
    for (text, expected) in [
        (" a , b ", &["a", "b"][..]),
        ("a,", &["a"]),
        (",a", &["a"]),
        ("a,,b", &["a", "b"]),
        (",,", &[]),
        ("  ", &[]),
    ] {
        let conf = read(&[("EXCLUDE_NAMESPACES", text)], &[]).options.conf;
        assert_eq!(conf.exclude_namespaces, names(expected), "{text:?}");
    }
    for text in ["A", "a b", "-a", "a-", "a.b", &"a".repeat(64)] {
        assert!(
            refused(&[("EXCLUDE_NAMESPACES", text)], &[]).contains("not valid namespace names"),
            "{text}"
        );
    }
}

#[test]
fn the_log_level_is_the_first_that_is_configured() {
    let level = |environment: Pairs<'_>, files: Pairs<'_>| read(environment, files).options.conf.log_level;
    let scopes = ("LOG_OUTPUT_LEVEL", "default:warn,cni-plugin:debug,cni:error");
    assert_eq!(level(&[scopes, ("LOG_LEVEL", "error")], &[("log_level", "none")]), LogLevel::None);
    assert_eq!(level(&[scopes, ("LOG_LEVEL", "error")], &[]), LogLevel::Error);
    assert_eq!(level(&[scopes], &[]), LogLevel::Debug);
    for (scopes, expected) in
        [("debug", LogLevel::Debug), ("cni:debug", LogLevel::Info), ("all:warn", LogLevel::Warn)]
    {
        assert_eq!(level(&[("LOG_OUTPUT_LEVEL", scopes)], &[]), expected, "{scopes}");
    }
    assert_eq!(level(&[("LOG_OUTPUT_LEVEL", "cni:info,default:fatal")], &[]), LogLevel::Error);
    assert!(
        refused(&[("LOG_LEVEL", "loud")], &[]).contains("LOG_LEVEL is \"loud\": must be one of info, debug")
    );
}

#[test]
fn the_backend_is_the_first_that_is_configured() {
    let backend = |environment: Pairs<'_>, files: Pairs<'_>| read(environment, files).options.conf.backend;
    let both = [("NATIVE_NFTABLES", "true"), ("FORCE_IPTABLES_BINARY", "legacy")];
    assert_eq!(backend(&both, &[("backend", "iptables")]), BackendSetting::Iptables);
    assert_eq!(backend(&both, &[]), BackendSetting::Only(BackendKind::Nft));
    assert_eq!(backend(&both[1..], &[]), BackendSetting::Only(BackendKind::IptablesLegacy));
    assert_eq!(
        backend(&[("FORCE_IPTABLES_BINARY", "nft")], &[]),
        BackendSetting::Only(BackendKind::IptablesNft)
    );
    assert_eq!(backend(&[("NATIVE_NFTABLES", "false")], &[]), BackendSetting::Auto);
    assert!(refused(&[("FORCE_IPTABLES_BINARY", "x")], &[]).contains("legacy or nft"));
}

#[test]
fn the_shape_and_its_file_go_together() {
    let shape = |environment: Pairs<'_>, files: Pairs<'_>| read(environment, files).options.shape;
    let file = |shape: &ShapeSetting| match shape.fixed() {
        Some(Shape::Chained { pinned }) => pinned.as_ref().map(ToString::to_string),
        Some(Shape::Standalone { file }) => Some(format!("alone {file}")),
        Some(Shape::DropIn) | None => None,
    };
    let chained = ShapeSetting::Fixed(Shape::Chained { pinned: None });
    let pinned = ("CNI_CONF_NAME", "10-a.conflist");
    let alone = ("CHAINED_CNI_PLUGIN", "false");
    assert_eq!(file(&shape(&[pinned], &[])).as_deref(), Some("10-a.conflist"));
    assert_eq!(file(&shape(&[alone], &[])).as_deref(), Some("alone YYY-gybe-cni.conf"));
    assert_eq!(file(&shape(&[alone], &[("conf_name", "x.conf")])).as_deref(), Some("alone x.conf"));
    assert_eq!(shape(&[alone], &[("shape", "chained")]), chained);
    assert_eq!(shape(&[alone], &[("shape", "dropin")]), Shape::DropIn.into());
    assert_eq!(shape(&[alone], &[("shape", "auto")]), ShapeSetting::Auto);
    for (mode, is_auto) in [("repair", true), ("off", true), ("delete", false), ("label", false)] {
        let expected = if is_auto { ShapeSetting::Auto } else { chained.clone() };
        assert_eq!(shape(&[], &[("repair", mode)]), expected, "{mode}");
        let named = read(&[], &[("repair", mode), ("shape", "auto")]);
        assert_eq!((named.options.shape, named.notes.is_empty()), (expected, is_auto), "{mode}");
        assert_eq!(shape(&[], &[("repair", mode), ("shape", "dropin")]), Shape::DropIn.into());
    }
    assert_eq!(file(&shape(&[pinned], &[("shape", "auto")])).as_deref(), Some("10-a.conflist"));
    assert_eq!(shape(&[("CHAINED_CNI_PLUGIN", "true")], &[]), ShapeSetting::Auto);
    assert!(refused(&[pinned], &[("shape", "dropin")]).contains("cannot be set with it"));
}

#[test]
fn file_modes_are_read_as_istio_cni_reads_them() {
    for (text, mode) in [("384", 0o600), ("0600", 0o600), ("0o640", 0o640), ("416", 0o640), ("0400", 0o400)] {
        assert_eq!(read(&[("KUBECONFIG_MODE", text)], &[]).environment.kubeconfig_mode, mode, "{text}");
    }
    for text in ["0644", "600", "rw", "-1", "0o777"] {
        assert!(refused(&[("KUBECONFIG_MODE", text)], &[]).contains("token"), "{text}");
    }
}

#[test]
fn listen_addresses_are_read_in_every_form_and_can_be_off() {
    let of = |environment: Pairs<'_>| -> Vec<String> {
        let health = read(environment, &[]).environment.health;
        health.map_or(Vec::new(), |listen| listen.addresses().map(|it: SocketAddr| it.to_string()).collect())
    };
    assert_eq!(of(&[]), ["[::]:8000", "0.0.0.0:8000"]);
    assert_eq!(of(&[("HEALTH_PORT", "81")]), ["[::]:81", "0.0.0.0:81"]);
    for (address, expected) in [("::1", "[::1]:8000"), ("[::1]", "[::1]:8000"), ("10.0.0.1", "10.0.0.1:8000")]
    {
        assert_eq!(of(&[("HEALTH_ADDRESS", address)]), [expected]);
    }
    assert_eq!(of(&[("HEALTH_ADDRESS", "127.0.0.1:9"), ("HEALTH_PORT", "8")]), ["127.0.0.1:9"]);
    assert_eq!(of(&[("HEALTH_ADDRESS", ":9")]), ["[::]:9", "0.0.0.0:9"]);
    assert_eq!(of(&[("HEALTH_PORT", "0")]), [""; 0]);
    assert!(refused(&[("HEALTH_ADDRESS", "localhost")], &[]).contains("IP address"));
    assert_eq!(read(&[("MONITORING_PORT", "-1")], &[]).environment.metrics, None);
}

#[test]
fn a_kubeconfig_needs_a_server() {
    let source = [("pod_source", "api")];
    assert!(refused(&[], &source).contains("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT"));
    let server = [("KUBERNETES_SERVICE_HOST", "fd00::1"), ("KUBERNETES_SERVICE_PORT", "443")];
    let settings = read(&server, &source);
    assert_eq!(settings.options.conf.facts.kubeconfig.as_deref(), Some(Path::new("/run/gybe/kubeconfig")));
    let ca = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
    assert_eq!(settings.environment.api.trust, ServerTrust::Ca(ca.into()));
    assert_eq!(read(&[("SKIP_TLS_VERIFY", "1")], &[]).environment.api.trust, ServerTrust::Any);
}

/// The mount point of the ConfigMap's volume.
struct Mount(TestDir);

impl Mount {
    fn new(test: &str) -> Self {
        Self(TestDir::new(&format!("configmap-{test}")))
    }

    fn environment(&self) -> BTreeMap<String, String> {
        [("GYBE_CONFIG_DIR".to_owned(), self.0.display().to_string())].into()
    }

    fn files(&self) -> BTreeMap<String, String> {
        SettingsSources::gather(self.environment()).unwrap().files
    }
}

fn pairs(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

#[test]
fn the_kubelets_newest_version_is_read_whole() {
    let mount = Mount::new("swap");
    write_volume(&mount.0, [("mode", "install"), ("log_level", "debug")]).unwrap();
    assert_eq!(mount.files(), pairs(&[("mode", "install"), ("log_level", "debug")]));
    write_volume(&mount.0, [("mode", "leave")]).unwrap();
    assert_eq!(mount.files(), pairs(&[("mode", "leave")]), "the link log_level is dangling");
}

#[test]
fn a_plain_directory_is_read_and_a_missing_one_counts_as_empty() {
    let mount = Mount::new("plain");
    fs::write(mount.0.join("mode"), "leave\n").unwrap();
    fs::write(mount.0.join(".swp"), "\u{0}").unwrap();
    fs::create_dir(mount.0.join("folder")).unwrap();
    assert_eq!(mount.files(), pairs(&[("mode", "leave\n")]));
    fs::remove_dir_all(&mount.0).unwrap();
    assert_eq!(mount.files(), pairs(&[]));
    assert_eq!(config_directory(&BTreeMap::new()), Path::new(CONFIG));
}

#[test]
fn a_file_that_is_too_large_or_not_text_is_refused() {
    let mount = Mount::new("large");
    fs::write(mount.0.join("mode"), vec![b' '; (1 << 20) + 1]).unwrap();
    let error = SettingsSources::gather(mount.environment()).unwrap_err().to_string();
    assert!(error.ends_with("/mode"), "{error}");
    fs::write(mount.0.join("mode"), [0xff]).unwrap();
    assert!(SettingsSources::gather(mount.environment()).is_err());
}

#[test]
fn the_file_that_cni_network_config_file_names_is_read() {
    let mount = Mount::new("file");
    let file = mount.0.join("entry.json");
    let mut environment = mount.environment();
    environment.insert("CNI_NETWORK_CONFIG_FILE".into(), file.display().to_string());
    assert!(SettingsSources::gather(environment.clone()).is_err(), "a missing file");
    fs::write(&file, "{}").unwrap();
    assert_eq!(SettingsSources::gather(environment).unwrap().network_config.as_deref(), Some("{}"));
}
