//! Tables of configurations.

use super::*;
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::model::policy::Families;
use gybe_netfilter::model::policy::ambient::{AmbientDns, ProbeAddresses};
use serde_json::json;

fn read(entry: &Value) -> Result<PluginConf, ConfError> {
    PluginConf::read(entry.as_object().unwrap())
}

#[test]
fn an_entry_without_keys_has_the_defaults() {
    for entry in [
        json!({ "cniVersion": "1.1.0", "name": "n", "type": "gybe-cni" }),
        json!({ "log_level": null, "backend": null, "exclude_namespaces": null, "facts": null, "ipv6": null }),
        json!({ "log_level": "", "pod_namespace": "", "facts": { "socket": null, "directory": "" } }),
    ] {
        let conf = read(&entry).unwrap();
        assert_eq!((conf.log_level, conf.backend), (LogLevel::Info, BackendSetting::Auto), "{entry}");
        assert_eq!((conf.gates, conf.inbound_default), (Gates::Istio, InboundDefault::All), "{entry}");
        assert_eq!((conf.ipv6, conf.facts), (Ipv6Setting::Auto, FactsConf::default()), "{entry}");
    }
}

#[test]
fn every_key_is_read() {
    let conf = read(&json!({
        "log_level": "debug", "backend": "iptables-legacy", "exclude_namespaces": ["b", "a", "a"],
        "pod_namespace": "gybe-system", "gates": "strict", "inboundDefault": "containerPorts", "ipv6": "reject",
        "facts": { "socket": "/run/s", "directory": "/d", "kubeconfig": "/k", "deadline_ms": 150 },
        "probed": { "backend": "iptables-legacy", "kernel": "5.4.0" }, "max_intervals": 65_536,
    }))
    .unwrap();
    let expected = PluginConf {
        log_level: LogLevel::Debug,
        backend: BackendSetting::Only(BackendKind::IptablesLegacy),
        probed: ProbeHint { backend: Some(BackendKind::IptablesLegacy), kernel: "5.4.0".to_owned() },
        exclude_namespaces: ["a", "b"].map(str::to_owned).into(),
        pod_namespace: "gybe-system".to_owned(),
        gates: Gates::Strict,
        inbound_default: InboundDefault::ContainerPorts,
        ipv6: Ipv6Setting::Reject,
        max_intervals: MaxIntervals(65_536),
        facts: FactsConf {
            socket: Some("/run/s".into()),
            directory: Some("/d".into()),
            kubeconfig: Some("/k".into()),
            deadline: Duration::from_millis(150),
        },
        ambient: None,
    };
    assert_eq!(conf, expected);
}

#[test]
fn the_keys_of_ambient_mode_are_read_and_without_them_it_is_off() {
    let all = json!({ "ambient": {
        "dns_capture": false, "ipv6": false, "probe_ipv4": "192.0.2.1", "probe_ipv6": "2001:db8::1",
    } });
    let conf = read(&all).unwrap();
    let probes = ProbeAddresses::default().with_v4([192, 0, 2, 1].into()).unwrap();
    let probes = probes.with_v6("2001:db8::1".parse().unwrap()).unwrap();
    let expected = AmbientConf { dns: AmbientDns::Off, families: Families::V4Only, probes };
    assert_eq!(conf.ambient, Some(expected));
    assert_eq!(read(&Value::Object(conf.to_members())).unwrap(), conf);
    assert_eq!(conf.deciding_differences(&PluginConf::default()), ["ambient"]);
    assert_eq!(read(&json!({ "ambient": {} })).unwrap().ambient, Some(AmbientConf::default()));
    assert_eq!(read(&json!({ "ambient": null })).unwrap().ambient, None);
    assert!(!PluginConf::default().to_members().contains_key("ambient"));
    for (ambient, wrong) in [
        (json!(true), "ambient is true, which must be an object"),
        (json!({ "ipv6": 1 }), "ambient.ipv6 is 1, which must be true or false"),
        (json!({ "probe_ipv4": "127.0.0.1" }), "ambient.probe_ipv4 is \"127.0.0.1\""),
        (json!({ "probe_ipv6": "10.0.0.1" }), "ambient.probe_ipv6 is \"10.0.0.1\""),
    ] {
        let error = read(&json!({ "ambient": ambient })).unwrap_err().to_string();
        assert!(error.contains(wrong), "{error}");
    }
}

#[test]
fn every_key_but_the_log_level_and_the_probed_backend_decides_about_pods() {
    let all = json!({
        "log_level": "debug", "backend": "iptables-legacy", "exclude_namespaces": ["a"],
        "pod_namespace": "gybe-system", "gates": "strict", "inboundDefault": "containerPorts", "ipv6": "reject",
        "facts": { "socket": "/run/s", "directory": "/d", "kubeconfig": "/k", "deadline_ms": 150 },
        "probed": { "backend": "iptables-legacy", "kernel": "5.4.0" }, "max_intervals": 9,
    });
    let with = |key: &str, value: &Value| {
        let members = json!({ key: value });
        read(&members).unwrap()
    };
    let default = read(&json!({})).unwrap();
    for (key, value) in all.as_object().unwrap() {
        let decides: Vec<&str> = match key.as_str() {
            "log_level" | "probed" => Vec::new(),
            "facts" => vec!["facts.socket", "facts.directory", "facts.kubeconfig", "facts.deadline_ms"],
            key => vec![key],
        };
        let other = with(key, value);
        assert_ne!(other, default, "{key}");
        assert_eq!(other.deciding_differences(&default), decides, "{key}");
        assert_eq!(default.deciding_differences(&other), decides, "{key}");
        assert!(other.deciding_differences(&other).is_empty(), "{key}");
    }
}

#[test]
fn a_wrong_value_is_an_error_that_names_key_and_value() {
    for (entry, key, value) in [
        (json!({ "backend": "nftt" }), "backend", "\"nftt\""),
        (json!({ "max_intervals": 0 }), "max_intervals", "0"),
        (json!({ "max_intervals": 65_537 }), "max_intervals", "65537"),
        (json!({ "max_intervals": "9" }), "max_intervals", "\"9\""),
        (json!({ "backend": 1 }), "backend", "1"),
        (json!({ "backend": "" }), "backend", "\"\""),
        (json!({ "log_level": "loud" }), "log_level", "\"loud\""),
        (json!({ "gates": "Istio" }), "gates", "\"Istio\""),
        (json!({ "inboundDefault": ["all"] }), "inboundDefault", "[\"all\"]"),
        (json!({ "ipv6": true }), "ipv6", "true"),
        (json!({ "exclude_namespaces": "kube-system" }), "exclude_namespaces", "\"kube-system\""),
        (json!({ "exclude_namespaces": ["a", 1] }), "exclude_namespaces", "[\"a\",1]"),
        (json!({ "pod_namespace": {} }), "pod_namespace", "{}"),
        (json!({ "facts": [] }), "facts", "[]"),
        (json!({ "facts": { "directory": "pods" } }), "facts.directory", "\"pods\""),
        (json!({ "facts": { "socket": 7 } }), "facts.socket", "7"),
        (json!({ "facts": { "deadline_ms": 0 } }), "facts.deadline_ms", "0"),
        (json!({ "facts": { "deadline_ms": "2s" } }), "facts.deadline_ms", "\"2s\""),
        (json!({ "facts": { "deadline_ms": -1 } }), "facts.deadline_ms", "-1"),
    ] {
        let error = read(&entry).unwrap_err().to_string();
        assert!(error.contains(&format!("{key} is {value}")), "{entry}: {error}");
    }
}

#[test]
fn all_wrong_values_are_named_and_truncated() {
    let error =
        read(&json!({ "backend": "x".repeat(5000), "ipv6": 4, "facts": { "socket": "s" } })).unwrap_err();
    let keys: Vec<_> = error.0.iter().map(|wrong| wrong.key.as_str()).collect();
    assert_eq!(keys, ["backend", "ipv6", "facts.socket"]);
    assert!(error.to_string().len() < 500);
}

/// Otherwise `"Backend": "nosuch"` would be neither read nor reported.
#[test]
fn a_key_of_the_plugin_in_another_case_is_unknown() {
    let entry = json!({ "Backend": "nosuch", "IPV6": "reject", "CNIVERSION": "1.1.0" });
    assert_eq!(unknown_keys(entry.as_object().unwrap()), ["Backend", "IPV6"]);
}

#[test]
fn an_unknown_key_is_reported_and_not_an_error() {
    let entry =
        json!({ "name": "n", "Type": "t", "log_levle": "debug", "facts": { "sockte": 1 }, "x": null });
    assert_eq!(unknown_keys(entry.as_object().unwrap()), ["log_levle", "x", "facts.sockte"]);
    assert!(read(&entry).is_ok());
}

#[test]
fn the_agents_socket_is_the_default_source() {
    let older = json!({ "kubeconfig": "/k" });
    for (facts, kubernetes, socket) in [
        (json!({}), json!({}), Some(SOCKET)),
        (json!({ "kubeconfig": "/k" }), json!({}), Some(SOCKET)),
        (json!({ "kubeconfig": "/k", "directory": "/d" }), json!({}), Some(SOCKET)),
        (json!({ "directory": "/d" }), older.clone(), Some(SOCKET)),
        (json!({ "directory": "/d", "kubeconfig": "" }), older, None),
        (json!({ "directory": "/d" }), json!({}), None),
        (json!({ "directory": "/d", "socket": "/s" }), json!({}), Some("/s")),
        (json!({ "socket": "" }), json!({}), None),
    ] {
        let entry = json!({ "facts": facts, "kubernetes": kubernetes });
        let (facts_socket, socket) = (read(&entry).unwrap().facts.socket, socket.map(PathBuf::from));
        let log_socket = socket.as_ref().map(|socket| socket.with_file_name("log.sock"));
        assert_eq!((facts_socket, logging(entry.as_object().unwrap()).1), (socket, log_socket), "{entry}");
    }
}

#[test]
fn istio_cnis_entries_are_read_once_their_type_is_changed() {
    let older = json!({
        "type": "gybe-cni", "log_level": "warn",
        "kubernetes": { "kubeconfig": "/etc/cni/net.d/kc", "cni_bin_dir": "/opt/cni/bin", "exclude_namespaces": ["a"] },
    });
    let newer = json!({
        "type": "gybe-cni", "plugin_log_level": "warn", "cni_agent_run_dir": "/var/run/istio-cni",
        "ambient_enabled": false, "enablement_selectors": [{ "podSelector": {} }], "exclude_namespaces": ["a"],
        "pod_namespace": "istio-system", "native_nftables": true, "enable_ambient_detection_retry": true,
        "ipam": {}, "dns": {},
    });
    let facts = FactsConf { kubeconfig: Some("/etc/cni/net.d/kc".into()), ..FactsConf::default() };
    let one = PluginConf {
        log_level: LogLevel::Warn,
        exclude_namespaces: ["a".to_owned()].into(),
        ..PluginConf::default()
    };
    let two = PluginConf {
        pod_namespace: "istio-system".to_owned(),
        backend: BackendSetting::Only(BackendKind::Nft),
        ..one.clone()
    };
    for (entry, expected) in [(older, PluginConf { facts, ..one }), (newer, two)] {
        assert_eq!(read(&entry), Ok(expected), "{entry}");
        assert_eq!(unknown_keys(entry.as_object().unwrap()), [""; 0]);
    }
}

#[test]
fn the_plugins_keys_override_istio_cnis() {
    let conf = read(&json!({
        "log_level": "debug", "plugin_log_level": "error", "backend": "iptables", "native_nftables": true,
        "exclude_namespaces": [], "facts": { "kubeconfig": "/ours" },
        "kubernetes": { "kubeconfig": "/theirs", "exclude_namespaces": ["a"] },
    }))
    .unwrap();
    assert_eq!((conf.log_level, conf.backend), (LogLevel::Debug, BackendSetting::Iptables));
    assert_eq!((conf.exclude_namespaces.len(), conf.facts.kubeconfig), (0, Some("/ours".into())));
}

#[test]
fn a_placeholder_that_the_installer_did_not_replace_is_an_error() {
    for (entry, key) in [
        (json!({ "kubernetes": { "kubeconfig": "__KUBECONFIG_FILEPATH__" } }), "kubernetes.kubeconfig"),
        (json!({ "facts": { "kubeconfig": "__X__" } }), "facts.kubeconfig"),
        (json!({ "log_level": "__LOG_LEVEL__" }), "log_level"),
        (json!({ "pod_namespace": "__POD_NAMESPACE__" }), "pod_namespace"),
        (json!({ "exclude_namespaces": ["a", "__B__"] }), "exclude_namespaces"),
    ] {
        let error = read(&entry).unwrap_err().to_string();
        assert!(
            error.contains(key) && error.contains("installer did not replace its placeholder"),
            "{entry}: {error}"
        );
    }
    assert!(read(&json!({ "pod_namespace": "__a__" })).is_ok());
}

#[test]
fn the_key_of_istio_cnis_ambient_mode_is_refused_with_the_reason() {
    let error = read(&json!({ "ambient_enabled": true })).unwrap_err().to_string();
    assert!(
        error.contains("ambient_enabled is true") && error.contains("the node agent writes the key ambient"),
        "{error}"
    );
    assert!(read(&json!({ "enablement_selectors": {} })).is_err());
}

#[test]
fn a_configuration_is_read_as_it_was_written() {
    let all = read(&json!({
        "log_level": "none", "backend": "iptables-nft", "exclude_namespaces": ["b", "a\"\\"],
        "pod_namespace": "gybe-system", "gates": "strict", "inboundDefault": "containerPorts", "ipv6": "leave",
        "probed": { "backend": "nft", "kernel": "6.18.1" }, "max_intervals": 1,
        "facts": { "socket": "/run/s", "directory": "/d", "kubeconfig": "/k", "deadline_ms": 1 },
    }))
    .unwrap();
    let no_source = FactsConf { socket: None, ..FactsConf::default() };
    let alone = FactsConf { socket: None, directory: Some("/d".into()), ..FactsConf::default() };
    let with = |facts| PluginConf { facts, ..PluginConf::default() };
    for conf in [PluginConf::default(), all, with(no_source), with(alone)] {
        let members = conf.to_members();
        assert_eq!(PluginConf::read(&members), Ok(conf));
        assert_eq!(unknown_keys(&members), [""; 0]);
    }
    for (names, key) in
        [(LOG_LEVELS.map(|(name, _)| name).to_vec(), "log_level"), (IPV6.map(|it| it.0).to_vec(), "ipv6")]
    {
        for name in names.into_iter().filter(|name| !name.is_empty()) {
            assert_eq!(read(&json!({ key: name })).unwrap().to_members()[key], name);
        }
    }
}

/// A newer release has keys that this one does not know, and an older one lacks some.
#[test]
fn f30_entries_of_other_versions_are_read() {
    let ahead =
        json!({ "log_level": "warn", "facts": { "socket": "/s", "quic": { "port": 1 } }, "zones": [1] });
    let conf = read(&ahead).unwrap();
    assert_eq!((conf.log_level, conf.facts.socket), (LogLevel::Warn, Some("/s".into())));
    assert_eq!(unknown_keys(ahead.as_object().unwrap()), ["zones", "facts.quic"]);
    let behind = json!({ "log_level": "warn" });
    let expected = PluginConf { log_level: LogLevel::Warn, ..PluginConf::default() };
    assert_eq!(read(&behind), Ok(expected));
}

#[test]
fn f30_an_unknown_backend_and_one_of_another_kernel_are_no_probe_hint() {
    let probed =
        |backend: &str| read(&json!({ "probed": { "backend": backend, "kernel": "6.1.0" } })).unwrap().probed;
    assert_eq!(probed("nft").on("6.1.0"), Some(BackendKind::Nft));
    assert_eq!(probed("nft").on("6.1.1"), None);
    assert_eq!(probed("ebpf").on("6.1.0"), None);
    assert_eq!(ProbeHint::default().on(""), None);
}
