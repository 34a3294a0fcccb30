//! A kubeconfig for the plugin, as text: pure. Every value stands in quotes, so none can become
//! another key.

use crate::host::settings::{ApiServer, ServerTrust};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::Value;
use std::net::Ipv6Addr;

/// What goes into it beside the server.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    /// The service account's.
    pub token: &'a str,
    /// The CA's certificates, PEM. Not looked at where anybody is trusted.
    pub ca: &'a [u8],
}

/// The server, whom to trust for it, and a token: keys in the order `kubectl config view` has them.
#[must_use]
pub fn render(api: &ApiServer, with: Credentials<'_>) -> String {
    let trust = match api.trust {
        ServerTrust::Any => "insecure-skip-tls-verify: true".to_owned(),
        ServerTrust::Ca(_) => format!("certificate-authority-data: {}", BASE64_STANDARD.encode(with.ca)),
    };
    let (server, token) = (quoted(&server(api)), quoted(with.token));
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: local\n  cluster:\n    {trust}\n    server: {server}\n\
         users:\n- name: gybe\n  user:\n    token: {token}\n\
         contexts:\n- name: gybe\n  context:\n    cluster: local\n    user: gybe\ncurrent-context: gybe\n"
    )
}

/// Its URL; an IPv6 address stands in brackets (RFC 3986, 3.2.2).
#[must_use]
pub fn server(api: &ApiServer) -> String {
    let ApiServer { protocol, host, port, .. } = api;
    match host.parse::<Ipv6Addr>() {
        Ok(_) => format!("{protocol}://[{host}]:{port}"),
        Err(_) => format!("{protocol}://{host}:{port}"),
    }
}

/// A JSON string is a YAML string too (YAML 1.2.2, 1.2).
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
