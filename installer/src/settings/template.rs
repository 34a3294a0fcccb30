//! The entry in its older form, `CNI_NETWORK_CONFIG`: a template, filled in and taken letter by letter.

use super::PLUGIN;
use super::ground::Ground;
use super::reader::{Reader, Said};
use crate::install::entry::Entry;
use crate::install::network_config::{Facts, entry};
use crate::layers::chain;
use gybe_plugin::conf::PluginConf;
use serde_json::Value;

/// The template, if anybody gave one: filled in, and such that the plugin can read it.
pub(super) fn read(reader: &mut Reader<'_>, ground: &Ground, conf: &PluginConf) -> Option<Entry> {
    let file = reader.given.network_config.as_deref().map(str::trim).filter(|text| !text.is_empty());
    let file = file.map(|text| Said { name: "CNI_NETWORK_CONFIG_FILE", text });
    let said = reader.either("cni_network_config", "CNI_NETWORK_CONFIG").or(file)?;
    let made = entry(said.text, &facts(ground, conf), PLUGIN);
    let made = made.map_err(|why| chain(&why)).and_then(|entry| readable(&entry).map(|()| entry));
    made.map_err(|why| reader.refuse(said, why)).ok()
}

fn facts(ground: &Ground, conf: &PluginConf) -> Facts {
    let level = conf.to_members().get("log_level").and_then(Value::as_str).unwrap_or_default().to_owned();
    let path = ground.kubeconfig();
    Facts {
        kubeconfig_path: path.display().to_string(),
        kubeconfig_name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        service_host: ground.api.host.clone(),
        service_port: ground.api.port.clone(),
        node_name: ground.node.clone(),
        log_level: level,
    }
}

fn readable(entry: &Entry) -> Result<(), String> {
    let value = serde_json::from_slice::<Value>(&entry.print(&crate::install::entry::Layout::OneLine));
    let members = value.ok().and_then(|value| value.as_object().cloned()).unwrap_or_default();
    PluginConf::read(&members).map(|_| ()).map_err(|why| why.to_string())
}
