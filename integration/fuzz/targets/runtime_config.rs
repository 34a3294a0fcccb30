//! The configuration of containerd (first byte even) or CRI-O, in a file.
#![no_main]

use gybe_fuzz::host::runtimes::config::configured;
use libfuzzer_sys::fuzz_target;
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

/// A host's root with the directories of both files. In memory; the operating system removes it.
static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
    let root = std::env::temp_dir().join(format!("gybe-fuzz-runtime-{}", std::process::id()));
    fs::create_dir_all(root.join("etc/containerd")).expect("a directory");
    fs::create_dir_all(root.join("etc/crio")).expect("a directory");
    root
});

fuzz_target!(|input: &[u8]| {
    let Some((runtime, text)) = input.split_first() else { return };
    let (name, file) = match runtime % 2 {
        0 => ("containerd", "etc/containerd/config.toml"),
        _ => ("crio", "etc/crio/crio.conf"),
    };
    fs::write(ROOT.join(file), text).expect("a file");
    let found = configured(&ROOT, name, &[]);
    assert_eq!(found, configured(&ROOT, name, &[]));
    let is_toml = std::str::from_utf8(text).is_ok_and(|text| text.parse::<toml::Table>().is_ok());
    let names_any =
        found.plugin_dirs.is_some() || found.conf_dir.is_some() || found.default_network.is_some();
    assert!(is_toml || !names_any, "a file that is no TOML names {found:?}");
    assert!(
        found.plugin_dirs.iter().flatten().chain(&found.conf_dir).all(|path| !path.as_os_str().is_empty())
    );
});
