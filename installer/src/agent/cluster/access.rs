//! Where the API server is and who we are to it: what a pod is given, or a kubeconfig. Reads files,
//! and asks nobody.

use super::line;
use super::token::TokenFile;
use gybe_plugin::bounded_read;
use hyper::Uri;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// A cluster, and who we are in it.
#[derive(Debug, Clone)]
pub enum Cluster {
    /// The one this runs in as a pod.
    Own(ServiceAccount),
    /// The one a kubeconfig's current context means.
    Kubeconfig(PathBuf),
}

/// What the kubelet gives to a pod.
#[derive(Debug, Clone)]
pub struct ServiceAccount {
    /// `KUBERNETES_SERVICE_HOST`: an address, of which IPv6 comes without brackets, or a name.
    pub host: String,
    /// `KUBERNETES_SERVICE_PORT`.
    pub port: String,
    /// Where `ca.crt` and `token` are.
    pub directory: PathBuf,
}

/// Where the kubelet puts a service account's files.
pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// No kubeconfig is longer.
const LONGEST: u64 = 1 << 20;

/// Why a cluster cannot be asked, whoever may be there.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A file that is needed.
    #[error("{} cannot be read", .path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// No kubeconfig, or one that lacks something. Its own words may quote a credential.
    #[error("kubeconfig {} {what}", .path.display())]
    Kubeconfig {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Address and port are none.
    #[error("the API server has no address: {host:?}, port {port:?}")]
    Address {
        /// What was given as its host.
        host: String,
        /// What was given as its port.
        port: String,
    },
    /// A certificate, a key or a program for credentials.
    #[error("{0} cannot be used")]
    Credentials(&'static str),
    /// The runtime.
    #[error("no thread can be made to ask from")]
    Thread(#[source] io::Error),
}

impl Cluster {
    /// A client for it. To be called where a runtime is, which the client lives in.
    pub(super) async fn client(&self) -> Result<Client, ClusterError> {
        let (config, token) = match self {
            Self::Own(account) => account.config()?,
            Self::Kubeconfig(path) => kubeconfig(path).await?,
        };
        line::client(&config, token).map_err(|fault| match fault {
            kube::Error::Auth(_) => ClusterError::Credentials("what the kubeconfig names for credentials"),
            _ => ClusterError::Credentials("the certificate of the API server's authority, or ours"),
        })
    }
}

impl ServiceAccount {
    fn config(&self) -> Result<(Config, Option<TokenFile>), ClusterError> {
        let authority = self.directory.join("ca.crt");
        readable(&authority)?;
        let mut config = Config::new(self.server()?);
        // The file is what counts, and is read again as it changes. Without the empty list the node's
        // own authorities would be looked for first, and an image has none.
        config.root_cert = Some(Vec::new());
        config.root_cert_file = Some(authority);
        Ok((config, Some(TokenFile::new(self.directory.join("token")))))
    }

    fn server(&self) -> Result<Uri, ClusterError> {
        let host = match self.host.parse() {
            Ok(IpAddr::V6(address)) => format!("[{address}]"),
            _ => self.host.clone(),
        };
        let wrong = || ClusterError::Address { host: self.host.clone(), port: self.port.clone() };
        let port: u16 = self.port.parse().map_err(|_| wrong())?;
        let name = !host.is_empty() && !host.contains(['/', '@', '?', '#']);
        let server = format!("https://{host}:{port}/").parse().ok().filter(|_| name);
        server.ok_or_else(wrong)
    }
}

async fn kubeconfig(path: &Path) -> Result<(Config, Option<TokenFile>), ClusterError> {
    readable(path)?;
    let wrong = |what| ClusterError::Kubeconfig { path: path.to_owned(), what };
    let read = Kubeconfig::read_from(path).map_err(|fault| wrong(told(&fault)))?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(read, &options).await;
    let mut config = config.map_err(|fault| wrong(told(&fault)))?;
    if config.proxy_url.is_some() {
        return Err(wrong("names a proxy, and none is ever used".to_owned()));
    }
    // A token in the kubeconfig itself counts for more (client-go).
    let file = config.auth_info.token_file.take().filter(|_| config.auth_info.token.is_none());
    Ok((config, file.map(|file| TokenFile::new(file.into()))))
}

/// kube reads its files whole, and waits for who writes to a FIFO.
fn readable(path: &Path) -> Result<(), ClusterError> {
    let there = bounded_read::open_file(path).and_then(|(_, length)| match length {
        0..LONGEST => Ok(()),
        _ => Err(io::Error::other(format!("it has more than {LONGEST} bytes"))),
    });
    there.map_err(|source| ClusterError::Read { path: path.to_owned(), source })
}

/// What is wrong, in words that quote nothing of the file but names.
fn told(fault: &KubeconfigError) -> String {
    match fault {
        KubeconfigError::Parse(_) => "is not YAML of that kind".to_owned(),
        KubeconfigError::CurrentContextNotSet => "has no current-context".to_owned(),
        KubeconfigError::LoadContext(name) => format!("has no context {name:?}"),
        KubeconfigError::LoadClusterOfContext(name) => format!("has no cluster {name:?}"),
        KubeconfigError::MissingClusterUrl => "has no server".to_owned(),
        KubeconfigError::LoadCertificateAuthority(_) => "has no certificate-authority of use".to_owned(),
        KubeconfigError::LoadClientCertificate(_) => "has no client-certificate of use".to_owned(),
        KubeconfigError::LoadClientKey(_) => "has no client-key of use".to_owned(),
        _ => "cannot be used".to_owned(),
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
    fn the_servers_address_is_that_of_the_environment() {
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
