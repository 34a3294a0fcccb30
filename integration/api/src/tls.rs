//! The server's certificate authority, made at its start, and its certificate, which a test can replace.

use crate::tokens::Validity;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, ServerConfig};
use tokio_rustls::rustls::sign::CertifiedKey;

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
