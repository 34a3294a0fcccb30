//! What may stand in the plugin's entry, as tables.

use super::*;
use serde_json::json;

fn read(entry: &Value) -> Result<PluginConf, ConfError> {
    PluginConf::read(entry.as_object().unwrap())
}

#[test]
fn an_entry_without_our_keys_has_every_default() {
    for entry in [
        json!({ "cniVersion": "1.1.0", "name": "n", "type": "gybe-cni" }),
        json!({ "log_level": null, "backend": null, "exclude_namespaces": null, "facts": null, "ipv6": null }),
        json!({ "log_level": "", "pod_namespace": "", "facts": { "socket": "", "directory": "" } }),
    ] {
        let conf = read(&entry).unwrap();
        assert_eq!((conf.log_level, conf.backend), (LogLevel::Info, BackendChoice::Auto), "{entry}");
        assert_eq!((conf.gates, conf.inbound_default), (Gates::Istio, InboundDefault::All), "{entry}");
        assert_eq!((conf.ipv6, conf.facts), (Ipv6Choice::Auto, FactsConf::default()), "{entry}");
    }
}

#[test]
fn every_key_is_read() {
    let conf = read(&json!({
        "log_level": "debug", "backend": "iptables-legacy", "exclude_namespaces": ["b", "a", "a"],
        "pod_namespace": "gybe-system", "gates": "strict", "inboundDefault": "containerPorts", "ipv6": "reject",
        "facts": { "socket": "/run/s", "directory": "/d", "kubeconfig": "/k", "deadline_ms": 150 },
    }))
    .unwrap();
    let want = PluginConf {
        log_level: LogLevel::Debug,
        backend: BackendChoice::IptablesLegacy,
        exclude_namespaces: ["a", "b"].map(str::to_owned).into(),
        pod_namespace: "gybe-system".to_owned(),
        gates: Gates::Strict,
        inbound_default: InboundDefault::ContainerPorts,
        ipv6: Ipv6Choice::Reject,
        facts: FactsConf {
            socket: Some("/run/s".into()),
            directory: Some("/d".into()),
            kubeconfig: Some("/k".into()),
            deadline: Duration::from_millis(150),
        },
    };
    assert_eq!(conf, want);
}

#[test]
fn a_wrong_value_is_an_error_that_names_key_and_value() {
    for (entry, key, value) in [
        (json!({ "backend": "nftt" }), "backend", "\"nftt\""),
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
        let fault = read(&entry).unwrap_err().to_string();
        assert!(fault.contains(&format!("{key} is {value}")), "{entry}: {fault}");
    }
}

#[test]
fn all_wrong_values_are_named_at_once_and_cut_short() {
    let fault =
        read(&json!({ "backend": "x".repeat(5000), "ipv6": 4, "facts": { "socket": "s" } })).unwrap_err();
    let keys: Vec<_> = fault.0.iter().map(|wrong| wrong.key.as_str()).collect();
    assert_eq!(keys, ["backend", "ipv6", "facts.socket"]);
    assert!(fault.to_string().len() < 500);
}

/// Otherwise `"Backend": "nosuch"` would be neither read nor told of.
#[test]
fn a_key_of_ours_in_another_case_is_a_key_nobody_knows() {
    let entry = json!({ "Backend": "nosuch", "IPV6": "reject", "CNIVERSION": "1.1.0" });
    assert_eq!(unknown_keys(entry.as_object().unwrap()), ["Backend", "IPV6"]);
}

#[test]
fn a_key_nobody_knows_is_told_but_harmless() {
    let entry =
        json!({ "name": "n", "Type": "t", "log_levle": "debug", "facts": { "sockte": 1 }, "x": null });
    assert_eq!(unknown_keys(entry.as_object().unwrap()), ["log_levle", "x", "facts.sockte"]);
    assert!(read(&entry).is_ok());
}
