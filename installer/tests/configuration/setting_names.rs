//! Every setting of the incumbent is applied, ignored with a note, or refused with the name of its replacement; the
//! tables in docs/CONFIGURE.md are those of the code.

use crate::annotations::INVALID_VALUES;
use crate::{read, refused, sources};
use gybe_installer::host::image::OTHER_NAMES;
use gybe_installer::host::settings::{
    INCUMBENTS, KEYS, OURS, SettingName, Settings, SettingsSources, Support,
};
use gybe_plugin::names::{ANNOTATIONS, ValueForm};
use std::fs;

/// Returns a value other than the default.
fn non_default_value(name: &str) -> &'static str {
    match name {
        "CHAINED_CNI_PLUGIN"
        | "events"
        | "REPAIR_ENABLED"
        | "REPAIR_REPAIR_PODS"
        | "ambient_dns_capture"
        | "ambient_ipv6"
        | "AMBIENT_DNS_CAPTURE"
        | "AMBIENT_IPV6" => "false",
        "ambient_enablement_selectors" | "AMBIENT_ENABLEMENT_SELECTOR" => "[{ podSelector: {} }]",
        "ZTUNNEL_UDS_ADDRESS" => "/else/where",
        "HOST_PROBE_SNAT_IP" => "169.254.7.1",
        "HOST_PROBE_SNAT_IPV6" => "fd00::1",
        "LOG_LEVEL" | "LOG_OUTPUT_LEVEL" | "log_level" => "debug",
        "CNI_NETWORK_CONFIG" | "CNI_NETWORK_CONFIG_FILE" | "cni_network_config" => {
            r#"{"type":"istio-cni","log_level":"__LOG_LEVEL__","gates":"strict"}"#
        }
        "KUBECONFIG_MODE" => "0640",
        "CNI_CONF_GROUP_READ"
        | "SKIP_TLS_VERIFY"
        | "NATIVE_NFTABLES"
        | "REPAIR_DELETE_PODS"
        | "REPAIR_LABEL_PODS"
        | "put_back_istio"
        | "node_condition"
        | "AMBIENT_ENABLED"
        | "leave_when_daemonset_gone" => "true",
        "FORCE_IPTABLES_BINARY" => "legacy",
        "MONITORING_PORT" | "HEALTH_PORT" => "-1",
        "HEALTH_ADDRESS" | "MONITORING_ADDRESS" => "::1",
        "mode" => "leave",
        "node_taints" => "cni.istio.io/not-ready",
        "shape" => "dropin",
        "backend" => "iptables-nft",
        "gates" => "strict",
        "ipv6" => "reject",
        "inbound_default" => "containerPorts",
        "max_intervals" => "65536",
        "pod_source" => "api",
        "take_over" => "now",
        "plugin_dir" => "confirmed",
        "repair" => "off",
        "repair_label" => "broken=true",
        "repair_label_selector" | "REPAIR_LABEL_SELECTORS" => "app=cart",
        "repair_exit_code" | "REPAIR_INIT_CONTAINER_EXIT_CODE" => "1",
        "also_as" => "istio-iptables",
        name if name.contains("DIR") || name == "KUBE_CA_FILE" => "/else/where",
        _ => "another",
    }
}

/// The variables that the kubelet sets in every pod.
const POD: &[(&str, &str)] = &[("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("KUBERNETES_SERVICE_PORT", "443")];

/// The settings without which `name` has no effect.
fn without(name: &str) -> SettingsSources {
    let required: &[(&str, &str)] = match name {
        "repair_init_container" | "REPAIR_INIT_CONTAINER_NAME" => &[("repair_exit_code", "126")],
        name if is_of_ambient_mode(name) => &[],
        name if name.to_lowercase().contains("_selector") => &[("repair", "label")],
        _ => &[],
    };
    let ambient: &[_] = if is_of_ambient_mode(name) { &[("AMBIENT_ENABLED", "true")] } else { &[] };
    sources(&[POD, ambient].concat(), required)
}

/// Reports whether it has an effect only in ambient mode.
fn is_of_ambient_mode(name: &str) -> bool {
    KEYS.iter().chain(&INCUMBENTS).any(|known| known.name == name && known.support == Support::Ambient)
}

fn with(name: &str) -> SettingsSources {
    let mut sources = without(name);
    let value = non_default_value(name).to_owned();
    match name {
        "CNI_NETWORK_CONFIG_FILE" => sources.network_config = Some(value),
        key if key.chars().all(|c| c.is_lowercase() || c == '_' || c.is_numeric()) => {
            sources.files.insert(key.to_owned(), value);
        }
        variable => drop(sources.environment.insert(variable.to_owned(), value)),
    }
    sources
}

#[test]
fn every_supported_setting_has_an_effect() {
    let has_effect = |name: &&SettingName| matches!(name.support, Support::Honoured | Support::Ambient);
    for name in KEYS.iter().chain(&OURS).chain(&INCUMBENTS).filter(has_effect) {
        let plain = Settings::read(&without(name.name)).unwrap();
        let changed = Settings::read(&with(name.name)).unwrap_or_else(|why| panic!("{}: {why}", name.name));
        let same = (&changed.environment, &changed.options) == (&plain.environment, &plain.options);
        assert!(!same, "{} changes nothing", name.name);
    }
}

#[test]
fn every_other_setting_is_refused_or_noted_with_the_reason() {
    for name in INCUMBENTS {
        match name.support {
            Support::Honoured | Support::Ambient => {}
            Support::RefusedIfTrue => {
                let error = refused(&[(name.name, "true")], &[]);
                assert!(error.contains(name.name) && error.contains(name.meaning), "{error}");
            }
            Support::Ignored => {
                let notes = read(&[(name.name, "x")], &[]).notes;
                assert!(notes.len() == 1 && notes[0].contains(name.name), "{notes:?}");
                assert!(notes[0].contains(name.meaning), "{notes:?}");
            }
        }
        if name.support == Support::RefusedIfTrue {
            assert!(read(&[(name.name, "false")], &[]).notes.is_empty(), "{}", name.name);
            refused(&[(name.name, "perhaps")], &[]);
        }
        // The incumbent's chart sets many variables to the empty string.
        assert_eq!(read(&[(name.name, "")], &[]).notes.len(), usize::from(name.name == "EXCLUDE_NAMESPACES"));
    }
}

#[test]
fn all_invalid_settings_are_reported_at_once() {
    let environment = [
        ("SKIP_TLS_VERIFY", "perhaps"),
        ("ZTUNNEL_UDS_ADDRESS", "ztunnel.sock"),
        ("HOST_PROBE_SNAT_IP", "127.0.0.1"),
        ("AMBIENT_DISABLE_SAFE_UPGRADE", "true"),
        ("MONITORING_PORT", "http"),
        ("KUBECONFIG_MODE", "0666"),
        ("MOUNTED_CNI_NET_DIR", "etc"),
    ];
    let files = [
        ("mode", "gone"),
        ("ipv6", "maybe"),
        ("exclude_namespaces", "Kube System"),
        ("conf_name", "../x"),
        ("istio_cni_namespace", "a/b"),
        ("ambient_enablement_selectors", "podSelector"),
        ("ambient_ipv6", "maybe"),
    ];
    let with_ambient_mode = [&[("AMBIENT_ENABLED", "true")], &environment[..]].concat();
    let error = refused(&with_ambient_mode, &files);
    for (name, value) in environment.iter().chain(&files) {
        assert!(error.contains(&format!("{name} is {value:?}: ")), "{name}: {error}");
    }
    let faults = Settings::read(&sources(&with_ambient_mode, &files)).unwrap_err().0;
    assert_eq!(faults.len(), environment.len() + files.len(), "{error}");
}

#[test]
fn settings_of_ambient_mode_are_noted_and_not_parsed_while_it_is_off() {
    let default = read(&[], &[]);
    for name in KEYS.iter().chain(&INCUMBENTS).filter(|name| name.support == Support::Ambient) {
        let pair = [(name.name, "unusual")];
        let is_key = KEYS.iter().any(|key| key.name == name.name);
        for mode in [&[][..], &[("AMBIENT_ENABLED", "false")]] {
            let settings = if is_key { read(mode, &pair) } else { read(&[mode, &pair].concat(), &[]) };
            assert_eq!(settings.notes, [format!("{} has no effect: AMBIENT_ENABLED is not true", name.name)]);
            assert!((&settings.environment, &settings.options) == (&default.environment, &default.options));
        }
    }
}

#[test]
fn a_key_that_may_be_misspelt_is_refused_and_another_unknown_one_is_noted() {
    let error = refused(&[], &[("exclude_namespace", "a")]);
    assert!(
        error.contains("exclude_namespace is \"a\"") && error.contains("mean exclude_namespaces?"),
        "{error}"
    );
    let notes = read(&[], &[("quic_ports", "1")]).notes;
    assert!(notes[0].contains("unknown key quic_ports"), "{notes:?}");
}

#[test]
fn a_variable_that_may_be_misspelt_or_that_a_key_overrides_is_noted() {
    let notes = |variables: &[(&str, &str)], keys: &[(&str, &str)]| read(variables, keys).notes.join("; ");
    assert!(notes(&[("EXCLUDE_NAMESPACE", "a")], &[]).contains("did you mean EXCLUDE_NAMESPACES?"));
    for (variable, key, values) in [
        ("EXCLUDE_NAMESPACES", "exclude_namespaces", ["a", "b"]),
        ("LOG_LEVEL", "log_level", ["warn", "info"]),
        ("CNI_CONF_NAME", "conf_name", ["a.conflist", "b.conflist"]),
        ("REPAIR_DELETE_PODS", "repair", ["repair", "true"]),
    ] {
        let [of_key, other] = values;
        let overridden = format!("{variable} has no effect: {key} of the ConfigMap has precedence");
        assert_eq!(notes(&[(variable, other)], &[(key, of_key)]).matches(&overridden).count(), 1, "{key}");
        assert!(!notes(&[], &[(key, of_key)]).contains("no effect"), "{key}");
    }
}

#[test]
fn every_further_name_of_the_tool_is_documented() {
    let meaning = KEYS.iter().find(|key| key.name == "also_as").unwrap().meaning;
    let refused = refused(&[], &[("also_as", "istio-clean-iptables")]);
    for name in OTHER_NAMES {
        assert!(
            meaning.contains(&format!("`{name}`")) && refused.contains(name),
            "{name}: {meaning} {refused}"
        );
        assert_eq!(read(&[], &[("also_as", name)]).options.also_as.len(), 1);
    }
}

const PAGE: &str = "../docs/CONFIGURE.md";

/// Keeps the tables of names in the code and in docs/CONFIGURE.md equal; with GYBE_WRITE=1 writes the page.
#[test]
fn docs_configure_has_the_tables_of_the_code() {
    let mut page = fs::read_to_string(PAGE).unwrap();
    for rows in
        [&KEYS[..], &OURS, &INCUMBENTS].map(settings).into_iter().chain([annotations(), invalid_values()])
    {
        // The table begins with its first cell and ends with a line that is no row.
        let first = rows[0].split(" | ").next().unwrap();
        let start =
            page.find(&format!("\n{first} |")).unwrap_or_else(|| panic!("{PAGE} has no row {first}")) + 1;
        let table = page[start..].split_inclusive('\n').take_while(|line| line.starts_with('|'));
        let end = start + table.map(str::len).sum::<usize>();
        page.replace_range(start..end, &rows.concat());
    }
    if std::env::var_os("GYBE_WRITE").is_some() {
        fs::write(PAGE, &page).unwrap();
    }
    let written = fs::read_to_string(PAGE).unwrap();
    let differing = page.lines().zip(written.lines()).find(|(new, old)| new != old);
    assert!(page == written, "{PAGE} differs; with GYBE_WRITE=1 this test writes it: {differing:?}");
}

fn settings(names: &[SettingName]) -> Vec<String> {
    let rows = names.iter().map(|name| {
        let effect = match name.support {
            Support::Honoured | Support::Ambient => "",
            Support::RefusedIfTrue => "refused if true: ",
            Support::Ignored => "no effect: ",
        };
        format!("| `{}` | {} | {effect}{} |\n", name.name, name.default, name.meaning)
    });
    rows.collect()
}

fn annotations() -> Vec<String> {
    let rows = ANNOTATIONS.iter().map(|annotation| {
        let default = match annotation.default {
            None => "–".to_owned(),
            Some("") => "none".to_owned(),
            Some(value) => format!("`{value}`"),
        };
        let form = match annotation.form {
            ValueForm::Text => "any text",
            ValueForm::Boolean => "`true` or `false`",
            ValueForm::Mode => "`REDIRECT`, `TPROXY` or `NONE`",
            ValueForm::Ports => "ports",
            ValueForm::PortsOrAll => "`*`, or ports",
            ValueForm::Networks => "networks",
            ValueForm::NetworksOrAll => "`*`, or networks",
            ValueForm::Interfaces => "interfaces",
        };
        format!("| `{}` | {default} | {form} | {} |\n", annotation.name, annotation.meaning)
    });
    rows.collect()
}

fn invalid_values() -> Vec<String> {
    let rows = INVALID_VALUES.iter().map(|invalid| {
        format!("| {} | {} | {} |\n", invalid.form, invalid.text(), invalid.error().replace('|', "\\|"))
    });
    rows.collect()
}
