//! What an operator names: files, read up to a size limit, with the position of a JSON value in them; and the directories
//! of the node.

use super::output::CommandError;
use crate::error::RUN_AS_ROOT;
use crate::host::json;
use crate::host::observe::NodeDirectories;
use crate::host::platform::Platform;
use crate::pod::manifest;
use crate::sandboxes::{HostPaths, SandboxList, find};
use clap::Args;
use gybe_plugin::conf::PluginConf;
use nix::unistd::geteuid;
use serde_json::{Map, Value};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Why a file that the operator named has no usable text.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("cannot open {}", .0.display())]
    Open(PathBuf, #[source] io::Error),
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("{} is longer than {} bytes", .0.display(), manifest::LONGEST)]
    TooLong(PathBuf),
    #[error("{} is not UTF-8 text", .0.display())]
    NotText(PathBuf),
}

/// Returns the text of the file; `-` is stdin.
pub(super) fn text(path: &Path) -> Result<String, FileError> {
    if path.as_os_str() == "-" {
        return bounded(io::stdin().lock(), path);
    }
    let file = File::open(path).map_err(|e| FileError::Open(path.to_owned(), e))?;
    bounded(file, path)
}

/// The size of a device or a pipe is not known beforehand, so the reading itself is bounded.
fn bounded(source: impl Read, path: &Path) -> Result<String, FileError> {
    let one_too_many = u64::try_from(manifest::LONGEST).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    let read = source.take(one_too_many).read_to_end(&mut bytes);
    read.map_err(|e| FileError::Read(path.to_owned(), e))?;
    if bytes.len() > manifest::LONGEST {
        return Err(FileError::TooLong(path.to_owned()));
    }
    String::from_utf8(bytes).map_err(|_| FileError::NotText(path.to_owned()))
}

/// A position in a text; both numbers begin at 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    line: usize,
    column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} column {}", self.line, self.column)
    }
}

/// Returns the position of the value of `key` in a JSON object.
pub(super) fn position_of(text: &str, key: &str) -> Option<Position> {
    let start = json::parse(text.as_bytes()).ok()?.member(key)?.span.start;
    let before = text.get(..start)?;
    let line = before.rsplit('\n').next().unwrap_or_default();
    Some(Position { line: before.matches('\n').count() + 1, column: line.chars().count() + 1 })
}

/// The `type` of gybe-cni's entry.
const TYPE: &str = "gybe-cni";

/// Reads the plugin's configuration: its entry alone, or the list that has it.
pub(super) fn plugin_conf(path: &Path) -> Result<PluginConf, CommandError> {
    let text =
        text(path).map_err(|why| CommandError::because("cannot use the plugin's configuration", why))?;
    let cannot = || format!("cannot use the plugin's configuration {}", path.display());
    let value: Value = serde_json::from_str(&text).map_err(|why| CommandError::because(cannot(), why))?;
    let Some(entry) = entry(&value) else {
        return Err(CommandError::new(format!("{}: it has no entry of type {TYPE}", cannot())));
    };
    PluginConf::read(entry).map_err(|why| CommandError::because(cannot(), why))
}

/// An entry that stands alone needs no `type`, and must not have another plugin's.
fn entry(conf: &Value) -> Option<&Map<String, Value>> {
    let is_ours = |entry: &&Map<String, Value>| entry.get("type").is_some_and(|kind| kind == TYPE);
    match conf.get("plugins") {
        Some(list) => list.as_array()?.iter().filter_map(Value::as_object).find(is_ours),
        None => conf.as_object().filter(|entry| !entry.contains_key("type") || is_ours(entry)),
    }
}

/// The directories of the node. Defaults depend on the kind of node (`platform`).
#[derive(Debug, Clone, Args)]
pub(super) struct DirectoriesArg {
    /// The runtime's directory of network configurations [default: this kind of node's, usually /etc/cni/net.d]
    #[arg(long, value_name = "DIR")]
    conf_dir: Option<PathBuf>,
    /// The runtime's directory of plugins [default: this kind of node's, usually /opt/cni/bin]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// The directory in which libcni caches the results of running sandboxes [default: /var/lib/cni/results]
    #[arg(long, value_name = "DIR")]
    results_dir: Option<PathBuf>,
    /// The host's root directory as mounted in this container
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

impl DirectoriesArg {
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Lists the sandboxes of this node.
    ///
    /// # Errors
    /// As [`complete`].
    pub(super) fn sandboxes(&self) -> Result<SandboxList, CommandError> {
        complete(find(&HostPaths { results: self.node_directories().results, root: self.root.clone() }))
    }

    pub(super) fn node_directories(&self) -> NodeDirectories {
        let defaults = Platform::of_host(&self.root).node_directories(&self.root);
        NodeDirectories {
            conf: self.conf_dir.clone().unwrap_or(defaults.conf),
            programs: self.bin_dir.clone().unwrap_or(defaults.programs),
            results: self.results_dir.clone().unwrap_or(defaults.results),
        }
    }
}

/// The directory of the running program, which also contains gybe-cni.
pub(super) fn directory_of_this_program() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.parent()?.to_owned())
}

/// Returns the list of sandboxes if it is complete, or as complete as root can read it.
///
/// # Errors
/// When a part cannot be read and this process does not run as root.
pub(super) fn complete(list: SandboxList) -> Result<SandboxList, CommandError> {
    if list.unreadable.is_empty() || geteuid().is_root() {
        return Ok(list);
    }
    let what = format!("cannot list the sandboxes of this node: {}", list.unreadable.join("; "));
    Err(CommandError::new(what).with_hint(RUN_AS_ROOT))
}
