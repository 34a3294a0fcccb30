//! The API server's address and our credentials, from a pod's service account or a kubeconfig. Reads files, and sends
//! no request.

use super::client::{self, TokenFile};
use gybe_netfilter::model::{Hint, policy};
use gybe_plugin::bounded_read;
use hyper::Uri;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use std::borrow::Cow;
use std::io;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

/// A cluster, and the source of our credentials for it.
#[derive(Debug, Clone)]
pub enum Cluster {
    /// The cluster in which the agent runs as a pod.
    Own(ServiceAccount),
    /// The cluster of a kubeconfig's context; none for the current one.
    Kubeconfig { path: PathBuf, context: Option<String> },
}

/// The environment variables and files that the kubelet sets in a pod.
#[derive(Debug, Clone)]
pub struct ServiceAccount {
    /// `KUBERNETES_SERVICE_HOST`: a name or an address, IPv6 without brackets.
    pub host: String,
    /// `KUBERNETES_SERVICE_PORT`.
    pub port: String,
    /// The directory with `ca.crt` and `token`.
    pub directory: PathBuf,
}

/// The names by which an operator knows the cluster of a kubeconfig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterNames {
    pub context: String,
    pub server: String,
}

/// Files of this size in bytes or more are refused: no kubeconfig or certificate bundle is as large.
const MAX_SIZE: u64 = 1 << 20;

/// Why no request can be sent to a cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error("{} cannot be read", .path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The kubeconfig is incomplete. The parser's own message may quote a credential.
    #[error("kubeconfig {} {what}", .path.display())]
    Kubeconfig { path: PathBuf, what: String },
    #[error("the API server has no address: {host:?}, port {port:?}")]
    Address { host: String, port: String },
    /// What cannot be used: the credentials, or a certificate.
    #[error("{0} cannot be used")]
    Credentials(&'static str),
    #[error("cannot start a thread for requests")]
    Thread(#[source] io::Error),
}

impl Hint for ClusterError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Read { .. } => Some(
                "name a readable kubeconfig with --kubeconfig; in a pod, mount its service account's token"
                    .into(),
            ),
            Self::Kubeconfig { .. } => {
                Some("name a kubeconfig with --kubeconfig, or another context with --context".into())
            }
            Self::Address { .. } | Self::Credentials(_) | Self::Thread(_) => None,
        }
    }
}

impl Cluster {
    /// Returns a client. Call it in the tokio runtime that the client uses.
    pub(crate) async fn client(&self) -> Result<Client, ClusterError> {
        let (config, token) = match self {
            Self::Own(account) => account.config()?,
            Self::Kubeconfig { path, context } => {
                let (_, config, token) = kubeconfig(path, context.clone()).await?;
                (config, token)
            }
        };
        client::client(&config, token).map_err(|error| match error {
            kube::Error::Auth(_) => ClusterError::Credentials("the credentials in the kubeconfig"),
            _ => ClusterError::Credentials("the certificate of the API server's CA, or our own"),
        })
    }

    /// Returns the names in the kubeconfig; none for the cluster in which the program runs as a pod.
    pub(crate) async fn names(&self) -> Result<Option<ClusterNames>, ClusterError> {
        let Self::Kubeconfig { path, context } = self else { return Ok(None) };
        let (context, config, _) = kubeconfig(path, context.clone()).await?;
        Ok(Some(ClusterNames { context, server: config.cluster_url.to_string() }))
    }
}

impl ServiceAccount {
    fn config(&self) -> Result<(Config, Option<TokenFile>), ClusterError> {
        let ca = self.directory.join("ca.crt");
        check_readable(&ca)?;
        let mut config = Config::new(self.server()?);
        // kube reads the file again when it changes. The empty list keeps it from loading the system's certificates
        // first, which the image does not have.
        config.root_cert = Some(Vec::new());
        config.root_cert_file = Some(ca);
        Ok((config, Some(TokenFile::new(self.directory.join("token")))))
    }

    fn server(&self) -> Result<Uri, ClusterError> {
        let Self { host, port, .. } = self;
        let is_valid = !host.is_empty() && !host.contains(['/', '@', '?', '#']) && policy::port(port).is_ok();
        let server = is_valid.then(|| server_url(host, port).parse().ok()).flatten();
        server.ok_or_else(|| ClusterError::Address { host: host.clone(), port: port.clone() })
    }
}

/// Returns the name of the context, the configuration of its cluster, and the file with its token.
async fn kubeconfig(
    path: &Path,
    context: Option<String>,
) -> Result<(String, Config, Option<TokenFile>), ClusterError> {
    check_readable(path)?;
    let refused = |what| ClusterError::Kubeconfig { path: path.to_owned(), what };
    let parsed = Kubeconfig::read_from(path).map_err(|error| refused(reason(&error)))?;
    let name = context.clone().or_else(|| parsed.current_context.clone()).unwrap_or_default();
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    let config = Config::from_custom_kubeconfig(parsed, &options).await;
    let mut config = config.map_err(|error| refused(reason(&error)))?;
    if config.proxy_url.is_some() {
        return Err(refused("names a proxy; proxies are not supported".to_owned()));
    }
    // The file takes precedence over a token in the kubeconfig itself, as in client-go (transport/round_trippers.go).
    let file = config.auth_info.token_file.take();
    if file.is_some() {
        config.auth_info.token = None;
    }
    Ok((name, config, file.map(|file| TokenFile::new(file.into()))))
}

/// Checks a file before kube reads it, because kube reads files of any size, and blocks on a FIFO.
fn check_readable(path: &Path) -> Result<(), ClusterError> {
    let opened = bounded_read::open_file(path).and_then(|(_, length)| match length {
        0..=MAX_SIZE => Ok(()),
        _ => Err(io::Error::other(format!("it has more than {MAX_SIZE} bytes"))),
    });
    opened.map_err(|source| ClusterError::Read { path: path.to_owned(), source })
}

/// Returns the reason as a predicate of the file. It quotes only names from the file, never a credential.
fn reason(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::Parse(_) => "is not a kubeconfig in YAML".to_owned(),
        KubeconfigError::CurrentContextNotSet => "has no current-context".to_owned(),
        KubeconfigError::LoadContext(name) => format!("has no context {name:?}"),
        KubeconfigError::LoadClusterOfContext(name) => format!("has no cluster {name:?}"),
        KubeconfigError::MissingClusterUrl => "has no server".to_owned(),
        KubeconfigError::LoadCertificateAuthority(_) => "has no usable certificate-authority".to_owned(),
        KubeconfigError::LoadClientCertificate(_) => "has no usable client-certificate".to_owned(),
        KubeconfigError::LoadClientKey(_) => "has no usable client-key".to_owned(),
        _ => "cannot be used".to_owned(),
    }
}

/// Returns the API server's URL; an IPv6 address is in brackets (RFC 3986, 3.2.2).
pub(crate) fn server_url(host: &str, port: &str) -> String {
    match host.parse::<Ipv6Addr>() {
        Ok(_) => format!("https://[{host}]:{port}"),
        Err(_) => format!("https://{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(host: &str, port: &str) -> Option<String> {
        let account = ServiceAccount { host: host.into(), port: port.into(), directory: "/".into() };
        account.server().ok().map(|uri| uri.to_string())
    }

    #[test]
    fn the_servers_address_comes_from_the_environment() {
        for (host, port, uri) in [
            ("10.96.0.1", "443", "https://10.96.0.1:443/"),
            ("fd00:10:96::1", "6443", "https://[fd00:10:96::1]:6443/"),
            ("kubernetes.default.svc", "443", "https://kubernetes.default.svc:443/"),
        ] {
            assert_eq!(server(host, port).as_deref(), Some(uri));
        }
        for (host, port) in
            [("", "443"), ("10.0.0.1", ""), ("10.0.0.1", "70000"), ("a/b", "443"), ("u@h", "1"), ("a b", "1")]
        {
            assert_eq!(server(host, port), None, "{host} {port}");
        }
    }
}
