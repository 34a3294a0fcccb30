//! The files of the node that Gybe and istio-cni write: conf files, programs, and sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use gybe_containerd_tests::SimulatedHost;
use gybe_containerd_tests::containerd::{BIN_DIR, CONF_DIR, conf_files};
use gybe_integration::failure::Failure;

/// The agent's directory. The node has its own files there, too.
const RUN_DIR: &str = "/run/gybe";

/// Paths, each with what is compared: the content of a conf file, the size of a program.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NodeFiles(BTreeMap<String, String>);

impl NodeFiles {
    pub(super) fn read(host: &SimulatedHost) -> Result<NodeFiles, Failure> {
        let mut files = conf_files(host)?;
        for directory in [BIN_DIR, RUN_DIR] {
            for entry in fs::read_dir(host.path(directory))? {
                let entry = entry?;
                let compared = match directory {
                    BIN_DIR => entry.metadata()?.len().to_string(),
                    _ => String::new(),
                };
                files.insert(format!("{directory}/{}", entry.file_name().to_string_lossy()), compared);
            }
        }
        Ok(NodeFiles(files))
    }

    /// Writes the recorded conf files back.
    pub(super) fn restore_conf_files(&self, host: &SimulatedHost) -> Result<(), Failure> {
        for (path, text) in self.0.iter().filter(|(path, _)| path.starts_with(CONF_DIR)) {
            fs::write(host.path(path), text)?;
        }
        Ok(())
    }

    /// Returns the recorded paths in `/run/gybe`.
    pub(super) fn in_run_directory(&self) -> BTreeSet<String> {
        self.0.keys().filter(|path| path.starts_with(RUN_DIR)).cloned().collect()
    }

    /// Returns the paths that are only in one of both, or differ.
    pub(super) fn differences(&self, other: &NodeFiles) -> Vec<String> {
        let all = self.0.keys().chain(other.0.keys().filter(|path| !self.0.contains_key(*path)));
        all.filter(|path| self.0.get(*path) != other.0.get(*path)).cloned().collect()
    }

    /// Returns the conf files with this string.
    pub(super) fn conf_files_with(&self, string: &str) -> Vec<String> {
        let named = format!("\"{string}\"");
        let confs = self.0.iter().filter(|(path, text)| path.starts_with(CONF_DIR) && text.contains(&named));
        confs.map(|(path, _)| path.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_new_missing_or_changed_is_a_difference() {
        let files = |files: &[(&str, &str)]| {
            NodeFiles(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
        };
        let conf = r#"{ "plugins": [{ "type": "bridge" }, { "type": "gybe-cni" }] }"#;
        let one = files(&[("/etc/cni/net.d/a", conf), ("/run/gybe/b", ""), ("/run/gybe/c", "")]);
        let other = files(&[("/etc/cni/net.d/a", ""), ("/run/gybe/c", ""), ("/run/gybe/d", "")]);
        assert_eq!(one.differences(&other), ["/etc/cni/net.d/a", "/run/gybe/b", "/run/gybe/d"]);
        assert!(one.differences(&one).is_empty());
        assert_eq!(one.conf_files_with("gybe-cni"), ["/etc/cni/net.d/a"]);
        assert!(one.conf_files_with("gybe").is_empty() && other.conf_files_with("gybe-cni").is_empty());
    }
}
