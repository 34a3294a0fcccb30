//! Reading the mounted ConfigMap while the kubelet replaces it: never a mixture of two versions.

use gybe_installer::host::settings::{CONFIG, SettingsSources, config_directory};
use gybe_test_support::{TestDir, write_volume};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The mount point of the ConfigMap's volume.
struct Mount(TestDir);

impl Mount {
    fn new(test: &str) -> Self {
        Self(TestDir::new(&format!("configmap-{test}")))
    }

    fn environment(&self) -> BTreeMap<String, String> {
        [("GYBE_CONFIG_DIR".to_owned(), self.0.display().to_string())].into()
    }

    fn files(&self) -> BTreeMap<String, String> {
        SettingsSources::gather(self.environment()).unwrap().files
    }
}

fn pairs(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

#[test]
fn the_kubelets_newest_version_is_read_whole() {
    let mount = Mount::new("swap");
    write_volume(&mount.0, [("mode", "install"), ("log_level", "debug")]).unwrap();
    assert_eq!(mount.files(), pairs(&[("mode", "install"), ("log_level", "debug")]));
    write_volume(&mount.0, [("mode", "leave")]).unwrap();
    assert_eq!(mount.files(), pairs(&[("mode", "leave")]), "the link log_level is dangling");
}

#[test]
fn a_plain_directory_is_read_and_a_missing_one_counts_as_empty() {
    let mount = Mount::new("plain");
    fs::write(mount.0.join("mode"), "leave\n").unwrap();
    fs::write(mount.0.join(".swp"), "\u{0}").unwrap();
    fs::create_dir(mount.0.join("folder")).unwrap();
    assert_eq!(mount.files(), pairs(&[("mode", "leave\n")]));
    fs::remove_dir_all(&mount.0).unwrap();
    assert_eq!(mount.files(), pairs(&[]));
    assert_eq!(config_directory(&BTreeMap::new()), Path::new(CONFIG));
}

#[test]
fn a_file_that_is_too_large_or_not_text_is_refused() {
    let mount = Mount::new("large");
    fs::write(mount.0.join("mode"), vec![b' '; (1 << 20) + 1]).unwrap();
    let error = SettingsSources::gather(mount.environment()).unwrap_err().to_string();
    assert!(error.ends_with("/mode"), "{error}");
    fs::write(mount.0.join("mode"), [0xff]).unwrap();
    assert!(SettingsSources::gather(mount.environment()).is_err());
}

#[test]
fn the_file_that_cni_network_config_file_names_is_read() {
    let mount = Mount::new("file");
    let file = mount.0.join("entry.json");
    let mut environment = mount.environment();
    environment.insert("CNI_NETWORK_CONFIG_FILE".into(), file.display().to_string());
    assert!(SettingsSources::gather(environment.clone()).is_err(), "a missing file");
    fs::write(&file, "{}").unwrap();
    assert_eq!(SettingsSources::gather(environment).unwrap().network_config.as_deref(), Some("{}"));
}
