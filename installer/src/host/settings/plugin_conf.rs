//! What the plugin's entry says, out of the settings and the template below them: the plugin's own
//! reader judges every word, so what is written here is what it reads there.

use super::environment::Environment;
use super::exclusion;
use super::logging;
use super::reader::{RawSetting, SettingsReader, truth};
use super::template::Template;
use gybe_plugin::conf::PluginConf;
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// A ConfigMap's key, and the entry's key of the same meaning.
const WORDS: [(&str, &str); 3] =
    [("gates", "gates"), ("ipv6", "ipv6"), ("inbound_default", "inboundDefault")];

/// The whole of it, but for what each node finds out.
pub(super) fn read(
    reader: &mut SettingsReader<'_>,
    ground: &Environment,
    kubeconfig: Option<PathBuf>,
    template: Option<&Template>,
) -> PluginConf {
    let mut said: Vec<(&str, RawSetting<'_>)> =
        WORDS.into_iter().filter_map(|(key, ours)| Some((ours, reader.key(key)?))).collect();
    said.extend(logging::level(reader).map(|level| ("log_level", level)));
    said.extend(backend(reader).map(|backend| ("backend", backend)));
    let mut members = template.map(|it| it.members.clone()).unwrap_or_default();
    members.extend(said.iter().map(|(ours, said)| ((*ours).to_owned(), said.text.into())));
    if let Some(most) = reader.key("max_intervals") {
        // What is no number is told as what it is.
        let number = most.text.parse::<u32>().map_or(most.text.into(), Value::from);
        members.insert("max_intervals".into(), number);
        said.push(("max_intervals", most));
    }
    if template.is_none() {
        members.insert("pod_namespace".into(), ground.namespace.as_str().into());
        members.insert("facts".into(), json!({ "socket": ground.facts_socket() }));
    }
    let mut conf = typed(reader, &members, &said);
    let excluded = exclusion::said(reader, ground);
    let by = excluded.as_ref().map(|(said, _)| ("exclude_namespaces", *said));
    match (excluded, template) {
        (Some((_, names)), _) => conf.exclude_namespaces = names,
        (None, Some(template)) if template.has("exclude_namespaces") => {
            exclusion::note(reader, ground, template.name, &conf.exclude_namespaces);
        }
        (None, _) => conf.exclude_namespaces = exclusion::usual(ground),
    }
    match template {
        Some(template) => {
            let all = said.into_iter().chain(by);
            reader.notes.extend(all.filter_map(|(key, said)| template.overruled(key, said.name, &conf)));
            reader.notes.extend(template.settle(ground, kubeconfig, &mut conf));
        }
        None => conf.facts.kubeconfig = kubeconfig,
    }
    conf
}

/// As the plugin reads them; a fault is the setting's that said so.
fn typed(
    reader: &mut SettingsReader<'_>,
    members: &Map<String, Value>,
    said: &[(&str, RawSetting<'_>)],
) -> PluginConf {
    PluginConf::read(members).unwrap_or_else(|refused| {
        for wrong in refused.0 {
            match said.iter().find(|(ours, _)| *ours == wrong.key) {
                Some((_, said)) => reader.refuse(*said, format!("must be {}", wrong.expected)),
                None => reader
                    .refuse(RawSetting { name: "CNI_AGENT_RUN_DIR", text: &wrong.value }, wrong.expected),
            }
        }
        PluginConf::default()
    })
}

/// The ConfigMap's word, or what the incumbent's two variables come to. There, nft goes first.
fn backend<'a>(reader: &mut SettingsReader<'a>) -> Option<RawSetting<'a>> {
    let said = reader.key("backend");
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
        .filter(|said| is_nft && truth(said.text).is_some())
        .map(|said| RawSetting { text: "nft", ..said });
    said.or(native).or(forced)
}
