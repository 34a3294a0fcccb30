//! A client's credential files: a kubeconfig and a service account's directory.

use crate::tokens::{SERVICE_ACCOUNT, Token};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gybe_test_support::write_volume;
use serde_json::json;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Writes a kubeconfig in JSON, which is valid YAML.
pub(crate) fn kubeconfig(path: &Path, server: &str, ca: &str, token: &Token) -> io::Result<()> {
    let ca = STANDARD.encode(ca);
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "gybe",
        "clusters": [{ "name": "local", "cluster": { "server": server, "certificate-authority-data": ca } }],
        "users": [{ "name": "gybe", "user": { "token": token.text() } }],
        "contexts": [{ "name": "gybe", "context": { "cluster": "local", "user": "gybe" } }],
    });
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.to_string().as_bytes())
}

/// A service account's directory as the kubelet mounts it.
#[derive(Debug)]
pub struct ServiceAccount {
    directory: PathBuf,
    ca: String,
}

impl ServiceAccount {
    pub(crate) fn new(directory: &Path, ca: String) -> Self {
        Self { directory: directory.to_owned(), ca }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// Replaces the token, as the kubelet does.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn write(&self, token: &Token) -> io::Result<()> {
        let files = [("ca.crt", self.ca.as_str()), ("namespace", SERVICE_ACCOUNT.0), ("token", token.text())];
        write_volume(&self.directory, files)
    }
}
