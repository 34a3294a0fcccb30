//! Credential files: a kubeconfig and a service account's directory.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gybe_api_server::{ApiServer, Validity};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A directory that is removed on drop.
struct TempDirectory(PathBuf);

impl TempDirectory {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gybe-api-server-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for TempDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_service_account_token_is_replaced_as_the_kubelet_does() {
    let (server, directory) = (ApiServer::start().unwrap(), TempDirectory::new("account"));
    let account = server.service_account(&directory.0).unwrap();
    assert_eq!(account.path(), directory.0);
    assert_eq!(fs::read_link(directory.0.join("token")).unwrap(), Path::new("..data/token"));
    let before = (
        fs::read_link(directory.0.join("..data")).unwrap(),
        fs::read_to_string(directory.0.join("token")).unwrap(),
    );
    assert_eq!(fs::read_to_string(directory.0.join("ca.crt")).unwrap(), server.ca_pem());
    assert_eq!(fs::read_to_string(directory.0.join("namespace")).unwrap(), "gybe-system");
    let token = server.tokens().issue(Validity::Valid);
    account.write(&token).unwrap();
    assert_eq!(fs::read_to_string(directory.0.join("token")).unwrap(), token.text());
    assert_ne!(before.1, token.text());
    let mut names: Vec<_> = fs::read_dir(&directory.0).unwrap().map(|it| it.unwrap().file_name()).collect();
    names.sort();
    let now = fs::read_link(directory.0.join("..data")).unwrap();
    assert!(names.len() == 5 && names.contains(&now.clone().into_os_string()), "{names:?}");
    assert_ne!(before.0, now);
}

#[test]
fn a_kubeconfig_is_complete_and_readable_only_by_its_owner() {
    let (server, directory) = (ApiServer::start().unwrap(), TempDirectory::new("kubeconfig"));
    let path = server.kubeconfig(&directory.0).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let config: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let cluster = &config["clusters"][0]["cluster"];
    assert_eq!(cluster["server"], server.url());
    let ca = STANDARD.decode(cluster["certificate-authority-data"].as_str().unwrap()).unwrap();
    assert_eq!(String::from_utf8(ca).unwrap(), server.ca_pem());
    assert!(config["users"][0]["user"]["token"].as_str().unwrap().starts_with("ey"));
}
