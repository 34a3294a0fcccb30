//! What a client trusts and what the server accepts: the issued tokens and their periods of validity, the server's
//! certificate authority and its certificate, and a client's credential files. Clocks are never set: an invalid
//! token or certificate has a period of validity that is two days off.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use gybe_test_support::write_volume;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use serde_json::json;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, ServerConfig};
use tokio_rustls::rustls::sign::CertifiedKey;

/// Namespace and name of the service account of every token.
pub const SERVICE_ACCOUNT: (&str, &str) = ("gybe-system", "gybe-node");

/// A bearer token. `Debug` prints only its number.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Counts issued tokens from 1.
    pub number: u32,
    text: String,
}

/// The token of a request, without its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bearer {
    /// The request has no token.
    Anonymous,
    /// An issued token's number.
    Token(u32),
    /// A token that this server did not issue.
    Unknown,
}

/// All tokens that one server issued.
#[derive(Debug, Default)]
pub struct Tokens(Mutex<Vec<Issued>>);

/// The result of checking a request's token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Authentication {
    pub(crate) bearer: Bearer,
    pub(crate) accepted: bool,
}

#[derive(Debug)]
struct Issued {
    token: Token,
    period: Period,
    revoked: bool,
}

impl Tokens {
    /// Issues another token; older ones stay valid.
    pub fn issue(&self, validity: Validity) -> Token {
        let mut all = self.all();
        let number = u32::try_from(all.len()).unwrap_or(u32::MAX).saturating_add(1);
        let period = validity.period();
        let token = Token { number, text: token_text(number, period) };
        all.push(Issued { token: token.clone(), period, revoked: false });
        token
    }

    /// Refuses every further request with that token. A running watch goes on, as with a real server.
    pub fn revoke(&self, token: &Token) {
        self.all().iter_mut().filter(|issued| issued.token == *token).for_each(|it| it.revoked = true);
    }

    /// Revokes all tokens issued so far except these.
    pub fn accept_only(&self, these: &[&Token]) {
        self.all().iter_mut().for_each(|issued| issued.revoked = !these.contains(&&issued.token));
    }

    /// Revokes all tokens issued so far.
    pub fn revoke_all(&self) {
        self.all().iter_mut().for_each(|issued| issued.revoked = true);
    }

    /// Undoes every revocation, as after a fault of the authenticator.
    pub fn restore_all(&self) {
        self.all().iter_mut().for_each(|issued| issued.revoked = false);
    }

    pub(crate) fn authenticate(&self, text: &str) -> Authentication {
        let (all, now) = (self.all(), SystemTime::now());
        let Some(issued) = all.iter().find(|issued| issued.token.text == text) else {
            return Authentication { bearer: Bearer::Unknown, accepted: false };
        };
        let accepted = !issued.revoked && issued.period.from <= now && now < issued.period.until;
        Authentication { bearer: Bearer::Token(issued.token.number), accepted }
    }

    fn all(&self) -> MutexGuard<'_, Vec<Issued>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Token {
    /// The text behind `Authorization: Bearer`.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {}", self.number)
    }
}

/// Returns a text with the form and claims of a bound service account token, without a valid signature.
fn token_text(number: u32, Period { from, until }: Period) -> String {
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (namespace, name) = SERVICE_ACCOUNT;
    let part = |part: &[u8]| URL_SAFE_NO_PAD.encode(part);
    let header = json!({ "alg": "RS256", "kid": "gybe-api-server" });
    let claims = json!({
        "aud": ["https://kubernetes.default.svc.cluster.local"],
        "iss": "https://kubernetes.default.svc.cluster.local",
        "iat": seconds(from), "nbf": seconds(from), "exp": seconds(until),
        "jti": format!("00000000-0000-4000-8000-{number:012}"),
        "kubernetes.io": { "namespace": namespace, "serviceaccount": { "name": name } },
        "sub": format!("system:serviceaccount:{namespace}:{name}"),
    });
    let signature = number.to_be_bytes().repeat(64);
    let parts = [header.to_string().into_bytes(), claims.to_string().into_bytes(), signature];
    parts.map(|bytes| part(&bytes)).join(".")
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The first and the last moment of validity.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Period {
    pub(crate) from: SystemTime,
    pub(crate) until: SystemTime,
}

/// The period of validity of a token or certificate, relative to now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// From yesterday on, for a month.
    Valid,
    /// From two days ahead, for a month: what a client with a slow clock sees.
    NotYetValid,
    /// For a month, until two days ago: not renewed, or what a client with a fast clock sees.
    Expired,
}

impl Validity {
    pub(crate) fn period(self) -> Period {
        let now = SystemTime::now();
        let (from, until) = match self {
            Self::Valid => (now - DAY, now + 30 * DAY),
            Self::NotYetValid => (now + 2 * DAY, now + 32 * DAY),
            Self::Expired => (now - 32 * DAY, now - 2 * DAY),
        };
        Period { from, until }
    }
}

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

/// Why a certificate cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// `rcgen` cannot make it.
    #[error("cannot make a certificate")]
    Make(#[from] rcgen::Error),
    /// `rustls` does not accept it.
    #[error("cannot use the certificate for TLS")]
    Use(#[from] tokio_rustls::rustls::Error),
}

/// The certificate authority of one server and the certificate that the server presents.
pub(crate) struct Identity {
    authority: CertifiedIssuer<'static, KeyPair>,
    address: IpAddr,
    presented: RwLock<Arc<CertifiedKey>>,
}

impl Identity {
    pub(crate) fn new(address: IpAddr) -> Result<Arc<Self>, TlsError> {
        let authority = authority()?;
        let presented = RwLock::new(Arc::new(certificate(&authority, address, Validity::Valid)?));
        Ok(Arc::new(Self { authority, address, presented }))
    }

    pub(crate) fn ca_pem(&self) -> String {
        self.authority.pem()
    }

    /// Presents a certificate of that validity from the next handshake on.
    pub(crate) fn present(&self, validity: Validity) -> Result<(), TlsError> {
        let certificate = certificate(&self.authority, self.address, validity)?;
        *self.presented.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(certificate);
        Ok(())
    }

    pub(crate) fn server_config(self: &Arc<Self>) -> Result<Arc<ServerConfig>, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = versions.with_no_client_auth().with_cert_resolver(Arc::clone(self) as Arc<_>);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // A resumed session would not receive the current certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.presented.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("address", &self.address).finish_non_exhaustive()
    }
}

fn authority() -> Result<CertifiedIssuer<'static, KeyPair>, TlsError> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "kubernetes");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

fn certificate(
    authority: &CertifiedIssuer<'static, KeyPair>,
    address: IpAddr,
    validity: Validity,
) -> Result<CertifiedKey, TlsError> {
    let names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"];
    let names = names.iter().map(ToString::to_string).chain([address.to_string()]).collect::<Vec<_>>();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let period = validity.period();
    (params.not_before, params.not_after) = (period.from.into(), period.until.into());
    let key = KeyPair::generate()?;
    let signed = params.signed_by(&key, authority)?;
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    Ok(CertifiedKey::from_der(vec![signed.into()], key, &ring::default_provider())?)
}
