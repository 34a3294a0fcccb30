//! A node's directories, empty, gone with the test.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use gybe_installer::install::seen::{Hashes, Interest, Places, Snapshot, look};

pub(crate) struct Ground {
    root: PathBuf,
}

impl Ground {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("ground-{}-{n}", std::process::id()));
        for folder in ["net.d", "bin", "results", "image"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        Self { root }
    }

    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let ground = Self::new();
        for (name, content) in files {
            ground.put(name, content);
        }
        ground
    }

    pub(crate) fn places(&self) -> Places {
        Places {
            conf: self.root.join("net.d"),
            programs: self.root.join("bin"),
            results: self.root.join("results"),
        }
    }

    pub(crate) fn conf(&self, name: &str) -> PathBuf {
        self.root.join("net.d").join(name)
    }

    /// A file in the conf directory, as another agent writes it.
    pub(crate) fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.conf(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// All files of the conf directory.
    pub(crate) fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        collect(&self.root.join("net.d"), "", &mut files);
        files
    }

    pub(crate) fn look(&self, interest: &Interest) -> Snapshot {
        look(&self.places(), interest, &mut Hashes::default())
    }
}

fn collect(folder: &Path, prefix: &str, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            collect(&entry.path(), &format!("{name}/"), files);
        } else {
            files.insert(name, fs::read(entry.path()).unwrap_or_default());
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}
