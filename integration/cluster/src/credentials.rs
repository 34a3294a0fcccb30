//! The credentials of the cluster: a certificate of the API server, a key for service accounts' tokens, and a
//! kubeconfig for each component.

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use gybe_integration::failure::Failure;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use serde_json::json;

use crate::network::{NODE, NODE_ADDRESS, NodeNumber, SERVICE_ADDRESS};

/// The directory of the files, on the node.
pub(crate) const DIRECTORY: &str = "/run/gybe/kubernetes";

/// The components and an administrator: the name of the kubeconfig, the user, and its group. Each kubelet has one of its
/// node's name.
const USERS: [(&str, &str, &str); 4] = [
    ("admin", "admin", "system:masters"),
    ("controller-manager", "system:kube-controller-manager", ""),
    ("scheduler", "system:kube-scheduler", ""),
    ("proxy", "system:kube-proxy", ""),
];

/// Returns the path of a file on the node.
pub(crate) fn file(name: &str) -> String {
    format!("{DIRECTORY}/{name}")
}

/// Returns the path of a user's kubeconfig on the node.
pub(crate) fn kubeconfig(user: &str) -> String {
    file(&format!("{user}.kubeconfig"))
}

/// Writes all files for all nodes that there may be. Tokens are names: the API server is reachable only from the nodes'
/// own network.
pub(crate) fn write(directory: &Path) -> Result<(), Failure> {
    fs::create_dir_all(directory)?;
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let names = [NODE, NODE_ADDRESS, SERVICE_ADDRESS, "127.0.0.1", "kubernetes.default.svc"];
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(names.map(str::to_owned))?.signed_by(&key, &authority)?;
    fs::write(directory.join("ca.crt"), authority.pem())?;
    fs::write(directory.join("apiserver.crt"), certificate.pem())?;
    fs::write(directory.join("apiserver.key"), key.serialize_pem())?;
    let signing = KeyPair::generate()?;
    fs::write(directory.join("service-accounts.key"), signing.serialize_pem())?;
    fs::write(directory.join("service-accounts.pub"), signing.public_key_pem())?;
    let mut tokens = String::new();
    let kubelets = NodeNumber::up_to(NodeNumber::MAX).map(|node| {
        let name = node.to_string();
        (name.clone(), format!("system:node:{name}"), "system:nodes")
    });
    let users = USERS.map(|(name, user, group)| (name.to_owned(), user.to_owned(), group));
    for (name, user, group) in users.into_iter().chain(kubelets) {
        tokens.push_str(&format!("{name},{user},{user},\"{group}\"\n"));
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "gybe", "cluster": {
                "server": format!("https://{NODE_ADDRESS}"),
                "certificate-authority-data": BASE64_STANDARD.encode(authority.pem()),
            } }],
            "users": [{ "name": name, "user": { "token": name } }],
            "contexts": [{ "name": "gybe", "context": { "cluster": "gybe", "user": name } }],
            "current-context": "gybe",
        });
        fs::write(directory.join(format!("{name}.kubeconfig")), config.to_string())?;
    }
    fs::write(directory.join("tokens.csv"), tokens)?;
    Ok(())
}

/// Copies the files to another node.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        // The kernel settings and /proc of the first node are mounts.
        if entry
            .path()
            .extension()
            .is_some_and(|kind| ["crt", "key", "kubeconfig"].iter().any(|it| kind == *it))
        {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
