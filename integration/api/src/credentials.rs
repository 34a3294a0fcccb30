//! A client's credential files: a kubeconfig and a service account's directory.

use crate::tokens::{SERVICE_ACCOUNT, Token};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes a kubeconfig in JSON, which is valid YAML.
pub(crate) fn kubeconfig(path: &Path, server: &str, ca: &str, token: &Token) -> io::Result<()> {
    let ca = STANDARD.encode(ca);
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "gybe",
        "clusters": [{ "name": "local", "cluster": { "server": server, "certificate-authority-data": ca } }],
        "users": [{ "name": "gybe", "user": { "token": token.text() } }],
        "contexts": [{ "name": "gybe", "context": { "cluster": "local", "user": "gybe" } }],
    });
    write(path, 0o600, &text.to_string())
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

    /// Replaces the token as the kubelet does: writes all files to a new directory with a time in its name,
    /// points the symbolic link `..data` to it by a rename, then removes the old directory
    /// (`pkg/volume/util/atomic_writer.go`).
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn write(&self, token: &Token) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("..{}.{:09}", now.as_secs(), now.subsec_nanos());
        let fresh = self.directory.join(&name);
        fs::create_dir(&fresh)?;
        let files = [("ca.crt", self.ca.as_str()), ("namespace", SERVICE_ACCOUNT.0), ("token", token.text())];
        for (file, text) in files {
            write(&fresh.join(file), 0o644, text)?;
        }
        let (data, next) = (self.directory.join("..data"), self.directory.join("..data_tmp"));
        let before = fs::read_link(&data).ok();
        symlink(&name, &next)?;
        fs::rename(&next, &data)?;
        for (file, _) in files {
            let link = self.directory.join(file);
            if !link.is_symlink() {
                symlink(Path::new("..data").join(file), link)?;
            }
        }
        before.map_or(Ok(()), |before| fs::remove_dir_all(self.directory.join(before)))
    }
}

fn write(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())
}
