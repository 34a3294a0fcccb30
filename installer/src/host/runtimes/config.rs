//! The plugin and conf directories that a container runtime's own configuration names. A file that cannot be
//! read or parsed yields nothing; the built-in default depends on the runtime's build, so it is not assumed.

mod containerd;
mod crio;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

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
        "containerd" => containerd::configured(root, arguments),
        "crio" => crio::configured(root, arguments),
        _ => None,
    };
    configured.unwrap_or_default()
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
fn texts(value: &toml::Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|one| one.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests;
