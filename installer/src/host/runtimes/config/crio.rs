//! CRI-O's configuration: one file, then those of a directory in the order of their names (crio.conf(5),
//! crio.conf.d(5)).

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::{RuntimeConfig, directories, names, option, text, texts};

const CONFIG: &str = "/etc/crio/crio.conf";
const DIRECTORY: &str = "/etc/crio/crio.conf.d";

pub(super) fn configured(root: &Path, arguments: &[String]) -> Option<RuntimeConfig> {
    let main = PathBuf::from(option(arguments, &["--config", "-c"]).unwrap_or(CONFIG));
    let directory = PathBuf::from(option(arguments, &["--config-dir", "-d"]).unwrap_or(DIRECTORY));
    let further = names(root, &directory).unwrap_or_default();
    let (mut several, mut older, mut conf_dir, mut default_network) = (None, None, None, None);
    for path in [main].into_iter().chain(further.iter().map(|name| directory.join(name))) {
        let Some(text) = text(root, &path) else { continue };
        let file: Table = text.parse().ok()?;
        let Some(network) = file.get("crio").and_then(|crio| crio.get("network")) else { continue };
        if let Some(list) = network.get("plugin_dirs") {
            several = Some(texts(list)?);
        }
        let text = |key: &str| network.get(key).and_then(Value::as_str).map(str::to_owned);
        older = text("plugin_dir").or(older);
        conf_dir = text("network_dir").or(conf_dir);
        default_network = text("cni_default_network").or(default_network);
    }
    // A flag overrides every file.
    let has_flag = |name: &str| option(arguments, &[name]).is_some();
    let plugin_dirs = directories(several.unwrap_or_default().into_iter().chain(older));
    let conf_dir = conf_dir.filter(|path| !path.is_empty()).map(PathBuf::from);
    let by_flag = option(arguments, &["--cni-default-network"]).map(str::to_owned);
    Some(RuntimeConfig {
        default_network: by_flag.or(default_network).filter(|name| !name.is_empty()),
        plugin_dirs: plugin_dirs.filter(|_| !has_flag("--cni-plugin-dir")),
        conf_dir: conf_dir.filter(|_| !has_flag("--cni-config-dir")),
        ..RuntimeConfig::default()
    })
}
