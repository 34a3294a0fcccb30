//! The plugin's kubeconfig: its text, its file on the node, and the expiry of its token by the token's claims. Only the
//! API server can verify the token.

use crate::cluster::server_url;
use crate::host::settings::{ApiServer, Environment, KUBECONFIG_TEMPORARY, ServerTrust};
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD, Engine as _};
use serde_json::Value;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The most bytes that a file may have; more than any token or bundle of certificates has.
const MAX_SIZE: u64 = 1 << 20;

/// The token and the CA in a kubeconfig.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    pub token: &'a str,
    /// The CA's certificates in PEM; ignored where the server's certificate is not verified.
    pub ca: &'a [u8],
}

/// Renders a kubeconfig with its keys in the order of `kubectl config view`. The server and the token are quoted,
/// so that neither can add a key.
#[must_use]
pub fn render(api: &ApiServer, credentials: Credentials<'_>) -> String {
    let trust = match api.trust {
        ServerTrust::Any => "insecure-skip-tls-verify: true".to_owned(),
        ServerTrust::Ca(_) => {
            format!("certificate-authority-data: {}", BASE64_STANDARD.encode(credentials.ca))
        }
    };
    let (server, token) = (quoted(&server_url(&api.host, &api.port)), quoted(credentials.token));
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: local\n  cluster:\n    {trust}\n    server: {server}\n\
         users:\n- name: gybe\n  user:\n    token: {token}\n\
         contexts:\n- name: gybe\n  context:\n    cluster: local\n    user: gybe\ncurrent-context: gybe\n"
    )
}

/// A JSON string is also a YAML string (YAML 1.2.2, section 1.2).
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Why the kubeconfig cannot be kept up to date.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KubeconfigUpdateError {
    #[error("cannot read {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The kubelet writes whole tokens, so another program emptied the file.
    #[error("{} is empty", .0.display())]
    NoToken(PathBuf),
    #[error("cannot write {}", .path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot remove {}, or its temporary file", .path.display())]
    Remove { path: PathBuf, source: io::Error },
}

/// The result of an update.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kubeconfig {
    pub(crate) was_written: bool,
    pub(crate) validity: Validity,
    /// When its token expires.
    pub(crate) expires: Option<SystemTime>,
}

/// Writes the kubeconfig if its text or mode is not the current one.
pub(crate) fn update(
    environment: &Environment,
    now: SystemTime,
) -> Result<Kubeconfig, KubeconfigUpdateError> {
    let (text, token) = render_current(&environment.api)?;
    let path = environment.kubeconfig();
    let was_written = !is_current(&path, &text, environment.kubeconfig_mode);
    if was_written {
        let failed = |source| KubeconfigUpdateError::Write { path: path.clone(), source };
        replace(&path, &text, environment.kubeconfig_mode).map_err(failed)?;
    }
    Ok(Kubeconfig { was_written, validity: validity(&token, now), expires: expiry(&token) })
}

/// Removes the kubeconfig and its temporary file; reports whether either existed.
pub(crate) fn remove(environment: &Environment) -> Result<bool, KubeconfigUpdateError> {
    let path = environment.kubeconfig();
    // The file with the token is removed even where its temporary file cannot be.
    let kubeconfig = remove_if_present(&path);
    let temporary = remove_if_present(&path.with_file_name(KUBECONFIG_TEMPORARY));
    let failed = |source| KubeconfigUpdateError::Remove { path, source };
    kubeconfig.and_then(|was_there| Ok(temporary? || was_there)).map_err(failed)
}

/// Reports whether the file existed.
fn remove_if_present(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(why) => Err(why),
    }
}

/// Returns the kubeconfig's text for the service account's files as they are now, and the token in it.
fn render_current(api: &ApiServer) -> Result<(String, String), KubeconfigUpdateError> {
    let path = api.service_account.join("token");
    let token = String::from_utf8_lossy(&read(&path)?).trim().to_owned();
    if token.is_empty() {
        return Err(KubeconfigUpdateError::NoToken(path));
    }
    let ca = match &api.trust {
        ServerTrust::Any => Vec::new(),
        ServerTrust::Ca(path) => read(path)?,
    };
    Ok((render(api, Credentials { token: &token, ca: &ca }), token))
}

fn read(path: &Path) -> Result<Vec<u8>, KubeconfigUpdateError> {
    let read_bytes = || {
        let mut bytes = Vec::new();
        let length = File::open(path)?.take(MAX_SIZE + 1).read_to_end(&mut bytes)?;
        match u64::try_from(length) {
            Ok(..=MAX_SIZE) => Ok(bytes),
            _ => Err(io::Error::other(format!("it is longer than {MAX_SIZE} bytes"))),
        }
    };
    read_bytes().map_err(|source| KubeconfigUpdateError::Read { path: path.to_owned(), source })
}

fn is_current(path: &Path, text: &str, mode: u32) -> bool {
    let file = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file);
    let is_alike = |file: fs::Metadata| {
        file.permissions().mode() & 0o7777 == mode && usize::try_from(file.len()) == Ok(text.len())
    };
    file.is_some_and(is_alike) && fs::read(path).is_ok_and(|bytes| bytes == text.as_bytes())
}

/// Writes a temporary file and renames it, so that no process reads a partial file, or a file with a wider mode. Not
/// synced: the run directory is a tmpfs.
fn replace(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let temporary = path.with_file_name(KUBECONFIG_TEMPORARY);
    remove_if_present(&temporary)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.set_permissions(Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&temporary, path));
    written.inspect_err(|_| drop(fs::remove_file(&temporary)))
}

/// A token that expires within this time is overdue for renewal. The kubelet renews a token after four fifths of its
/// life, so a one-hour token has at least twelve minutes left (kubelet, `requiresRefresh` in token_manager.go).
pub(crate) const RENEWAL_OVERDUE: Duration = Duration::from_secs(300);

/// The validity of a token by its claim `exp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Validity {
    /// It has no readable `exp`: a token from a Secret, or one that is not a JWT (RFC 7519).
    Unlimited,
    /// It is valid for this time.
    For(Duration),
    /// It expires in this time, at most [`RENEWAL_OVERDUE`], and the kubelet has not renewed it.
    EndsSoon(Duration),
    Expired,
}

/// Returns the time in the claim `exp`; none if it cannot be read.
#[must_use]
pub(crate) fn expiry(token: &str) -> Option<SystemTime> {
    let claims = token.trim().split('.').nth(1)?;
    let claims = BASE64_URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    // A number with or without a fraction (RFC 7519, NumericDate).
    let exp = claims.get("exp")?;
    let seconds = exp.as_u64().map(Duration::from_secs);
    let seconds = seconds.or_else(|| Duration::try_from_secs_f64(exp.as_f64()?).ok())?;
    SystemTime::UNIX_EPOCH.checked_add(seconds)
}

#[must_use]
pub(crate) fn validity(token: &str, now: SystemTime) -> Validity {
    match expiry(token).map(|end| end.duration_since(now)) {
        None => Validity::Unlimited,
        Some(Ok(remaining)) if remaining > RENEWAL_OVERDUE => Validity::For(remaining),
        Some(Ok(remaining)) => Validity::EndsSoon(remaining),
        Some(Err(_)) => Validity::Expired,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_test_support::TestDir;

    #[test]
    fn a_ca_that_is_too_long_is_an_error_and_no_kubeconfig_with_a_part_of_it() {
        let directory = TestDir::new("long-ca");
        let ca = directory.join("ca.crt");
        fs::write(directory.join("token"), "t").unwrap();
        let account = directory.path().to_owned();
        let api = ApiServer {
            host: "h".to_owned(),
            port: "443".to_owned(),
            service_account: account,
            trust: ServerTrust::Ca(ca.clone()),
        };
        for (length, fits) in [(MAX_SIZE, true), (MAX_SIZE + 1, false)] {
            fs::write(&ca, vec![b'x'; usize::try_from(length).unwrap()]).unwrap();
            let rendered = render_current(&api);
            assert_eq!(rendered.is_ok(), fits, "{length}");
            let Ok((text, _)) = rendered else { continue };
            let path = directory.join("kubeconfig");
            replace(&path, &text, 0o600).unwrap();
            assert!(is_current(&path, &text, 0o600), "a long kubeconfig is not written again and again");
        }
    }

    fn token(claims: &str) -> String {
        format!("eyJhbGciOiJSUzI1NiJ9.{}.c2ln\n", BASE64_URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn f02_a_tokens_expiry_is_read_from_its_claims() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        for (claims, expected) in [
            (r#"{"exp":1003600}"#, Validity::For(Duration::from_secs(3600))),
            (r#"{"exp":1003600.0}"#, Validity::For(Duration::from_secs(3600))),
            (r#"{"exp":1000300}"#, Validity::EndsSoon(Duration::from_secs(300))),
            (r#"{"exp":1000000}"#, Validity::EndsSoon(Duration::ZERO)),
            (r#"{"exp":999999}"#, Validity::Expired),
            (r#"{"exp":"soon"}"#, Validity::Unlimited),
            (r#"{"exp":-1}"#, Validity::Unlimited),
            (r#"{"exp":1e300}"#, Validity::Unlimited),
            (r"{}", Validity::Unlimited),
            ("?", Validity::Unlimited),
        ] {
            assert_eq!(validity(&token(claims), now), expected, "{claims}");
        }
        for without_claims in ["", "a.b", "service_account_token_string", "..", "a.!.c"] {
            assert_eq!(validity(without_claims, now), Validity::Unlimited, "{without_claims}");
        }
    }
}
