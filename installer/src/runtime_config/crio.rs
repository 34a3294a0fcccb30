//! CRI-O's configuration: one file, and those of a directory, in the order of their names (crio.conf(5),
//! crio.conf.d(5)).

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::{names, option, text, texts};

const CONFIG: &str = "/etc/crio/crio.conf";
const DIRECTORY: &str = "/etc/crio/crio.conf.d";

pub(super) fn plugin_dirs(root: &Path, arguments: &[String]) -> Option<Vec<PathBuf>> {
    if option(arguments, &["--cni-plugin-dir"]).is_some() {
        // A flag counts for more than any file.
        return None;
    }
    let main = PathBuf::from(option(arguments, &["--config", "-c"]).unwrap_or(CONFIG));
    let directory = PathBuf::from(option(arguments, &["--config-dir", "-d"]).unwrap_or(DIRECTORY));
    let further = names(root, &directory).unwrap_or_default();
    let (mut several, mut older) = (None, None);
    for path in [main].into_iter().chain(further.iter().map(|name| directory.join(name))) {
        let Some(text) = text(root, &path) else { continue };
        let file: Table = text.parse().ok()?;
        let Some(network) = file.get("crio").and_then(|crio| crio.get("network")) else { continue };
        if let Some(list) = network.get("plugin_dirs") {
            several = Some(texts(list)?);
        }
        older = network.get("plugin_dir").and_then(Value::as_str).map(str::to_owned).or(older);
    }
    let all = several.unwrap_or_default().into_iter().chain(older);
    let all: Vec<PathBuf> = all.filter(|directory| !directory.is_empty()).map(PathBuf::from).collect();
    (!all.is_empty()).then_some(all)
}
