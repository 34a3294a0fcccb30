//! The kubeconfig on the node: written when it says something new, there for nobody but its owner,
//! and gone when nobody asks for it any more.

use super::kubeconfig::{self, Credentials};
use super::token::{Validity, expiry, validity};
use crate::host::settings::{ApiServer, Environment, ServerTrust};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// No token, and no bundle of certificates, is as long.
const LONGEST: u64 = 1 << 20;

/// What it is called until it is whole; a run that was cut off leaves it, with a token in it.
pub(crate) const KUBECONFIG_NEW: &str = ".kubeconfig.gybe.tmp";

/// Why there is no kubeconfig, or none that is up to date.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CredentialsError {
    /// The token, or the CA.
    #[error("cannot read {}", .path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kubelet writes whole tokens; an empty one is somebody else's.
    #[error("{} is empty", .0.display())]
    NoToken(PathBuf),
    /// The kubeconfig.
    #[error("cannot write {}", .path.display())]
    Write {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What became of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Whether it had to be written.
    pub(crate) news: bool,
    /// How long its token is good.
    pub(crate) validity: Validity,
    /// When it ends.
    pub(crate) ends: Option<SystemTime>,
}

/// Makes the kubeconfig say what the service account says now.
pub(crate) fn keep(ground: &Environment, now: SystemTime) -> Result<Kept, CredentialsError> {
    let (text, token) = current(&ground.api)?;
    let path = ground.kubeconfig();
    let failed = |source| CredentialsError::Write { path: path.clone(), source };
    let news = !is_there(&path, &text, ground.kubeconfig_mode);
    if news {
        replace(&path, &text, ground.kubeconfig_mode).map_err(failed)?;
    }
    Ok(Kept { news, validity: validity(&token, now), ends: expiry(&token) })
}

/// Takes it away; none there is as good.
pub(crate) fn drop_it(ground: &Environment) -> Result<bool, CredentialsError> {
    let path = ground.kubeconfig();
    let failed = |source| CredentialsError::Write { path: path.clone(), source };
    let part = removed(&path.with_file_name(KUBECONFIG_NEW)).map_err(failed)?;
    Ok(removed(&path).map_err(failed)? || part)
}

fn removed(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(why) => Err(why),
    }
}

/// The text, and the token in it.
fn current(api: &ApiServer) -> Result<(String, String), CredentialsError> {
    let path = api.service_account.join("token");
    let token = String::from_utf8_lossy(&read(&path)?).trim().to_owned();
    if token.is_empty() {
        return Err(CredentialsError::NoToken(path));
    }
    let ca = match &api.trust {
        ServerTrust::Any => Vec::new(),
        ServerTrust::Ca(path) => read(path)?,
    };
    let text = kubeconfig::render(api, Credentials { token: &token, ca: &ca });
    Ok((text, token))
}

fn read(path: &Path) -> Result<Vec<u8>, CredentialsError> {
    let read = || {
        let mut bytes = Vec::new();
        File::open(path)?.take(LONGEST).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|source| CredentialsError::Read { path: path.to_owned(), source })
}

fn is_there(path: &Path, text: &str, mode: u32) -> bool {
    let there = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file);
    let right = there.is_some_and(|there| there.permissions().mode() & 0o7777 == mode);
    right && read(path).is_ok_and(|bytes| bytes == text.as_bytes())
}

/// Beside it and then in its place, so that nobody reads a part, or reads it who may not. Not synced:
/// it stands in memory, and does not outlive the boot.
fn replace(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let new = path.with_file_name(KUBECONFIG_NEW);
    removed(&new)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.set_permissions(Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&new, path));
    written.inspect_err(|_| drop(fs::remove_file(&new)))
}
