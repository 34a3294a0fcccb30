//! The entry's keys, from the settings and the template. The plugin's own parser validates every value, so the
//! plugin reads what is written here.

use super::environment::Environment;
use super::reader::{RawSetting, SettingsReader, list};
use super::template::Template;
use gybe_netfilter::model::policy::Families;
use gybe_netfilter::model::policy::ambient::AmbientDns;
use gybe_plugin::args::Namespace;
use gybe_plugin::conf::{AmbientConf, PluginConf};
use gybe_plugin::pod::parse_bool;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// A ConfigMap's key and the entry's key of the same meaning.
const WORDS: [(&str, &str); 3] =
    [("gates", "gates"), ("ipv6", "ipv6"), ("inbound_default", "inboundDefault")];

/// Returns the plugin's configuration, except for the values that differ from node to node.
pub(super) fn read(
    reader: &mut SettingsReader<'_>,
    environment: &Environment,
    level: Option<RawSetting<'_>>,
    kubeconfig: Option<PathBuf>,
    template: Option<&Template>,
) -> PluginConf {
    let mut setting: Vec<(&str, RawSetting<'_>)> =
        WORDS.into_iter().filter_map(|(key, ours)| Some((ours, reader.key(key)?))).collect();
    setting.extend(level.map(|level| ("log_level", level)));
    setting.extend(backend(reader).map(|backend| ("backend", backend)));
    let mut members = template.map(|it| it.members.clone()).unwrap_or_default();
    members.extend(setting.iter().map(|(ours, setting)| ((*ours).to_owned(), setting.text.into())));
    if let Some(most) = reader.key("max_intervals") {
        // A value that is not a number is passed on as text, so that the error quotes it.
        let number = most.text.parse::<u32>().map_or(most.text.into(), Value::from);
        members.insert("max_intervals".into(), number);
        setting.push(("max_intervals", most));
    }
    if template.is_none() {
        members.insert("pod_namespace".into(), environment.namespace.as_str().into());
        members.insert("facts".into(), json!({ "socket": environment.facts_socket() }));
    }
    let mut conf = typed(reader, &members, &setting);
    conf.ambient = ambient(reader, environment);
    let excluded = excluded_setting(reader, environment);
    let by = excluded.as_ref().map(|(setting, _)| ("exclude_namespaces", *setting));
    match (excluded, template) {
        (Some((_, names)), _) => conf.exclude_namespaces = names,
        (None, Some(template)) if template.has("exclude_namespaces") => {
            note_on_excluded(reader, environment, template.name, &conf.exclude_namespaces);
        }
        (None, _) => conf.exclude_namespaces = usually_excluded(environment),
    }
    match template {
        Some(template) => {
            let all = setting.into_iter().chain(by);
            reader
                .notes
                .extend(all.filter_map(|(key, setting)| template.note_of_override(key, setting.name, &conf)));
            reader.notes.extend(template.replace_with_agents_values(environment, kubeconfig, &mut conf));
        }
        None => conf.facts.kubeconfig = kubeconfig,
    }
    conf
}

/// How ambient pods are redirected; none where ambient mode is off, whatever a template has.
fn ambient(reader: &mut SettingsReader<'_>, environment: &Environment) -> Option<AmbientConf> {
    let probes = environment.ambient.as_ref()?.probes;
    let dns = reader.yes_or_no(reader.either("ambient_dns_capture", "AMBIENT_DNS_CAPTURE"));
    let ipv6 = reader.yes_or_no(reader.either("ambient_ipv6", "AMBIENT_IPV6"));
    let dns = if dns == Some(false) { AmbientDns::Off } else { AmbientDns::Captured };
    let families = if ipv6 == Some(false) { Families::V4Only } else { Families::V4AndV6 };
    Some(AmbientConf { dns, families, probes })
}

/// Parses the keys as the plugin does; an invalid value is reported for the setting that it came from.
fn typed(
    reader: &mut SettingsReader<'_>,
    members: &Map<String, Value>,
    setting: &[(&str, RawSetting<'_>)],
) -> PluginConf {
    PluginConf::read(members).unwrap_or_else(|refused| {
        for wrong in refused.0 {
            match setting.iter().find(|(ours, _)| *ours == wrong.key) {
                Some((_, setting)) => reader.refuse(*setting, format!("must be {}", wrong.expected)),
                None => reader
                    .refuse(RawSetting { name: "CNI_AGENT_RUN_DIR", text: &wrong.value }, wrong.expected),
            }
        }
        PluginConf::default()
    })
}

/// The ConfigMap's backend, or the one that the incumbent's two variables mean. As in the incumbent, nft takes
/// precedence.
fn backend<'a>(reader: &mut SettingsReader<'a>) -> Option<RawSetting<'a>> {
    let setting = reader.key("backend");
    let nft = reader.variable("NATIVE_NFTABLES");
    let is_nft = reader.yes(nft);
    let forced = reader.variable("FORCE_IPTABLES_BINARY");
    let forced = forced.and_then(|forced| match forced.text {
        "legacy" => Some(RawSetting { text: "iptables-legacy", ..forced }),
        "nft" => Some(RawSetting { text: "iptables-nft", ..forced }),
        _ => {
            reader.refuse(forced, "must be legacy or nft");
            None
        }
    });
    let native = nft
        .filter(|setting| is_nft && parse_bool(setting.text).is_some())
        .map(|setting| RawSetting { text: "nft", ..setting });
    setting.or(native).or(forced)
}

/// The plugin's level. `LOG_OUTPUT_LEVEL` is Istio's: levels of scopes, and the plugin's scope is `cni-plugin`
/// (docs/ISTIO.md, section 5).
pub(super) fn log_level<'a>(reader: &mut SettingsReader<'a>) -> Option<RawSetting<'a>> {
    let setting = reader.either("log_level", "LOG_LEVEL");
    let scoped = reader.variable("LOG_OUTPUT_LEVEL").and_then(scoped);
    // `fatal` is Istio's highest level, for messages that end the process. Gybe has none.
    let fatal = |setting: RawSetting<'a>| {
        if setting.text == "fatal" { RawSetting { text: "error", ..setting } } else { setting }
    };
    setting.or(scoped.map(fatal))
}

/// Parses `default:info,cni-plugin:debug`, or `info` alone.
fn scoped(setting: RawSetting<'_>) -> Option<RawSetting<'_>> {
    let level = |scope: &str| {
        setting.text.split(',').map(str::trim).rev().find_map(|pair| match pair.split_once(':') {
            Some((of, level)) if of == scope => Some(level),
            None if scope == "default" => Some(pair),
            _ => None,
        })
    };
    let text = ["cni-plugin", "all", "default"].into_iter().find_map(level)?;
    Some(RawSetting { text, ..setting })
}

/// The default: the cluster's own namespace, ours, and the control plane's, which the mesh needs to start.
fn usually_excluded(environment: &Environment) -> BTreeSet<String> {
    let own = [environment.namespace.as_str(), "kube-system", &environment.control_plane];
    own.into_iter().filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The configured list, if any; an empty list is a value too.
fn excluded_setting<'a>(
    reader: &mut SettingsReader<'a>,
    environment: &Environment,
) -> Option<(RawSetting<'a>, BTreeSet<String>)> {
    let by_key = reader.sources.files.get("exclude_namespaces").map(|text| ("exclude_namespaces", text));
    let by_variable =
        || reader.sources.environment.get("EXCLUDE_NAMESPACES").map(|text| ("EXCLUDE_NAMESPACES", text));
    let (name, text) = by_key.or_else(by_variable)?;
    let setting = RawSetting { name, text };
    let strange: Vec<_> = list(text).filter(|name| Namespace::parse(name).is_err()).collect();
    if !strange.is_empty() {
        reader.refuse(setting, format!("not valid namespace names: {}", strange.join(", ")));
    }
    let named: BTreeSet<String> = list(text).map(str::to_owned).collect();
    note_on_excluded(reader, environment, name, &named);
    Some((setting, named))
}

/// Adds a note if a list does not contain the control plane's namespace.
fn note_on_excluded(
    reader: &mut SettingsReader<'_>,
    environment: &Environment,
    name: &str,
    named: &BTreeSet<String>,
) {
    if !named.contains(&environment.control_plane) {
        reader.notes.push(format!(
            "{name} does not contain {:?}, the namespace of istiod: if istiod's own pods are in the mesh, they cannot start without istiod",
            environment.control_plane
        ));
    }
}
