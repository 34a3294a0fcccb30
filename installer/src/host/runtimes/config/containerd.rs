//! containerd's configuration, versions 1 to 3, and its imports (containerd-config.toml(5)).

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::{MOST, RuntimeConfig, directories, names, option, text, texts};

const CONFIG: &str = "/etc/containerd/config.toml";

/// The CRI service's section: since version 3, in version 2, in version 1.
const SECTIONS: [&str; 3] = ["io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri"];

pub(super) fn configured(root: &Path, arguments: &[String]) -> Option<RuntimeConfig> {
    let main = PathBuf::from(option(arguments, &["--config", "-c"]).unwrap_or(CONFIG));
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
