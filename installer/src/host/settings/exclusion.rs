//! The namespaces that are excluded from redirection.

use super::environment::Environment;
use super::reader::{RawSetting, SettingsReader, list};
use gybe_plugin::args::Namespace;
use std::collections::BTreeSet;

/// The default: the cluster's own namespace, ours, and the control plane's, which the mesh needs to start.
pub(super) fn usual(environment: &Environment) -> BTreeSet<String> {
    let own = [environment.namespace.as_str(), "kube-system", &environment.control_plane];
    own.into_iter().filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The configured list, if any; an empty list is a value too.
pub(super) fn setting<'a>(
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
    note(reader, environment, name, &named);
    Some((setting, named))
}

/// Adds a note if a list does not contain the control plane's namespace.
pub(super) fn note(
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
