//! Namespaces whose pods are left alone.

use super::environment::Environment;
use super::reader::{RawSetting, SettingsReader, list};
use gybe_plugin::args::Namespace;
use std::collections::BTreeSet;

/// Where nobody said anything: the cluster's own pods, ours, and those of the control plane, which the
/// mesh needs to come up.
pub(super) fn usual(ground: &Environment) -> BTreeSet<String> {
    let own = [ground.namespace.as_str(), "kube-system", &ground.control_plane];
    own.into_iter().filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// What the settings say, and nothing else; an empty list is a word too.
pub(super) fn said<'a>(
    reader: &mut SettingsReader<'a>,
    ground: &Environment,
) -> Option<(RawSetting<'a>, BTreeSet<String>)> {
    let by_key = reader.given.files.get("exclude_namespaces").map(|text| ("exclude_namespaces", text));
    let by_variable =
        || reader.given.environment.get("EXCLUDE_NAMESPACES").map(|text| ("EXCLUDE_NAMESPACES", text));
    let (name, text) = by_key.or_else(by_variable)?;
    let said = RawSetting { name, text };
    let strange: Vec<_> = list(text).filter(|name| Namespace::parse(name).is_err()).collect();
    if !strange.is_empty() {
        reader.refuse(said, format!("no namespace can be called {}", strange.join(", ")));
    }
    let named: BTreeSet<String> = list(text).map(str::to_owned).collect();
    note(reader, ground, name, &named);
    Some((said, named))
}

/// Notes that a list does not name the control plane's namespace.
pub(super) fn note(
    reader: &mut SettingsReader<'_>,
    ground: &Environment,
    name: &str,
    named: &BTreeSet<String>,
) {
    if !named.contains(&ground.control_plane) {
        reader.notes.push(format!(
            "{name} does not name {:?}, where istiod is looked for: if its pods are meshed they wait for themselves",
            ground.control_plane
        ));
    }
}
