//! The plugin and conf directories that a container runtime's own configuration names. A file that cannot be
//! read or parsed yields nothing; the built-in default depends on the runtime's build, so it is not assumed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// The largest configuration file that is read, in bytes.
const LARGEST: u64 = 1 << 20;
/// The most files of one configuration.
const MOST: usize = 64;

/// What a runtime's configuration names: paths on the host, none where it names none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeConfig {
    pub plugin_dirs: Option<Vec<PathBuf>>,
    pub conf_dir: Option<PathBuf>,
    /// The network that CRI-O uses; none for the first one by file name.
    pub default_network: Option<String>,
    /// Whether containerd sets up `lo` itself.
    pub internal_loopback: bool,
    /// How many conf files containerd loads, where its configuration names it.
    pub max_conf_num: Option<i64>,
    /// containerd's runtime handlers that have a conf directory of their own (`cni_conf_dir`).
    pub handlers: BTreeMap<String, PathBuf>,
}

/// Reads the configuration of the runtime `name` that was started with `arguments`. `root` is the path of the
/// host's root in this mount namespace.
#[must_use]
pub fn configured(root: &Path, name: &str, arguments: &[String]) -> RuntimeConfig {
    let configured = match name {
        "containerd" => of_containerd(root, arguments),
        "crio" => of_crio(root, arguments),
        _ => None,
    };
    configured.unwrap_or_default()
}

const CRIO_CONFIG: &str = "/etc/crio/crio.conf";
const CRIO_DIRECTORY: &str = "/etc/crio/crio.conf.d";

/// CRI-O's configuration: one file, then those of a directory in the order of their names (crio.conf(5),
/// crio.conf.d(5)).
fn of_crio(root: &Path, arguments: &[String]) -> Option<RuntimeConfig> {
    let main = PathBuf::from(option(arguments, &["--config", "-c"]).unwrap_or(CRIO_CONFIG));
    let directory = PathBuf::from(option(arguments, &["--config-dir", "-d"]).unwrap_or(CRIO_DIRECTORY));
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

const CONTAINERD_CONFIG: &str = "/etc/containerd/config.toml";

/// The CRI service's section: since version 3, in version 2, in version 1.
const SECTIONS: [&str; 3] = ["io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri"];

/// containerd's configuration, versions 1 to 3, and its imports (containerd-config.toml(5)).
fn of_containerd(root: &Path, arguments: &[String]) -> Option<RuntimeConfig> {
    let main = PathBuf::from(option(arguments, &["--config", "-c"]).unwrap_or(CONTAINERD_CONFIG));
    let (mut paths, mut files) = (vec![main], Vec::<Table>::new());
    while let Some(path) = paths.get(files.len()).cloned() {
        let file: Table = text(root, &path)?.parse().ok()?;
        for import in file.get("imports").map_or(Some(Vec::new()), texts)? {
            paths.extend(imported(root, &path, &import)?);
        }
        if paths.len() > MOST {
            return None;
        }
        files.push(file);
    }
    of_files(&files)
}

/// The files that an import names: its last component may contain one `*`.
fn imported(root: &Path, by: &Path, import: &str) -> Option<Vec<PathBuf>> {
    let path = by.parent()?.join(import);
    let (directory, pattern) = (path.parent()?.to_owned(), path.file_name()?.to_str()?.to_owned());
    let is_special = |text: &str| text.contains(['*', '?', '[', '\\']);
    if is_special(directory.to_str()?) {
        return None;
    }
    let Some((start, end)) = pattern.split_once('*') else {
        return (!is_special(&pattern)).then_some(vec![path]);
    };
    if is_special(start) || is_special(end) {
        return None;
    }
    let fits = |name: &String| {
        name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
    };
    // A missing directory has no files to import.
    let names = names(root, &directory).unwrap_or_default();
    Some(names.iter().filter(|name| fits(name)).map(|name| directory.join(name)).collect())
}

/// A later file's section replaces an earlier one's, whole or in part, depending on the version. So the
/// directories are known only if the last section names them. A runtime handler's conf directory counts wherever it is
/// named.
fn of_files(files: &[Table]) -> Option<RuntimeConfig> {
    if files.iter().any(is_without_cri) {
        return None;
    }
    let of_file = |file: &Table| {
        let plugins = file.get("plugins")?.as_table()?.clone();
        SECTIONS.iter().find_map(|name| plugins.get(*name).cloned())
    };
    let sections: Vec<Value> = files.iter().filter_map(of_file).collect();
    let cni = sections.last()?.get("cni");
    let member = |key: &str| cni.and_then(|cni| cni.get(key));
    let text = |key: &str| member(key).and_then(Value::as_str).map(str::to_owned);
    let several = member("bin_dirs").map_or(Some(Vec::new()), texts)?;
    Some(RuntimeConfig {
        default_network: None,
        plugin_dirs: directories(text("bin_dir").into_iter().chain(several)),
        conf_dir: text("conf_dir").filter(|path| !path.is_empty()).map(PathBuf::from),
        internal_loopback: member("use_internal_loopback").and_then(Value::as_bool) == Some(true),
        max_conf_num: member("max_conf_num").and_then(Value::as_integer),
        handlers: sections.iter().flat_map(handlers).collect(),
    })
}

/// The runtime handlers of a section that have a conf directory of their own.
fn handlers(section: &Value) -> Vec<(String, PathBuf)> {
    let runtimes = section.get("containerd").and_then(|containerd| containerd.get("runtimes"));
    let runtimes = runtimes.and_then(Value::as_table).into_iter().flatten();
    let directory = |handler: &Value| handler.get("cni_conf_dir").and_then(Value::as_str).map(PathBuf::from);
    let named = runtimes.filter_map(|(name, handler)| Some((name.clone(), directory(handler)?)));
    named.filter(|(_, path)| !path.as_os_str().is_empty()).collect()
}

/// Reports whether the CRI service is disabled, as in Docker's containerd, which starts no pods.
fn is_without_cri(file: &Table) -> bool {
    let disabled = file.get("disabled_plugins").and_then(texts).unwrap_or_default();
    disabled.iter().any(|name| SECTIONS.contains(&name.as_str()))
}

/// Returns the paths that are not empty; none if all are.
fn directories(paths: impl IntoIterator<Item = String>) -> Option<Vec<PathBuf>> {
    let all: Vec<_> = paths.into_iter().filter(|path| !path.is_empty()).map(PathBuf::from).collect();
    (!all.is_empty()).then_some(all)
}

/// The path by which a path of the host is visible here.
pub(crate) fn on_host(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn text(root: &Path, path: &Path) -> Option<String> {
    let path = on_host(root, path);
    // Opening a FIFO would block.
    let length = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?.len();
    let mut text = String::new();
    File::open(path).ok().filter(|_| length <= LARGEST)?.take(LARGEST).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The names in a directory, sorted by their bytes.
fn names(root: &Path, directory: &Path) -> Option<Vec<String>> {
    let entries = fs::read_dir(on_host(root, directory)).ok()?.flatten().take(MOST);
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    Some(names)
}

/// The value of an option, as `--name value` or `--name=value`.
fn option<'a>(arguments: &'a [String], spellings: &[&str]) -> Option<&'a str> {
    let mut all = arguments.iter();
    while let Some(argument) = all.next() {
        if spellings.contains(&argument.as_str()) {
            return all.next().map(String::as_str);
        }
        let value = argument.split_once('=').filter(|(name, _)| spellings.contains(name));
        if let Some((_, value)) = value {
            return Some(value);
        }
    }
    None
}

/// The strings of a list; none if it holds anything else.
fn texts(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|one| one.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests;
